"""Results of runs as tables, in Markdown and CSV, with the paper's numbers in brackets.

OUT/table_<name>.md, OUT/table_<name>.csv
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev

from nosology.core.files import atomic_file
from nosology.evaluation import paired_t_test
from nosology.reproduce.runner import Results, Run

LOWER_IS_BETTER = {"hamming_loss"}


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    values: tuple[float, ...]
    runs: int  # expected
    paper: float | None = None

    @property
    def mean(self) -> float | None:
        """The mean; None without a value."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation of a sample (n - 1); None for fewer than two values."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        spread = f" ± {self.std:.4f}" if self.std is not None else ""
        partly = f" ({len(self.values)} of {self.runs})" if 0 < len(self.values) < self.runs else ""
        ours = "-" if self.mean is None else f"{self.mean:.4f}{spread}{partly}"
        return ours if self.paper is None else f"{ours} [{self.paper:g}]"


@dataclass(frozen=True)
class Row:
    """One row of a table: means over runs, and the paper's numbers."""

    names: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    paper: Mapping[str, float] = field(default_factory=dict)  # by metric
    prefix: str = ""  # of this row's metrics in the results

    def cell(self, results: Results, metric: str) -> Cell:
        """A metric of the runs; undefined values are left out."""
        values = [results[run.key]["metrics"].get(self.prefix + metric) for run in self.runs if run.key in results]
        return Cell(tuple(value for value in values if value is not None), len(self.runs), self.paper.get(metric))


@dataclass(frozen=True)
class Table:
    """One table of a paper on one corpus."""

    name: str  # as on the command line
    title: str
    header: tuple[str, ...]  # of the names of a row
    columns: Mapping[str, str]  # metric -> header
    rows: Sequence[Row]
    corpus: str = ""
    remarks: Callable[[Results], Iterable[str]] = lambda results: ()
    draw: Callable[[Results, Path], None] | None = None  # writes a figure to a folder

    @property
    def runs(self) -> dict[str, Run]:
        """The runs of all rows, by key."""
        return {run.key: run for row in self.rows for run in row.runs}

    def markdown(self, results: Results) -> str:
        """The table as Markdown; the best of our means in each column is bold."""
        cells = [[row.cell(results, metric) for metric in self.columns] for row in self.rows]
        best = []
        for metric, column in zip(self.columns, zip(*cells)):
            means = [cell.mean for cell in column if cell.mean is not None]
            best.append((min if metric in LOWER_IS_BETTER else max)(means, default=None))
        name = self.name if self.name.isdigit() else f"'{self.name}'"
        lines = [f"## Table {name}. {self.title}" + (f", {self.corpus}" if self.corpus else ""), ""]
        lines.append(f"| {' | '.join((*self.header, *self.columns.values()))} |")
        lines.append("|" + "---|" * len(self.header) + "---:|" * len(self.columns))
        for row, line in zip(self.rows, cells):
            shown = [f"**{cell}**" if cell.values and cell.mean == top else str(cell) for cell, top in zip(line, best)]
            lines.append(f"| {' | '.join((*row.names, *shown))} |")
        return "\n".join([*lines, "", *(f"{remark}\n" for remark in self.remarks(results))])


def rows_with_paper_numbers(
    paper: str, table: str, runs: Mapping[str, Sequence[Run]], *, prefix: str = "", within: str = ""
) -> list[Row]:
    """A row for each of our models with the paper's numbers, then the paper's rows without a run of ours.

    The names of a row are separated by " / ". within: prefix of the paper's rows about our corpus.
    """
    numbers: dict[str, dict[str, float]] = {}
    lines = (files("nosology.reproduce") / "data" / "paper_numbers.tsv").read_text(encoding="utf-8").splitlines()
    for line in lines:
        start = f"{paper}\t{table}\t{within}"
        if line.startswith(start):
            row, *values = line.removeprefix(start).split("\t")
            pairs = (value.partition("=") for value in values)
            numbers[row] = {metric: float(number) for metric, _, number in pairs}
    ours = [Row(tuple(row.split(" / ")), tuple(runs[row]), numbers.pop(row, {}), prefix) for row in runs]
    return ours + [Row(tuple(f"{row} (paper)".split(" / ")), (), values) for row, values in numbers.items()]


def paired_tests(rows: Sequence[Row], metric: str, results: Results) -> Iterator[str]:
    """The first row minus each other row, with a t-test that pairs runs; rows with a missing run are left out."""
    complete = [(row.names[-1], row.cell(results, metric).values) for row in rows if row.runs]
    first, values = complete[0] if complete else ("", ())
    for name, others in complete[1:]:
        if len(values) == len(others) > 1:
            test = paired_t_test(values, others)
            p = "undefined" if test.p is None else f"{test.p:.4f}"
            interval = f"95% {test.low:+.4f} to {test.high:+.4f}"
            yield f"{first} minus {name}: {metric} {test.value:+.4f} ({interval}), paired t-test p {p}"


def write_tables(out: Path, tables: Sequence[Table], results: Results, failed: Mapping[str, str]) -> list[Path]:
    """The Markdown files; writes a Markdown and a CSV file for each table name, with all its corpora."""
    written = []
    for name in dict.fromkeys(table.name for table in tables):
        chosen = [table for table in tables if table.name == name]
        runs = {key: run for table in chosen for key, run in table.runs.items()}
        page = [f"{len(runs)} runs, {missing(runs, results, failed)}. In brackets: the paper's numbers.", ""]
        page += [table.markdown(results) for table in chosen]
        page += [f"- {key} failed: {failed[key]}" for key in sorted(failed.keys() & runs.keys())]
        written.append(out / f"table_{name}.md")
        with atomic_file(written[-1]) as temporary:
            temporary.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
        with (
            atomic_file(out / f"table_{name}.csv") as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("table", "corpus", "row", "metric", "mean", "std", "runs", "of", "paper"))
            for table, row, metric in ((t, r, m) for t in chosen for r in t.rows for m in t.columns):
                cell = row.cell(results, metric)
                mean, std, paper = ("" if value is None else repr(value) for value in (cell.mean, cell.std, cell.paper))
                place = (name, table.corpus, " / ".join(row.names), metric)
                writer.writerow((*place, mean, std, len(cell.values), cell.runs, paper))
        for table in chosen:
            if table.draw:
                table.draw(results, out)
    return written


def missing(runs: Iterable[str], results: Results, failed: Mapping[str, str]) -> str:
    """How many of the runs are missing, in words."""
    absent = [key for key in runs if key not in results]
    if not absent:
        return "none missing"
    return f"{len(absent)} missing ({sum(key in failed for key in absent)} of them failed)"
