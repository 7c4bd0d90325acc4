"""Results of runs as tables, in Markdown and CSV, with the paper's numbers in brackets, and their figures.

OUT/table_<name>.md, OUT/table_<name>.csv, OUT/<figure>.png
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from nosology.core import DataError
from nosology.core.files import atomic_file
from nosology.evaluation import Difference, NotePredictions, approximate_randomisation, paired_t_test
from nosology.reproduce.predictions import load_predictions
from nosology.reproduce.runner import Results, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOWER_IS_BETTER = {"hamming_loss", "coverage_error"}


def number(value: float, *, sign: str = "") -> str:
    """A number for a table: an integer without decimals, a metric with four, a larger number with fewer.

    sign: "+" for a difference.
    """
    size = abs(value)
    decimals = 0 if isinstance(value, int) else 4 if size < 10 else 2 if size < 100 else 1
    return f"{value:{sign},.{decimals}f}"


class PaperNumber(float):
    """A number of a paper, printed with the digits that it has there."""

    def __new__(cls, text: str) -> PaperNumber:
        """The number of a text such as "0.2090"."""
        value = super().__new__(cls, text)
        value.text = text
        return value

    text: str


def paper_number(value: float) -> str:
    """A number of a paper for a table."""
    return value.text if isinstance(value, PaperNumber) else number(value) if isinstance(value, int) else f"{value:g}"


@dataclass(frozen=True)
class Cell:
    """One number of a table; integers are counts."""

    values: tuple[float, ...]
    runs: int  # expected
    paper: float | None = None
    paper_std: float | None = None

    @property
    def mean(self) -> float | None:
        """The mean; None without a value; an integer if all values are this integer."""
        if not self.values:
            return None
        first = self.values[0]
        return first if isinstance(first, int) and set(self.values) == {first} else fmean(self.values)

    @property
    def std(self) -> float | None:
        """The standard deviation of a sample (n - 1); None for fewer than two values."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Our mean minus the number of the paper; None without one of them."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper

    @property
    def spread(self) -> str:
        """The standard deviation as text; empty for one value and for equal counts."""
        return "" if self.std is None or isinstance(self.mean, int) else f"± {number(self.std)}"

    @property
    def partly(self) -> str:
        """How many of the expected values there are, as text, if some are missing."""
        return f"({len(self.values)} of {self.runs})" if 0 < len(self.values) < self.runs else ""

    @property
    def paper_text(self) -> str:
        """The number of the paper as text, with its standard deviation; empty without a number."""
        if self.paper is None:
            return ""
        return paper_number(self.paper) + ("" if self.paper_std is None else f" ± {paper_number(self.paper_std)}")

    def __str__(self) -> str:
        ours = "-" if self.mean is None else " ".join(filter(None, (number(self.mean), self.spread, self.partly)))
        return f"{ours} [{self.paper_text}]" if self.paper_text else ours


@dataclass(frozen=True)
class Row:
    """One row of a table: means over runs, and the paper's numbers."""

    names: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    paper: Mapping[str, float] = field(default_factory=dict)  # by metric; METRIC.std: the standard deviation
    prefix: str = ""  # of this row's metrics in the results

    def cell(self, results: Results, metric: str) -> Cell:
        """A metric of the runs; undefined values are left out."""
        values = [results[run.key]["metrics"].get(self.prefix + metric) for run in self.runs if run.key in results]
        defined = tuple(value for value in values if value is not None)
        return Cell(defined, len(self.runs), self.paper.get(metric), self.paper.get(f"{metric}.std"))


@dataclass(frozen=True)
class ResultFigure:
    """A figure of results; `draw` gets an empty figure of 9 x 4 inches, and results of which some may be missing."""

    name: str  # of the file, such as "figure-4"
    title: str
    draw: Callable[[Results, Figure], None]

    def write(self, results: Results, out: Path) -> Path:
        """The PNG file in a folder."""
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        path = out / f"{self.name}.png"
        with rc_context({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}):
            figure = Figure(figsize=(9, 4), layout="constrained")
            self.draw(results, figure)
            with atomic_file(path) as temporary:
                figure.savefig(temporary, dpi=150, format="png")
        return path


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
    figures: Sequence[ResultFigure] = ()
    without_best: Collection[str] = ()  # metrics of which none is better, such as a density; nor are counts

    @property
    def runs(self) -> dict[str, Run]:
        """The runs of all rows, by key."""
        return {run.key: run for row in self.rows for run in row.runs}

    @property
    def heading(self) -> str:
        """Number, title and corpus: "Table 4. Models, reports"."""
        return f"{label(self.name)}. {self.title}" + (f", {self.corpus}" if self.corpus else "")

    def with_first_rows(self, count: int | None) -> Table:
        """The table with runs in its first rows only; the others keep the paper's numbers."""
        with_runs = [row for row in self.rows if row.runs][:count]
        return replace(self, rows=[row if row in with_runs else replace(row, runs=()) for row in self.rows])

    def with_fixed_remarks(self, results: Results) -> Table:
        """The table with its remarks about these results, so that tests are computed once for all outputs."""
        lines = list(self.remarks(results))
        return replace(self, remarks=lambda results: lines)

    def cells(self, results: Results) -> list[list[tuple[Cell, bool]]]:
        """The cells of each row, and whether a cell has the best of our means in its column."""
        grid = [[row.cell(results, metric) for metric in self.columns] for row in self.rows]
        best = [self._best(metric, column) for metric, column in zip(self.columns, zip(*grid))]
        return [[(cell, cell.mean is not None and cell.mean == top) for cell, top in zip(row, best)] for row in grid]

    def _best(self, metric: str, column: Sequence[Cell]) -> float | None:
        """The best mean of a column; None if there is nothing to compare."""
        means = [cell.mean for cell in column if cell.mean is not None]
        if len(means) < 2 or metric in self.without_best or all(isinstance(mean, int) for mean in means):
            return None
        return (min if metric.rpartition(".")[2] in LOWER_IS_BETTER else max)(means)

    def markdown(self, results: Results) -> str:
        """The table as Markdown; the best of our means in each column is bold."""
        lines = [f"## {self.heading}", ""]
        if self.columns:  # a table of corpora that were not given has none
            lines.append(f"| {' | '.join((*self.header, *self.columns.values()))} |")
            lines.append("|" + "---|" * len(self.header) + "---:|" * len(self.columns))
        for row, line in zip(self.rows, self.cells(results)):
            shown = [f"**{cell}**" if best else str(cell) for cell, best in line]
            lines.append(f"| {' | '.join((*row.names, *shown))} |")
        return "\n".join([*lines, "", *(f"{remark}\n" for remark in self.remarks(results))])


def label(name: str) -> str:
    """The name of a table on the command line as in a heading: "Table 4", "Figure 7", "Table 'leakage'"."""
    if figure := re.fullmatch(r"figure-(\d+\w*)", name):
        return f"Figure {figure[1]}"
    return f"Table {name}" if name[0].isdigit() else f"Table '{name}'"


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
            numbers[row] = {metric: int(text) if text.isdigit() else PaperNumber(text) for metric, _, text in pairs}
    ours = [Row(tuple(row.split(" / ")), tuple(runs[row]), numbers.pop(row, {}), prefix) for row in runs]
    return ours + [Row(tuple(f"{row} (paper)".split(" / ")), (), values) for row, values in numbers.items()]


class SignificanceLine(str):
    """A significance test as a line of text; `parts`: what it compares, metric, difference, 95% interval, p, test."""

    parts: tuple[str, ...]

    def __new__(cls, rows: tuple[Row, Row], metric: str, test: Difference, name: str, runs: str) -> SignificanceLine:
        """The line of a test of the first row minus the second; runs: which runs it compares."""
        difference = f"{test.value:+.4f}"
        interval = "" if test.low is None or test.high is None else f"{test.low:+.4f} to {test.high:+.4f}"
        p = "undefined" if test.p is None else f"{test.p:.4f}" if test.p >= 0.00005 else "< 0.0001"
        shown = f"{difference} (95% {interval})" if interval else difference
        line = super().__new__(cls, f"{_minus(*rows)}: {metric} {shown}, {name} p {p}, {runs}")
        line.parts = (_minus(*rows), metric, difference, interval, p, f"{name}, {runs}")
        return line


def _minus(first: Row, second: Row) -> str:
    return f"{' / '.join(first.names)} minus {' / '.join(second.names)}"


def paired_tests(
    rows: Sequence[Row], metric: str, results: Results, repeats: str = "seeds"
) -> Iterator[SignificanceLine]:
    """The first row minus each other row, with a t-test that pairs the runs of equal seeds (or other `repeats`).

    Seeds that one of the rows lacks do not count; a row with fewer than two is left out.
    """
    for first, second, pairs in _paired_rows(rows, results):
        values = [
            tuple(results[run.key]["metrics"].get(row.prefix + metric) for row, run in zip((first, second), pair))
            for pair in pairs
        ]
        defined = [pair for pair in values if None not in pair]
        if len(defined) > 1:
            test = paired_t_test(*zip(*defined))
            yield SignificanceLine((first, second), metric, test, "paired t-test", f"{len(defined)} {repeats}")


def randomisation_tests(
    rows: Sequence[Row], metrics: Sequence[str], results: Results, *, replicates: int = 2000
) -> Iterator[str]:
    """The first row minus each other row in each metric, with an approximate randomisation test over the test notes.

    The predictions of the runs of equal seeds are compared. The difference is the mean over the seeds, p the largest of
    them. A metric with the prefix "few." is tested with the predictions of that name. If predictions are missing,
    damaged or of other notes, the line says so instead. metrics: micro and macro F1, precision and recall, and every
    ranking metric.
    """
    loaded: dict[str, NotePredictions] = {}

    def predictions(row: Row, run: Run, metric: str) -> NotePredictions:
        name = (row.prefix + metric).rpartition(".")[0]
        entry = results[run.key].get("predictions", {}).get(name)
        if entry is None:
            raise DataError(f"{run.title} has stored no predictions")
        if entry["file"] not in loaded:
            loaded[entry["file"]] = load_predictions(entry)
        return loaded[entry["file"]]

    for first, second, pairs in _paired_rows(rows, results):
        loaded.clear()
        reasons: dict[str, list[str]] = {}
        for metric in metrics:
            try:
                tests = [
                    approximate_randomisation(
                        predictions(first, a, metric),
                        predictions(second, b, metric),
                        metric.rpartition(".")[2],
                        replicates=replicates,
                    )
                    for a, b in pairs
                ]
            except (DataError, ValueError) as error:  # of files, notes or a metric that is no sum over notes
                reasons.setdefault(str(error), []).append(metric)
                continue
            mean = Difference(fmean(test.value for test in tests), max(test.p or 0.0 for test in tests))
            seeds = f"largest p of {len(tests)} seeds" if len(tests) > 1 else "1 seed"
            yield SignificanceLine((first, second), metric, mean, "approximate randomisation", seeds)
        for reason, untested in reasons.items():
            yield f"{_minus(first, second)}: {', '.join(untested)} not tested by approximate randomisation: {reason}"


def _paired_rows(rows: Sequence[Row], results: Results) -> Iterator[tuple[Row, Row, list[tuple[Run, Run]]]]:
    """The first row with runs and each other one, with their runs of equal seeds that have results."""
    with_runs = [row for row in rows if row.runs]
    for first, second in zip(with_runs[:1] * len(with_runs), with_runs[1:]):
        by_seed = {run.repeat: run for run in second.runs if run.key in results}
        pairs = [(run, by_seed[run.repeat]) for run in first.runs if run.key in results and run.repeat in by_seed]
        if pairs:
            yield first, second, pairs


def write_tables(out: Path, tables: Sequence[Table], results: Results, failed: Mapping[str, str]) -> list[Path]:
    """The Markdown files; writes a Markdown and a CSV file for each table name, with all its corpora."""
    figures = [figure.name for table in tables for figure in table.figures]
    if len(set(figures)) < len(figures):
        raise ValueError(f"each figure must have its own name; got {', '.join(figures)}")
    written = []
    for name in dict.fromkeys(table.name for table in tables):
        chosen = [table for table in tables if table.name == name]
        runs = {key: run for table in chosen for key, run in table.runs.items()}
        page = [f"{missing(runs, results, failed)}. In brackets: the paper's numbers.", ""]
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
            writer.writerow(("table", "corpus", "row", "metric", "mean", "std", "runs", "of", "paper", "paper_std"))
            for table, row, metric in ((t, r, m) for t in chosen for r in t.rows for m in t.columns):
                cell = row.cell(results, metric)
                numbers = (cell.mean, cell.std, cell.paper, cell.paper_std)
                mean, std, *paper = ("" if value is None else repr(value) for value in numbers)
                place = (name, table.corpus, " / ".join(row.names), metric)
                writer.writerow((*place, mean, std, len(cell.values), cell.runs, *paper))
        for figure in (figure for table in chosen for figure in table.figures):
            figure.write(results, out)
    return written


def missing(runs: Collection[str], results: Results, failed: Mapping[str, str]) -> str:
    """The number of runs and how many of them are missing, in words."""
    absent = [key for key in runs if key not in results]
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    if not absent:
        return f"{count}, none missing"
    return f"{count}, {len(absent)} missing ({sum(key in failed for key in absent)} of them failed)"
