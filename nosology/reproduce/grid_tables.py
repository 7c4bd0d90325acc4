"""The results of a grid as the paper's Tables 3 to 7, in Markdown and CSV.

3: central. 4: federated. 5, 6: the same over the most frequent codes of train. 7: mean and standard deviation (of a
sample, n - 1) over the random splits. Precision, recall and F1 of tables 5 and 6 are means over codes: in the paper
they cannot be micro averages, for its F1 is not the harmonic mean of precision and recall beside it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from nosology.core.files import atomic_file
from nosology.reproduce.grid import Run
from nosology.reproduce.grid_run import METRICS

HEADS = {"mlp": "MLP", "deep": "DeepMLP", "res": "DeepResMLP"}  # as the paper calls them
MARKDOWN, CSV = "tables.md", "tables.csv"
_MACRO = METRICS[:3]

Results = Mapping[str, dict[str, Any]]  # by run


@dataclass(frozen=True)
class Cell:
    """One number of a table: the mean of its runs."""

    values: tuple[float, ...]
    of: int  # runs that there should be

    @property
    def mean(self) -> float | None:
        """The mean, None if no run is there."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation of a sample, None for fewer than two runs."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        spread = f" ± {self.std:.4f}" if self.std is not None else ""
        partly = f" ({len(self.values)} of {self.of})" if len(self.values) < self.of else ""
        return f"{self.mean:.4f}{spread}{partly}"


@dataclass(frozen=True)
class Table:
    """One table of the paper for all corpora."""

    number: int
    title: str
    setting: str
    columns: tuple[tuple[str, str, str], ...]  # header, "" or how many frequent codes, metric

    def rows(self, runs: Sequence[Run], results: Results) -> Iterator[tuple[tuple[str, str, str], list[Cell]]]:
        """(corpus, embedder, head) and the cells of each row, in the order of the runs."""
        groups: dict[tuple[str, str, str], list[Run]] = {}
        for run in runs:
            if run.setting == self.setting:
                groups.setdefault((run.corpus, run.embedder, run.head), []).append(run)
        for named, mine in groups.items():
            yield named, [cell(mine, results, top, metric) for _, top, metric in self.columns]


def cell(runs: Sequence[Run], results: Results, top: str, metric: str) -> Cell:
    """A metric of some runs; undefined values are left out."""
    found = [results[run.id] for run in runs if run.id in results]
    values = [(one["top"][top] if top else one["metrics"])[metric] for one in found]
    return Cell(tuple(value for value in values if value is not None), len(runs))


def tables(top: Sequence[int]) -> list[Table]:
    """The tables of a grid, for so many frequent codes."""
    everything = tuple((name.replace("_", " ").replace("f1", "F1"), "", name) for name in METRICS)
    frequent = tuple(
        (f"top {k} {metric.removeprefix('macro_').replace('f1', 'F1')}", str(k), metric)
        for k in top
        for metric in _MACRO
    )
    of = " and ".join(f"top {k}" for k in top)
    return [
        Table(3, "Central training", "central", everything),
        Table(4, "Federated training", "federated", everything),
        Table(5, f"Central training, the {of} codes of train", "central", frequent),
        Table(6, f"Federated training, the {of} codes of train", "federated", frequent),
        Table(7, "Central training on random splits, mean ± standard deviation", "splits", everything),
    ]


def write_tables(folder: Path, runs: Sequence[Run], results: Results, failed: Mapping[str, str], top: Sequence[int]):
    """Writes tables.md and tables.csv."""
    made = tables(top)
    with atomic_file(folder / MARKDOWN) as aside:
        aside.write_text(markdown(made, runs, results, failed), encoding="utf-8")
    with atomic_file(folder / CSV) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("table", "setting", "corpus", "embedder", "head", "top", "metric", "mean", "std", "runs", "of")
        )
        for table in made:
            for named, cells in table.rows(runs, results):
                for (_, k, metric), one in zip(table.columns, cells):
                    numbers = ("" if value is None else repr(value) for value in (one.mean, one.std))
                    writer.writerow((table.number, table.setting, *named, k, metric, *numbers, len(one.values), one.of))


def markdown(made: Sequence[Table], runs: Sequence[Run], results: Results, failed: Mapping[str, str]) -> str:
    """The tables as a page; the best of each column of a corpus is bold."""
    lines = [f"{len(runs)} runs, {missing(runs, results, failed)}.", ""]
    for corpus in dict.fromkeys(run.corpus for run in runs):
        if told := differences(corpus, runs, results):
            lines += [told, ""]
    for table in made:
        rows = list(table.rows(runs, results))
        if not rows:
            continue
        lines += [f"## Table {table.number}. {table.title}", ""]
        for corpus in dict.fromkeys(named[0] for named, _ in rows):
            mine = [(named, cells) for named, cells in rows if named[0] == corpus]
            lines += [f"**{corpus}**", "", *_grid(table, mine), ""]
    if failed:
        lines += ["## Failed", "", *(f"- {name}: {why}" for name, why in sorted(failed.items())), ""]
    return "\n".join(lines)


def _grid(table: Table, rows: list[tuple[tuple[str, str, str], list[Cell]]]) -> Iterator[str]:
    yield f"| embedder | head | {' | '.join(header for header, _, _ in table.columns)} |"
    yield f"|---|---|{'---:|' * len(table.columns)}"
    best = [
        max((one.mean for one in column if one.mean is not None), default=None) for column in zip(*(c for _, c in rows))
    ]
    for (_, embedder, head), cells in rows:
        shown = (
            f"**{one}**" if one.mean is not None and one.mean == top else str(one) for one, top in zip(cells, best)
        )
        yield f"| {embedder} | {HEADS[head]} | {' | '.join(shown)} |"


def missing(runs: Sequence[Run], results: Results, failed: Mapping[str, str]) -> str:
    """How many runs are missing, in words."""
    absent = [run.id for run in runs if run.id not in results]
    if not absent:
        return "none missing"
    return f"{len(absent)} missing ({sum(name in failed for name in absent)} of them failed)"


def differences(corpus: str, runs: Sequence[Run], results: Results) -> str:
    """Federated minus central micro F1 of a corpus, in words; empty where there is no pair."""
    f1: dict[str, dict[tuple[str, str], float]] = {"central": {}, "federated": {}}
    for run in runs:
        if run.corpus == corpus and run.setting in f1 and run.id in results:
            value = results[run.id]["metrics"]["micro_f1"]
            if value is not None:
                f1[run.setting][run.embedder, run.head] = value
    found = [f1["federated"][pair] - f1["central"][pair] for pair in f1["central"].keys() & f1["federated"].keys()]
    if not found:
        return ""
    return (
        f"{corpus}: micro F1 of federated minus central training is {fmean(found):+.4f} in the mean of {len(found)} "
        f"pairs, from {min(found):+.4f} to {max(found):+.4f}."
    )
