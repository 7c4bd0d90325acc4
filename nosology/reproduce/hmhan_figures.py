"""The figures of Sasikala et al. (2025), from the results of `hmhan_runs`: each draws into an empty figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nosology.reproduce.result_tables import Row
from nosology.reproduce.runner import Results, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, PAPER, DEV = "#1f77b4", "#b0b0b0", "#d62728"


def draw_code_counts(rows: Sequence[Row], results: Results, figure: Figure) -> None:
    """Figure 1: the number of reports with each code."""
    axes = figure.subplots()
    cells = [row.cell(results, "reports") for row in rows]
    axes.bar([row.names[0] for row in rows], [cell.mean or 0 for cell in cells], color=OURS)
    axes.set_ylabel("reports")
    axes.tick_params(axis="x", labelrotation=45)


def draw_metric_bars(rows: Sequence[Row], columns: Mapping[str, str], results: Results, figure: Figure) -> None:
    """Figure 6: the metrics of each model, with the standard deviation over seeds, beside the paper's."""
    for axes, (metric, header) in zip(figure.subplots(1, len(columns), sharey=True), columns.items()):
        cells = [row.cell(results, metric) for row in rows]
        places = np.arange(len(rows))
        ours = [cell.mean or 0 for cell in cells]
        axes.bar(places - 0.2, ours, 0.4, yerr=[cell.std or 0 for cell in cells], color=OURS, label="ours")
        axes.bar(places + 0.2, [cell.paper or 0 for cell in cells], 0.4, color=PAPER, label="paper")
        axes.set_xticks(places, [row.names[0] for row in rows], rotation=60, ha="right", fontsize=8)
        axes.set_title(header, fontsize=10)
    figure.axes[0].set_ylim(bottom=0)
    figure.axes[0].legend(fontsize=8)


def draw_lime_words(runs: Sequence[Run], results: Results, figure: Figure) -> None:
    """Figure 5: the words with the largest mean LIME weights, for the two codes with the most of them."""
    run = next((run for run in runs if run.key in results), None)
    words: dict[str, list[tuple[str, float]]] = {} if run is None else results[run.key]["words"]
    chosen = sorted((code for code in words if words[code]), key=lambda code: -len(words[code]))[:2]
    for axes, code in zip(np.atleast_1d(figure.subplots(1, max(1, len(chosen)))), chosen):
        names, weights = zip(*reversed(words[code]))
        axes.barh(names, weights, color=[OURS if weight > 0 else DEV for weight in weights])
        axes.set(title=code, xlabel="mean LIME weight")


def draw_curves(runs: Sequence[Run], results: Results, figure: Figure) -> None:
    """Figure 7: loss and accuracy over epochs on train and dev reports, a line per seed."""
    loss, accuracy = figure.subplots(1, 2)
    for axes, name in ((loss, "loss"), (accuracy, "accuracy")):
        for split, label, color in (("train", "training", OURS), ("dev", "validation", DEV)):
            curves = [results[run.key]["curves"][f"{split}_{name}"] for run in runs if run.key in results]
            for number, curve in enumerate(curves):
                epochs = range(1, len(curve) + 1)
                axes.plot(epochs, curve, color=color, alpha=0.8, label=None if number else label, marker=".")
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True)
    if loss.lines:
        loss.legend()
