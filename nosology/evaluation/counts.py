"""True positives, false positives and false negatives of each code; counts of several sites can be added."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.core.label_space import LabelSpace


@dataclass(frozen=True, eq=False)
class Counts:
    """TP, FP and FN of each code of `space`, and what Hamming loss and exact match need.

    The first `n_labels` codes are the label space of the model; the others are true codes outside of it. Counts of two
    sets of notes with the same label space add up to the counts of both together.
    """

    space: LabelSpace
    n_labels: int
    tp: np.ndarray
    fp: np.ndarray
    fn: np.ndarray
    n_notes: int
    n_exact: int

    @staticmethod
    def of(space: LabelSpace, n_labels: int, gold: sparse.csr_matrix, predicted: sparse.csr_matrix) -> Counts:
        """The counts of 0/1 matrices of true and accepted codes, both (B, len(space))."""
        hits = gold.multiply(predicted).tocsr()
        tp, n_gold, n_predicted = (_column_sums(matrix) for matrix in (hits, gold, predicted))
        n_exact = int(np.sum((_row_sums(gold) == _row_sums(hits)) & (_row_sums(predicted) == _row_sums(hits))))
        return Counts(space, n_labels, tp, n_predicted - tp, n_gold - tp, gold.shape[0], n_exact)

    def __add__(self, other: Counts) -> Counts:
        labels = self.space.codes[: self.n_labels]
        if labels != other.space.codes[: other.n_labels]:
            raise ValueError("counts can be added only over the same label space; got two different ones")
        outside = (*self.space.codes[self.n_labels :], *other.space.codes[other.n_labels :])
        space = LabelSpace(labels).extended(outside)
        tp, fp, fn = (
            _reindex(first, self.space, space) + _reindex(second, other.space, space)
            for first, second in ((self.tp, other.tp), (self.fp, other.fp), (self.fn, other.fn))
        )
        n_notes, n_exact = self.n_notes + other.n_notes, self.n_exact + other.n_exact
        return Counts(space, self.n_labels, tp, fp, fn, n_notes, n_exact)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Counts)
            and (self.space, self.n_labels, self.n_notes) == (other.space, other.n_labels, other.n_notes)
            and self.n_exact == other.n_exact
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("tp", "fp", "fn"))
        )

    @property
    def support(self) -> np.ndarray:
        """The number of true notes of each code."""
        return self.tp + self.fn

    def metrics(self) -> dict[str, float | None]:
        """The metrics that need only these counts, by their names in metrics.json."""
        tp, fp, fn = (getattr(self, name)[None, :].astype(np.float64) for name in ("tp", "fp", "fn"))
        values = micro(tp.sum(1), fp.sum(1), fn.sum(1)) | macro(tp, fp, fn)
        cells = np.array([float(self.n_notes * len(self.space))])
        values["hamming_loss"] = ratio(fp.sum(1) + fn.sum(1), cells)
        values["exact_match"] = np.array([self.n_exact / self.n_notes])
        return {name: None if np.isnan(value[0]) else float(value[0]) for name, value in values.items()}


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, and NaN (undefined; null in files) where bottom is 0."""
    return np.divide(top, bottom, out=np.full(np.broadcast(top, bottom).shape, np.nan), where=bottom > 0)


def micro(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray) -> dict[str, np.ndarray]:
    """Micro precision, recall and F1 of pooled counts, which are arrays of one shape."""
    return {
        "micro_f1": ratio(2 * tp, 2 * tp + fp + fn),
        "micro_precision": ratio(tp, tp + fp),
        "micro_recall": ratio(tp, tp + fn),
    }


def macro(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, n_codes: int | None = None) -> dict[str, np.ndarray]:
    """Means over codes (last axis) of precision, recall and F1, over codes with a true note; `_all` over `n_codes`.

    As in scikit-learn with zero_division=0, a code that is never accepted adds 0 to a mean of precisions, and a code
    that is neither true nor accepted adds 0 to macro_f1_all. `n_codes` includes codes that are not in the arrays
    because they are neither true nor accepted.
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


def _reindex(values: np.ndarray, old: LabelSpace, new: LabelSpace) -> np.ndarray:
    reindexed = np.zeros(len(new), dtype=np.int64)
    reindexed[[new.column(code) for code in old.codes]] = values
    return reindexed
