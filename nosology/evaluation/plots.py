"""The plots of a report, each as the bytes of a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from nosology.evaluation.metrics import Evaluation, Row
from nosology.evaluation.reliability import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, BLUE, ORANGE, PALE = "#1f2933", "#2563a8", "#d9730d", "#d5dce4"
SHORT = 56


def precision_recall(evaluation: Evaluation) -> bytes:
    """Micro precision against micro recall over all thresholds, and the point of the threshold in use."""
    figure, axes = _axes("recall", "precision")
    cells = evaluation.cells
    # A few hundred points are enough for the curve of a large test set.
    at = np.unique(np.linspace(0, len(cells.values) - 1, 600).astype(int)) if len(cells.values) else []
    axes.plot(
        cells.hits[at] / max(1, evaluation.scored.gold.nnz), cells.hits[at] / cells.accepted[at], color=BLUE, lw=2
    )
    recall, precision = evaluation.metrics["micro_recall"], evaluation.metrics["micro_precision"]
    if recall is not None and precision is not None:
        axes.plot([recall], [precision], "o", color=ORANGE, ms=8)
        label = f"F1 {evaluation.metrics['micro_f1']:.3f}"
        axes.annotate(label, (recall, precision), xytext=(8, 6), textcoords="offset points", color=ORANGE)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    return _png(figure)


def reliability_curve(table: Reliability) -> bytes:
    """The true rate against the mean score of each bin; the dashed line is perfect calibration."""
    figure, axes = _axes("probability", "share of true cells")
    axes.plot([0, 1], [0, 1], "--", color=INK, lw=1, alpha=0.5)
    axes.plot(table.mean_score, table.true_rate, "o-", color=BLUE, lw=2, ms=5)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    return _png(figure)


def frequency(evaluation: Evaluation, train_counts: np.ndarray) -> bytes:
    """F1 of each code with a true note against its number of training notes, and the means of frequency bands."""
    figure, axes = _axes("notes with the code in training", "F1")
    counts = evaluation.counts
    true = np.flatnonzero(counts.support > 0)
    f1 = 2 * counts.tp[true] / (2 * counts.tp[true] + counts.fp[true] + counts.fn[true])
    frequencies = train_counts[true]
    axes.plot(frequencies + 1, f1, ".", color=BLUE, ms=3, alpha=0.25, rasterized=True)
    bands = np.unique(np.floor(2 * np.log2(frequencies + 1)))
    members = [np.floor(2 * np.log2(frequencies + 1)) == band for band in bands]
    axes.plot(
        [(frequencies[m] + 1).mean() for m in members], [f1[m].mean() for m in members], "o-", color=ORANGE, lw=2, ms=4
    )
    axes.set_xscale("log")
    ticks = [t for t in (0, 1, 10, 100, 1000, 10000, 100000) if t <= max(10, int(frequencies.max(initial=0)))]
    axes.set_xticks([t + 1 for t in ticks], [f"{t:,}" for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(-0.02, 1.02)
    return _png(figure)


def chapter_bars(rows: Sequence[Row]) -> bytes:
    """Micro and macro F1 of each chapter with a true code."""
    rows = [row for row in rows if row["true_assignments"]][::-1]
    figure, axes = _axes("F1", "", height=1.2 + 0.36 * len(rows), width=10)
    where = np.arange(len(rows))
    for name, shift, color in (("micro_f1", 0.2, BLUE), ("macro_f1", -0.2, ORANGE)):
        axes.barh(where + shift, [row[name] or 0 for row in rows], 0.38, color=color, label=name.replace("_f1", " F1"))
    several = len({row["system"] for row in rows}) > 1
    names = [f"{str(row['system']) + ' ' if several else ''}{row['chapter']}  {row['title']}" for row in rows]
    axes.set_yticks(where, [_short(name) for name in names], fontsize=9)
    axes.set(xlim=(0, 1), ylim=(-0.6, max(0, len(rows) - 1) + 0.6))
    axes.grid(axis="y", visible=False)
    axes.legend(frameon=False, loc="lower right")
    return _png(figure)


def roc_curves(scores: Mapping[str, tuple[np.ndarray, np.ndarray]], least: float = 1e-3) -> bytes:
    """True against false positive rates of attacks, with logarithmic axes from `least`; the dashed line is chance.

    scores: by name, of positives (N,) and negatives (M,).
    """
    figure, axes = _axes("false positive rate", "true positive rate")
    axes.plot([least, 1], [least, 1], "--", color=INK, lw=1, alpha=0.5)
    for (name, (positive, negative)), color in zip(scores.items(), (BLUE, ORANGE, "#2f8f5b", "#8250a8"), strict=False):
        thresholds = np.unique(np.concatenate([positive, negative]))[::-1]
        rates = [1 - np.searchsorted(np.sort(part), thresholds, "left") / len(part) for part in (negative, positive)]
        axes.plot(*(np.maximum(rate, least) for rate in rates), color=color, lw=2, label=name)
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
    axes.legend(frameon=False, loc="lower right")
    return _png(figure)


def two_histograms(names: tuple[str, str], values: tuple[np.ndarray, np.ndarray], xlabel: str) -> bytes:
    """The shares of two groups of values in common bins; the largest one percent is in the last bin."""
    figure, axes = _axes(xlabel, "share of notes")
    both = np.concatenate(values)
    edges = np.linspace(both.min(), max(np.quantile(both, 0.99), both.min() + 1e-9), 31)
    for name, part, color in zip(names, values, (BLUE, ORANGE)):
        shares = np.histogram(np.minimum(part, edges[-1]), edges)[0] / len(part)
        axes.stairs(shares, edges, color=color, lw=2, label=name)
    axes.legend(frameon=False)
    return _png(figure)


def _short(words: str) -> str:
    return words if len(words) <= SHORT else words[: SHORT - 1] + "…"


def _axes(xlabel: str, ylabel: str, *, width: float = 4.6, height: float = 3.9) -> tuple[Figure, Axes]:
    # A Figure without pyplot has no global state and opens no window.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.grid(color=PALE, lw=0.7)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure, axes


def _png(figure: Figure) -> bytes:
    out = BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
