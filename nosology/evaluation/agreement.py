"""Agreement of two people who coded the same notes: Cohen's kappa, Krippendorff's alpha, percent agreement.

A unit of percent agreement, kappa and nominal alpha is a pair (note, code) over the candidates of each note: the codes
that the first person, the second person or the model named. Its value is 1 if a person assigned the code, else 0. A
unit of the alpha of sets is a note, its value the set of assigned codes, and the distance of two sets is MASI.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from scipy import sparse

from nosology.evaluation.metrics import random_draws

K = TypeVar("K", bound=Hashable)
G = TypeVar("G", bound=Hashable)
REPLICATES = 1000


@dataclass(frozen=True)
class DoubleCodedNote(Generic[K]):
    """A note with the codes of two people; candidates: all codes that one of them or the model named."""

    first: frozenset[K]
    second: frozenset[K]
    candidates: frozenset[K]
    principals: tuple[K | None, K | None] = (None, None)

    def __post_init__(self) -> None:
        if not self.first | self.second <= self.candidates:
            raise ValueError("candidates must contain the codes of both people; got fewer")


@dataclass(frozen=True)
class AgreementValue:
    """A measure and its 95% bootstrap interval over notes; None: undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CoderAgreement:
    """The agreement of two people on some notes. principal: the share of notes with the same principal diagnosis."""

    notes: int
    units: int
    percent: AgreementValue
    kappa: AgreementValue
    alpha: AgreementValue
    alpha_sets: AgreementValue
    principal: AgreementValue


def measure_agreement(
    notes: Sequence[DoubleCodedNote[K]], *, replicates: int = REPLICATES, seed: int = 0
) -> CoderAgreement:
    """The agreement over notes, with intervals of `replicates` draws of notes with replacement."""
    counts = np.array([_counts(note) for note in notes], dtype=np.float64).reshape(-1, 4)
    observed, expected = _set_distances(notes)
    named = np.array([any(note.principals) for note in notes], dtype=np.float64)
    same = np.array([any(note.principals) and len(set(note.principals)) == 1 for note in notes], dtype=np.float64)

    def measures(weights: np.ndarray) -> np.ndarray:
        """The five measures (5, R) of weights (R, B)."""
        tables = weights @ counts
        return np.stack(
            [
                percent_agreement(tables),
                cohen_kappa(tables),
                _binary_alpha(tables),
                _alpha(weights @ observed / weights.sum(1), ((weights @ expected) * weights).sum(1), weights.sum(1)),
                _ratio(weights @ same, weights @ named),
            ]
        )

    if not notes:
        return CoderAgreement(0, 0, *(AgreementValue(None) for _ in range(5)))
    points = measures(np.ones((1, len(notes))))[:, 0]
    draws = measures(random_draws(np.random.default_rng(seed), replicates, len(notes))) if len(notes) > 1 else None
    lowest = (0.0, -1.0, -1.0, -1.0, 0.0)  # shares, and measures corrected for chance
    values = [
        _with_interval(point, draws[row] if draws is not None else None, lowest[row])
        for row, point in enumerate(points)
    ]
    return CoderAgreement(len(notes), int(counts.sum()), *values)


def agreement_by_group(
    notes: Sequence[DoubleCodedNote[K]], group: Callable[[K], G], *, replicates: int = REPLICATES, seed: int = 0
) -> dict[G, CoderAgreement]:
    """The agreement on the codes of each group, such as a chapter, over the notes with a candidate in it.

    A principal diagnosis counts in the group of each person's; a person with one in another group disagrees.
    """
    parts: dict[G, list[DoubleCodedNote[K]]] = {}
    for note in notes:
        of = {code: group(code) for code in (*note.candidates, *filter(None, note.principals))}
        for name in dict.fromkeys(of.values()):
            inside = frozenset(code for code in note.candidates if of[code] == name)
            is_named = any(code is not None and of[code] == name for code in note.principals)
            part = replace(
                note,
                first=note.first & inside,
                second=note.second & inside,
                candidates=inside,
                principals=note.principals if is_named else (None, None),
            )
            parts.setdefault(name, []).append(part)
    return {name: measure_agreement(part, replicates=replicates, seed=seed) for name, part in parts.items()}


def percent_agreement(tables: np.ndarray) -> np.ndarray:
    """The share (R,) of units with equal values, of tables (R, 4): both, only the first, only the second, neither."""
    return _ratio(tables[:, 0] + tables[:, 3], tables.sum(1))


def cohen_kappa(tables: np.ndarray) -> np.ndarray:
    """Cohen's kappa (R,) of tables (R, 4) as in `percent_agreement`; NaN if both use one value only, the same."""
    both, first, second, neither = tables.T
    total = tables.sum(1)
    chance = _ratio((both + first) * (both + second) + (second + neither) * (first + neither), total**2)
    return _ratio(percent_agreement(tables) - chance, 1 - chance)


def krippendorff_alpha(
    units: Sequence[Sequence[Any]], distance: Callable[[Any, Any], float] = lambda a, b: float(a != b)
) -> float | None:
    """Krippendorff's alpha of units, each with the values that any number of people gave it; None: undefined.

    Units with fewer than two values do not count. distance: 0 for equal values; by default 1 for different ones. This
    is the definition, quadratic in the number of values; `measure_agreement` computes the same for two people faster.
    """
    paired = [list(unit) for unit in units if len(unit) > 1]
    values = [value for unit in paired for value in unit]
    observed = sum(distance(a, b) / (len(unit) - 1) for unit in paired for a in unit for b in unit)
    expected = sum(distance(a, b) for a in values for b in values)
    return 1 - (len(values) - 1) * observed / expected if expected else None


def masi_distance(first: Collection[Any], second: Collection[Any]) -> float:
    """The MASI distance of two sets: 1 - Jaccard similarity times 1 (equal), 2/3 (subset), 1/3 (overlap) or 0."""
    a, b = set(first), set(second)
    if a == b:
        return 0.0
    weight = 2 / 3 if a <= b or b <= a else 1 / 3
    return 1 - weight * len(a & b) / len(a | b)


def _counts(note: DoubleCodedNote[Any]) -> tuple[int, int, int, int]:
    both, either = len(note.first & note.second), len(note.first | note.second)
    return both, len(note.first) - both, len(note.second) - both, len(note.candidates) - either


def _binary_alpha(tables: np.ndarray) -> np.ndarray:
    """Nominal alpha (R,) of two people and two values: the coincidences of the definition, counted from the tables."""
    both, first, second, neither = tables.T
    ones, zeros = 2 * both + first + second, 2 * neither + first + second
    return _alpha(_ratio(first + second, tables.sum(1)), 2 * ones * zeros, tables.sum(1))


def _alpha(observed: np.ndarray, pair_distances: np.ndarray, units: np.ndarray) -> np.ndarray:
    """1 - Do / De, of the mean distance within units and the sum over all ordered pairs of the 2 x units values."""
    values = 2 * units
    return 1 - _ratio(observed * values * (values - 1), pair_distances)


def _set_distances(notes: Sequence[DoubleCodedNote[K]]) -> tuple[np.ndarray, np.ndarray]:
    """MASI distances within notes (B,), and summed over the four pairs of sets of any two notes (B, B)."""
    column = {code: number for number, code in enumerate({code for note in notes for code in note.first | note.second})}
    first, second = (
        _indicator([[column[code] for code in codes] for codes in side], len(column))
        for side in ([note.first for note in notes], [note.second for note in notes])
    )
    across = _masi_matrix(first, second)
    return np.diagonal(across).copy(), across + across.T + _masi_matrix(first, first) + _masi_matrix(second, second)


def _indicator(rows: Sequence[Sequence[int]], width: int) -> sparse.csr_matrix:
    lengths = [len(row) for row in rows]
    columns = np.array([column for row in rows for column in row], dtype=np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(rows), max(1, width)))


def _masi_matrix(a: sparse.csr_matrix, b: sparse.csr_matrix) -> np.ndarray:
    """The MASI distances of the sets in the rows of two indicator matrices."""
    common = (a @ b.T).toarray()
    left, right = np.diff(a.indptr)[:, None], np.diff(b.indptr)[None, :]
    union = left + right - common
    weight = np.where(common == np.minimum(left, right), 2 / 3, 1 / 3)
    weight = np.where((left == right) & (common == left), 1.0, weight)
    return np.where(union == 0, 0.0, 1 - weight * common / np.maximum(union, 1))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotients; NaN where the divisor is 0."""
    is_zero = np.isclose(below, 0, atol=1e-12)
    return np.where(is_zero, np.nan, above / np.where(is_zero, 1, below))


def _with_interval(point: float, draws: np.ndarray | None, lowest: float) -> AgreementValue:
    """The middle 95% of the replicates in which the measure is defined, moved so that their mean is the value.

    A note that is drawn twice has distance 0 to itself, which lowers the expected distance and so the alpha of sets.
    lowest: of the measure.
    """
    if np.isnan(point):
        return AgreementValue(None)
    kept = draws[~np.isnan(draws)] if draws is not None else np.array([])
    if not len(kept):
        return AgreementValue(float(point))
    low, high = np.quantile(kept, (0.025, 0.975)) - kept.mean() + point
    return AgreementValue(float(point), float(min(max(low, lowest), point)), float(np.clip(high, point, 1)))
