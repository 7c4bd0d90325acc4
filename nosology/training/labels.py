"""Which codes a model learns."""

from __future__ import annotations

from collections import Counter

import numpy as np

from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.training.settings import LabelSettings


def label_space(settings: LabelSettings, codes: list[tuple[Code, ...]]) -> LabelSpace:
    """The codes that a model learns from these notes, sorted."""
    counts = Counter(code for note in codes for code in set(note))
    kept = [
        code
        for code, count in counts.items()
        if settings.min_notes <= count <= (settings.max_notes or count)
        and (not settings.systems or code.system in settings.systems)
    ]
    if not kept:
        told = {name: value for name, value in settings.model_dump().items() if value}
        raise DataError(f"no code is left to learn: {', '.join(f'labels.{k} = {v}' for k, v in told.items())}")
    return LabelSpace(sorted(sorted(kept, key=lambda code: (-counts[code], code))[: settings.top_k]))


def of_systems(settings: LabelSettings, codes: list[tuple[Code, ...]]) -> list[tuple[Code, ...]]:
    """The codes of each note that are of the systems to learn: another system's code is no miss."""
    if not settings.systems:
        return codes
    return [tuple(code for code in note if code.system in settings.systems) for note in codes]


def of_labels(settings: LabelSettings, labels: LabelSpace, codes: list[tuple[Code, ...]]) -> list[tuple[Code, ...]]:
    """The codes of each note that a model is held to: of its systems, and where a recipe narrows, of its labels."""
    if not settings.narrow:
        return of_systems(settings, codes)
    known = set(labels.codes)
    return [tuple(code for code in note if code in known) for note in codes]


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
