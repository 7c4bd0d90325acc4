"""Labels of a training step: all positives and sampled negatives, and their targets."""

from __future__ import annotations

import numpy as np


def sample_labels(positives: np.ndarray, pool: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Labels (L,) of a step: all positives in ascending order, then negatives sampled without replacement.

    positives: label ids of the notes of the step, in any order, with repetitions. pool: distinct label ids to sample
    from, those of the ICD version of the step. L is `size`; less if pool and positives have fewer labels; more if there
    are more positives, because all positives are included.
    """
    positives = np.unique(positives)
    top = max(pool.max(initial=-1), positives.max(initial=-1))
    is_negative = np.ones(top + 1, dtype=bool)
    is_negative[positives] = False
    negatives = pool[is_negative[pool]]
    count = min(max(size - len(positives), 0), len(negatives))
    sampled = negatives[rng.choice(len(negatives), count, replace=False, shuffle=False)]
    return np.concatenate([positives, sampled.astype(positives.dtype, copy=False)])


def label_targets(labels: np.ndarray, ids: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Targets (B, L) float32: 1 where the note of the row has the label of the column.

    labels: (L,) distinct. ids: label ids of B notes, one note after the other; bounds: (B + 1,) start and end of each
    note in `ids`. An id that is not among the labels is ignored.
    """
    column = np.full(max(labels.max(initial=-1), ids.max(initial=-1)) + 1, -1, dtype=np.int64)
    column[labels] = np.arange(len(labels))
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    columns = column[ids[bounds[0] : bounds[-1]]]
    targets = np.zeros((len(bounds) - 1, len(labels)), dtype=np.float32)
    targets[rows[columns >= 0], columns[columns >= 0]] = 1
    return targets
