"""The labels that a step's notes are scored against: their own, and others drawn by chance."""

from __future__ import annotations

import numpy as np


def sample_labels(positives: np.ndarray, pool: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Labels (L,): all positives of the step first, in ascending order, then negatives drawn without replacement.

    positives: label ids of the step's notes, in any order and number. pool: the distinct label ids that may be drawn,
    those of the step's ICD version. L is `size`, or less where pool and positives together have fewer labels, or more
    where there are more positives: none of those is left out.
    """
    positives = np.unique(positives)
    top = max(pool.max(initial=-1), positives.max(initial=-1))
    free = np.ones(top + 1, dtype=bool)
    free[positives] = False
    negatives = pool[free[pool]]
    wanted = min(max(size - len(positives), 0), len(negatives))
    drawn = negatives[rng.choice(len(negatives), wanted, replace=False, shuffle=False)]
    return np.concatenate([positives, drawn.astype(positives.dtype, copy=False)])


def label_targets(labels: np.ndarray, ids: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Targets (B, L) float32: 1 where the note of the row has the label of the column.

    labels: (L,) distinct. ids: label ids of all B notes, one note after the other; bounds: (B + 1,) where each note's
    begin and end in `ids`. An id that is not among the labels has no column and is passed over.
    """
    column = np.full(max(labels.max(initial=-1), ids.max(initial=-1)) + 1, -1, dtype=np.int64)
    column[labels] = np.arange(len(labels))
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    columns = column[ids[bounds[0] : bounds[-1]]]
    targets = np.zeros((len(bounds) - 1, len(labels)), dtype=np.float32)
    targets[rows[columns >= 0], columns[columns >= 0]] = 1
    return targets
