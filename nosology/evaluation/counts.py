"""Hits, false codes and misses for each code: they add up over sites, and F1 is computed once from the sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.core.label_space import LabelSpace


@dataclass(frozen=True, eq=False)
class Counts:
    """TP, FP and FN of each code of `space`, and what Hamming loss and exact match need.

    The first `n_nameable` codes are the model's; those after are true codes that it cannot name. Counts of two sets of
    notes add up with + to the counts of both together, where the model's codes are the same.
    """

    space: LabelSpace
    n_nameable: int
    tp: np.ndarray
    fp: np.ndarray
    fn: np.ndarray
    n_notes: int
    n_exact: int

    @staticmethod
    def of(space: LabelSpace, n_nameable: int, gold: sparse.csr_matrix, predicted: sparse.csr_matrix) -> Counts:
        """The counts of 0/1 matrices of true and accepted codes, both (B, len(space))."""
        hits = gold.multiply(predicted).tocsr()
        tp, n_gold, n_predicted = (_column_sums(matrix) for matrix in (hits, gold, predicted))
        n_exact = int(np.sum((_row_sums(gold) == _row_sums(hits)) & (_row_sums(predicted) == _row_sums(hits))))
        return Counts(space, n_nameable, tp, n_predicted - tp, n_gold - tp, gold.shape[0], n_exact)

    def __add__(self, other: Counts) -> Counts:
        named = self.space.codes[: self.n_nameable]
        if named != other.space.codes[: other.n_nameable]:
            raise ValueError("counts can be added only over the same label space; got two different ones")
        outside = (*self.space.codes[self.n_nameable :], *other.space.codes[other.n_nameable :])
        space = LabelSpace(named).extended(outside)
        tp, fp, fn = (
            _moved(mine, self.space, space) + _moved(its, other.space, space)
            for mine, its in ((self.tp, other.tp), (self.fp, other.fp), (self.fn, other.fn))
        )
        n_notes, n_exact = self.n_notes + other.n_notes, self.n_exact + other.n_exact
        return Counts(space, self.n_nameable, tp, fp, fn, n_notes, n_exact)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Counts)
            and (self.space, self.n_nameable, self.n_notes) == (other.space, other.n_nameable, other.n_notes)
            and self.n_exact == other.n_exact
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("tp", "fp", "fn"))
        )

    @property
    def support(self) -> np.ndarray:
        """The number of notes that truly have each code."""
        return self.tp + self.fn

    def metrics(self) -> dict[str, float | None]:
        """Every metric that needs only these counts, under its name in metrics.json."""
        tp, fp, fn = (getattr(self, name)[None, :].astype(np.float64) for name in ("tp", "fp", "fn"))
        found = micro(tp.sum(1), fp.sum(1), fn.sum(1)) | macro(tp, fp, fn)
        cells = np.array([float(self.n_notes * len(self.space))])
        found["hamming_loss"] = ratio(fp.sum(1) + fn.sum(1), cells)
        found["exact_match"] = np.array([self.n_exact / self.n_notes])
        return {name: None if np.isnan(value[0]) else float(value[0]) for name, value in found.items()}


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, NaN where bottom is 0: inside this package NaN stands for undefined, outside it becomes null."""
    return np.divide(top, bottom, out=np.full(np.broadcast(top, bottom).shape, np.nan), where=bottom > 0)


def micro(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray) -> dict[str, np.ndarray]:
    """Micro precision, recall and F1 of pooled counts; arrays of any one shape."""
    return {
        "micro_f1": ratio(2 * tp, 2 * tp + fp + fn),
        "micro_precision": ratio(tp, tp + fp),
        "micro_recall": ratio(tp, tp + fn),
    }


def macro(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, n_codes: int | None = None) -> dict[str, np.ndarray]:
    """Means over codes (last axis) of precision, recall and F1, over codes with a true note; `_all` over `n_codes`.

    As in scikit-learn with zero_division=0, a code that is never accepted adds 0 to a mean of precisions, and a code
    that is neither true nor accepted adds 0 to macro_f1_all. `n_codes` counts also codes left out of the arrays
    because nothing happened to them.
    """
    n_codes = tp.shape[-1] if n_codes is None else n_codes
    true = tp + fn > 0
    f1 = np.nan_to_num(ratio(2 * tp, 2 * tp + fp + fn))
    precision = np.nan_to_num(ratio(tp, tp + fp))
    recall = np.nan_to_num(ratio(tp, tp + fn))
    n_true = true.sum(-1)
    p, r = ratio((precision * true).sum(-1), n_true), ratio(recall.sum(-1), n_true)
    return {
        "macro_f1": ratio((f1 * true).sum(-1), n_true),
        "macro_f1_all": ratio(f1.sum(-1), np.full(n_true.shape, n_codes)),
        "macro_precision": p,
        "macro_recall": r,
        "caml_macro_f1": np.where(p + r == 0, 0.0, ratio(2 * p * r, p + r)),
    }


def _column_sums(matrix: sparse.csr_matrix) -> np.ndarray:
    return np.bincount(matrix.indices, minlength=matrix.shape[1]).astype(np.int64)


def _row_sums(matrix: sparse.csr_matrix) -> np.ndarray:
    return np.diff(matrix.indptr)


def _moved(values: np.ndarray, old: LabelSpace, new: LabelSpace) -> np.ndarray:
    moved = np.zeros(len(new), dtype=np.int64)
    moved[[new.column(code) for code in old.codes]] = values
    return moved
