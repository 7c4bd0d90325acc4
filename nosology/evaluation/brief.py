"""The two numbers by which training chooses its weights: no intervals, so that they cost little after each epoch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation.cells import CellCounts
from nosology.evaluation.ranking import note_values, rank
from nosology.evaluation.scored import Scored, Scores


def brief(labels: LabelSpace, gold: Sequence[Collection[Code]], scores: Scores) -> dict[str, float]:
    """MAP, and the micro F1 at its best threshold; 0 where no true code has a score."""
    scored = Scored.of(labels, gold, scores)
    cells = CellCounts.of(scored)
    accepted = cells.values > 0
    if not accepted.any():
        return {"map": 0.0, "micro_f1": 0.0}
    f1 = 2 * cells.hits / (cells.accepted + scored.gold.nnz)
    values = note_values(scored, rank(scored, np.empty(0)))["map"]
    return {"map": float(np.nanmean(values)), "micro_f1": float(f1[accepted].max())}
