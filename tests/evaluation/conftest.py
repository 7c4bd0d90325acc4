"""Random notes with true codes and scores: with ties, empty rows, empty columns and codes that cannot be named."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from nosology.core import Code
from nosology.core.label_space import LabelSpace


class Case(NamedTuple):
    labels: LabelSpace
    gold: list[list[Code]]
    scores: np.ndarray


def _make_case(
    seed: int, n_notes: int = 60, n_labels: int = 20, n_outside: int = 0, digits: int | None = None, rate: float = 0.15
) -> Case:
    """`digits` rounds the scores, so that many tie; the last label is never true, and some notes have no code."""
    rng = np.random.default_rng(seed)
    labels = LabelSpace(Code("icd10cm", f"A{j:02d}") for j in range(n_labels))
    codes = [*labels.codes, *(Code("icd10pcs", f"00{j:05d}") for j in range(n_outside))]
    true = rng.random((n_notes, len(codes))) < rate * rng.random(len(codes)) * 2
    true[:, n_labels - 1] = False
    true[rng.random(n_notes) < 0.1] = False
    logits = rng.normal(-1.5, 1, (n_notes, n_labels)) + 1.5 * true[:, :n_labels]
    scores = 1 / (1 + np.exp(-logits))
    if digits is not None:
        scores = np.round(scores, digits)
    gold = [[codes[j] for j in np.flatnonzero(row)] for row in true]
    return Case(labels, gold, scores.astype(np.float32))


def _truth(case: Case) -> np.ndarray:
    """The true codes as a dense 0/1 matrix over the labels and then the codes outside, in sorted order."""
    return case.labels.extended(code for codes in case.gold for code in codes).encode(case.gold).toarray()


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Case]:
    return _make_case


@pytest.fixture(scope="session")
def truth() -> Callable[[Case], np.ndarray]:
    return _truth
