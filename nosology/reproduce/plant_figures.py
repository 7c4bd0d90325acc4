"""Figures 2 to 6 of Saha Roy et al. (2024), each a table of runs with a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nosology.evaluation.metrics import BANDS
from nosology.reproduce.plant_runs import RARE
from nosology.reproduce.result_tables import ResultFigure, Row, Table, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = {
    "figure-2": "Macro F1 by the number of train notes of a code",
    "figure-3": "Macro F1 of codes with 1 to 5 train notes",
    "figure-4": "P@5 and P@15 with fewer train notes",
    "figure-5": "Train loss, dev loss and dev P@15 by epoch",
    "figure-6": "Notes of each code",
}
LANT = "PLANT without P and S"  # the paper's "LAAT" in figures 4 and 5: equation 7 with learned attention only
CURVE_COLUMNS = {
    "epochs": "epochs",
    "lowest_loss_epoch": "epoch of the lowest dev loss",
    "dev_loss_min": "lowest dev loss",
    "dev_loss_last": "last dev loss",
    "train_loss_last": "last train loss",
    "p@15_best": "best dev P@15",
    "p@15_last": "last dev P@15",
}


def _bars(axes: Axes, series: Mapping[str, Sequence[float | None]], labels: Sequence[str]) -> None:
    """Draws one bar per label and series; without a bar where a value is missing."""
    width = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        heights = [np.nan if value is None else value for value in values]
        axes.bar(np.arange(len(labels)) + number * width, heights, width, label=name)
    axes.set_xticks(np.arange(len(labels)) + 0.4 - width / 2, labels)
    axes.legend()


def figure_2(corpus: str, runs: Mapping[str, Sequence[Run]]) -> Table:
    """The macro F1 of each coder in bands of the number of train notes of a code."""
    columns = {name: f"{name} notes" for name, low, high in sorted(BANDS, key=lambda band: band[1:]) if low}
    rows = [Row((coder,), tuple(own), prefix="band.") for coder, own in runs.items()]

    def draw(results: Results, figure: Figure) -> None:
        axes = figure.subplots()
        _bars(axes, {row.names[0]: [row.cell(results, c).mean for c in columns] for row in rows}, list(columns))
        axes.set(xlabel="train notes of a code", ylabel="macro F1")

    drawing = ResultFigure("figure-2", FIGURES["figure-2"], draw)
    return Table("figure-2", FIGURES["figure-2"], ("coder",), columns, rows, corpus, figures=[drawing])


def figure_3(corpus: str, runs: Mapping[str, Sequence[Run]]) -> Table:
    """The macro F1 of each coder on codes with few train notes, with the paper's values."""
    rows = rows_with_paper_numbers("plant", "figure-3", runs)

    def draw(results: Results, figure: Figure) -> None:
        axes = figure.subplots()
        ours = [row.cell(results, "macro_f1").mean for row in rows]
        papers = [row.paper.get("macro_f1") for row in rows]
        _bars(axes, {"ours": ours, "the paper": papers}, [row.names[0].removesuffix(" (paper)") for row in rows])
        axes.set(ylabel="macro F1")

    drawing = ResultFigure("figure-3", FIGURES["figure-3"], draw)
    columns = {"macro_f1": "macro F1"}
    return Table("figure-3", FIGURES["figure-3"], ("coder",), columns, rows, corpus, figures=[drawing])


def figure_4(name: str, corpus: str, paper: str, runs: Mapping[tuple[str, int], Sequence[Run]]) -> Table:
    """P@5 and P@15 of coders by the number of their train notes; name: of the drawing; paper: its corpus there."""
    by_name = {f"{coder} / {notes:,}": own for (coder, notes), own in runs.items()}
    rows = rows_with_paper_numbers("plant", "figure-4", by_name, within=f"{paper} / ")
    columns = {"p@5": "P@5", "p@15": "P@15"}

    def curve(coder: str, metric: str, results: Results) -> list[tuple[float, float]]:
        """(train notes, metric) of a coder, ascending."""
        own_rows = [row for row in rows if row.runs and row.names[0] == coder]
        points = [tuple(row.cell(results, part).mean for part in ("train_notes", metric)) for row in own_rows]
        return sorted((notes, value) for notes, value in points if notes is not None and value is not None)

    def remarks(results: Results) -> Iterator[str]:
        for metric in columns:
            plant = curve("PLANT", metric, results)
            for other in dict.fromkeys(coder for coder, _ in runs if coder != "PLANT"):
                points = curve(other, metric, results)
                if plant and points:
                    notes, best = points[-1]
                    needed = notes_for(plant, best)
                    reached = "does not reach it" if needed is None else f"reaches it with {needed:.0f}"
                    yield f"{metric}: {other} has {best:.4f} with {notes:.0f} train notes; PLANT {reached}."

    def draw(results: Results, figure: Figure) -> None:
        for axes, metric in zip(figure.subplots(1, 2), columns):
            for number, coder in enumerate(dict.fromkeys(coder for coder, _ in runs)):
                color = f"C{number}"
                axes.plot(*zip(*(curve(coder, metric, results) or [(np.nan, np.nan)])), "o-", color=color, label=coder)
                papers = [row.paper for row in rows if row.names[0] == coder and metric in row.paper]
                for numbers in papers:
                    point = numbers["train_notes"], numbers[metric]
                    axes.plot(*point, "*", markersize=11, color=color, label=f"{coder} (paper)")
            axes.set(xlabel="train notes", ylabel=columns[metric], xscale="log")
            axes.legend(fontsize=7)

    header, figures = ("coder", "train notes"), [ResultFigure(name, FIGURES["figure-4"], draw)]
    return Table("figure-4", FIGURES["figure-4"], header, columns, rows, corpus, remarks, figures)


def notes_for(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """The number of train notes at which a curve reaches a value, by linear interpolation; None: it does not."""
    if curve[0][1] >= target:
        return curve[0][0]
    for (notes, low), (more, high) in pairwise(curve):
        if high >= target:
            return notes + (more - notes) * (target - low) / (high - low)
    return None


def figure_5(corpus: str, runs: Mapping[str, Sequence[Run]]) -> Table:
    """The losses and the dev P@15 by epoch of coders that are trained without early stopping."""
    rows = [Row((coder,), tuple(own), prefix="curve.") for coder, own in runs.items()]

    def remarks(results: Results) -> Iterator[str]:
        yield "The paper, MIMIC-IV-full: PLANT stays stable over 60 epochs; its LAAT overfits after 40."

    def draw(results: Results, figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for number, (coder, own) in enumerate(runs.items()):
            curves = [results[run.key]["curves"] for run in own if run.key in results]
            for axes, name, style in ((left, "train_loss", ":"), (left, "dev_loss", "-"), (right, "p@15", "-")):
                values = _mean_curve([curve[name] for curve in curves if name in curve])
                label = f"{coder}, {'train' if name == 'train_loss' else 'dev'}"
                axes.plot(np.arange(1, len(values) + 1), values, style, color=f"C{number}", label=label)
        left.set(xlabel="epoch", ylabel="loss", yscale="log")
        right.set(xlabel="epoch", ylabel="P@15")
        for axes in (left, right):
            axes.legend(fontsize=7)

    figures, columns = [ResultFigure("figure-5", FIGURES["figure-5"], draw)], CURVE_COLUMNS
    return Table("figure-5", FIGURES["figure-5"], ("coder",), columns, rows, corpus, remarks, figures, tuple(columns))


def _mean_curve(curves: Sequence[Sequence[float]]) -> np.ndarray:
    """The mean of curves over seeds, as long as the shortest."""
    length = min(map(len, curves), default=0)
    return np.mean([curve[:length] for curve in curves], axis=0) if curves else np.empty(0)


def figure_6(sources: Mapping[str, tuple[str, Run]]) -> Table:
    """The number of notes of each code; sources: corpus -> its name in the paper and the run that counts it."""
    rows = []
    for corpus, (paper, run) in sources.items():
        [row] = [r for r in rows_with_paper_numbers("plant", "figure-6", {paper: [run]}) if r.runs]
        rows.append(Row((corpus,), row.runs, row.paper))

    def draw(results: Results, figure: Figure) -> None:
        axes = figure.subplots()
        for corpus, (_, run) in sources.items():
            counts = results[run.key]["curves"]["notes_per_code"] if run.key in results else []
            axes.plot(np.arange(1, len(counts) + 1), counts, label=corpus)
        axes.axhline(RARE, color="gray", linewidth=1, linestyle=":")
        axes.set(xlabel="codes, the most frequent first", ylabel="notes", yscale="log")
        axes.legend()

    columns = {"codes": "codes", f"codes_under_{RARE}": f"codes with fewer than {RARE} notes"}
    drawing = ResultFigure("figure-6", FIGURES["figure-6"], draw)
    return Table("figure-6", FIGURES["figure-6"], ("corpus",), columns, rows, figures=[drawing])
