"""The results of a grid as a plot: central against federated training, and how far random splits lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nosology.core.files import atomic_file
from nosology.evaluation.plots import BLUE, INK, ORANGE, PALE
from nosology.reproduce.grid import Run
from nosology.reproduce.grid_tables import HEADS, Cell, Results, cell

PLOT = "plot.png"


def write_plot(folder: Path, runs: Sequence[Run], results: Results) -> None:
    """Writes plot.png: micro F1 of each embedder and head, a panel a corpus; bars are mean and std of the splits."""
    from matplotlib.figure import Figure

    corpora = list(dict.fromkeys(run.corpus for run in runs))
    pairs = list(dict.fromkeys((run.embedder, run.head) for run in runs))
    figure = Figure(figsize=(6.5, len(corpora) * (1.1 + 0.3 * len(pairs))), dpi=120, layout="constrained")
    panels = figure.subplots(len(corpora), 1, squeeze=False, sharex=True)[:, 0]
    for axes, corpus in zip(panels, corpora):
        cells = {
            setting: [_micro_f1(runs, results, corpus, *pair, setting) for pair in pairs]
            for setting in ("splits", "central", "federated")
        }
        where = -np.arange(len(pairs))
        split_means, central, federated = (_numbers([one.mean for one in mine]) for mine in cells.values())
        spread = np.nan_to_num(_numbers([one.std for one in cells["splits"]]))
        axes.errorbar(
            split_means, where, xerr=spread, fmt="|", color=INK, alpha=0.6, capsize=4, label="splits, mean ± std"
        )
        axes.plot(central, where, "o", color=BLUE, label="central")
        axes.plot(federated, where, "D", color=ORANGE, ms=5, label="federated")
        axes.set_yticks(where, [f"{embedder}  {HEADS[head]}" for embedder, head in pairs], fontsize=8, color=INK)
        axes.set_ylim(0.6 - len(pairs), 0.6)
        axes.set_title(corpus, loc="left", fontsize=10, color=INK)
        axes.grid(axis="x", color=PALE, lw=0.7)
        axes.tick_params(colors=INK, length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    panels[-1].set_xlabel("micro F1 on test", color=INK)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=8
    )
    with atomic_file(folder / PLOT) as aside:
        figure.savefig(aside, format="png", metadata={"Software": None})


def _micro_f1(runs: Sequence[Run], results: Results, corpus: str, embedder: str, head: str, setting: str) -> Cell:
    mine = [
        run for run in runs if (run.corpus, run.embedder, run.head, run.setting) == (corpus, embedder, head, setting)
    ]
    return cell(mine, results, "", "micro_f1")


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """The values as an array, NaN for None."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)
