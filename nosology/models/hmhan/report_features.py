"""What HMHAN reads of a report: token ids, metadata columns, and word features with a linear SVM per code.

A few hundred reports have ten thousand different words and pairs. A linear SVM generalises well on them; AdamW does
not, because it updates a word seen once as much as any other (docs/log.md). So the SVMs are fitted before the net, and
the net learns the remainder. In training the net gets held-out SVM scores: scores of an SVM that was fitted on the same
report would leave the net nothing to learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from nosology.encoders.tokenizers import Encoding
from nosology.text.report_text import context_features, positioned_features
from nosology.text.tokens import tokenize
from nosology.training.calibration import ScoreCalibration

_MAX_VALUES = 50  # of a categorical column; rarer values are unknown
_MAX_Z_SCORE = 10.0  # larger values are probably typing errors and must not dominate
_MAX_NUMBER = 1e12
_ABSENT_SCORE = -1.0  # SVM score of a code without a training report: the margin of a clear negative


@dataclass(frozen=True, slots=True)
class EncodedReport(Encoding):
    """A report as input of the net."""

    columns: np.ndarray  # (C,) float32
    features: np.ndarray  # (K,) int64
    values: np.ndarray  # (K,) float32


@dataclass(frozen=True)
class MetadataColumns:
    """Metadata of a note as a vector: numbers as z-scores, categorical values one-hot, each with an "unknown" flag."""

    numbers: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> mean, standard deviation
    choices: dict[str, list[str]] = field(default_factory=dict)  # name -> values

    @classmethod
    def fit(
        cls, extras: Iterable[Mapping[str, Any]], numbers: Sequence[str], choices: Sequence[str]
    ) -> MetadataColumns:
        """Columns with means, deviations and values of training notes; a column without any value is dropped."""
        extras = list(extras)
        scales, categories = {}, {}
        for name in numbers:
            values = [value for extra in extras if (value := _number(extra.get(name))) is not None]
            if values:
                scales[name] = (float(np.mean(values)), float(np.std(values)) or 1.0)
        for name in choices:
            values = [str(value) for extra in extras if (value := extra.get(name)) not in (None, "")]
            if values:
                names, counts = np.unique(values, return_counts=True)
                categories[name] = sorted(names[np.argsort(-counts, kind="stable")[:_MAX_VALUES]].tolist())
        return cls(scales, categories)

    def __len__(self) -> int:
        return 2 * len(self.numbers) + sum(1 + len(values) for values in self.choices.values())

    def vector(self, extra: Mapping[str, Any]) -> np.ndarray:
        """The vector (C,), float32, of a note's `extra`; missing and new values are unknown."""
        parts: list[float] = []
        for name, (mean, deviation) in self.numbers.items():
            number = _number(extra.get(name))
            if number is None:
                parts += [0.0, 1.0]
            else:
                parts += [min(max((number - mean) / deviation, -_MAX_Z_SCORE), _MAX_Z_SCORE), 0.0]
        for name, values in self.choices.items():
            choice = str(extra.get(name))
            parts += [float(choice == value) for value in values]
            parts.append(float(choice not in values))
        return np.array(parts, dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MetadataColumns:
        return cls({name: (pair[0], pair[1]) for name, pair in value["numbers"].items()}, value["choices"])


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _MAX_NUMBER else None


@dataclass(frozen=True)
class WordFeatures:
    """TF-IDF of words and word pairs, marked with their context (negated ...). Ids start at 1; 0 is padding."""

    names: list[str]
    scale: np.ndarray  # (F,) inverse document frequency
    pairs: bool = True

    @classmethod
    def fit(cls, texts: Iterable[str], min_notes: int, max_features: int, pairs: bool = True) -> WordFeatures:
        """The features of at least `min_notes` training notes, at most `max_features`, the most frequent first."""
        counts: Counter[str] = Counter()
        notes = 0
        for text in texts:
            counts.update(set(context_features(text, pairs=pairs)))
            notes += 1
        names = sorted(name for name, count in counts.items() if count >= min_notes)
        if len(names) > max_features:
            names = sorted(sorted(names, key=lambda name: (-counts[name], name))[:max_features])
        frequency = np.array([counts[name] for name in names], dtype=np.float64)
        return cls(names, (np.log((1 + notes) / (1 + frequency)) + 1).astype(np.float32), pairs)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names, 1)}

    def vector(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The feature ids (K,) of a text, ascending, and their values (K,), which have L2 norm 1."""
        present = {self._ids.get(name, 0) for name in context_features(text, pairs=self.pairs)}
        ids = np.array(sorted(present - {0}), dtype=np.int64)
        values = self.scale[ids - 1]
        return ids, values / max(float(np.linalg.norm(values)), 1e-6)

    def contributions(self, text: str, weights: np.ndarray) -> np.ndarray:
        """What each word adds (W, C) to the scores under weights (F, C); a feature is divided among its positions."""
        positions: dict[int, list[int]] = {}
        for name, position in positioned_features(text, pairs=self.pairs):
            if name in self._ids:
                positions.setdefault(self._ids[name], []).append(position)
        contributions = np.zeros((len(tokenize(text)), weights.shape[1]))
        for number, value in zip(*self.vector(text)):
            for position in positions[number]:
                contributions[position] += value * weights[number - 1] / len(positions[number])
        return contributions

    def to_json(self) -> dict[str, Any]:
        return {"names": self.names, "scale": self.scale.tolist(), "pairs": self.pairs}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WordFeatures:
        return cls(value["names"], np.array(value["scale"], dtype=np.float32), value["pairs"])


@dataclass(frozen=True)
class WordSvms:
    """Calibrated linear SVMs over word features: logits = x @ weights + bias."""

    weights: np.ndarray  # (F, L) float32
    bias: np.ndarray  # (L,) float32
    held_out_logits: np.ndarray  # (B, L) float32, of the training reports by SVMs that were not fitted on them


def fit_word_svms(
    reports: Sequence[EncodedReport],
    descriptions: Sequence[EncodedReport],
    features: int,
    gold: sparse.csr_matrix,
    fold: np.ndarray,
    candidates: list[float],
) -> WordSvms:
    """One linear SVM per code, fitted on training reports; gold: 0/1 (B, L); fold: (B,) the fold of each report.

    descriptions: the encoded description of each label. Each is an additional training report with one code, which
    helps codes with one or two reports.
    candidates: values of C. The one with the best pooled average precision of held-out scores is used.
    """
    from sklearn.metrics import average_precision_score

    dense = gold.toarray().astype(bool)
    x = word_matrix([*reports, *descriptions], features)
    targets = np.concatenate([dense, np.eye(len(descriptions), dtype=bool)])
    folds = np.concatenate([fold, np.full(len(descriptions), -1)])  # -1: descriptions are never held out
    scores = {c: _held_out_scores(x, targets, folds, c)[: len(dense)] for c in candidates}
    best = max(candidates, key=lambda c: float(average_precision_score(dense.ravel(), scores[c].ravel())))
    weights, bias = _fit_svms(x, targets, best)
    notes = np.maximum(dense.sum(0), 1)
    curve = ScoreCalibration.fit(scores[best], gold, notes)
    slope, shift = curve.score + curve.both * np.log(notes), curve.intercept + curve.log_notes * np.log(notes)
    slope = np.maximum(slope, 0.1)  # keeps logits monotonic in the score
    return WordSvms(
        (weights * slope).astype(np.float32),
        (bias * slope + shift).astype(np.float32),
        (scores[best] * slope + shift).astype(np.float32),
    )


def word_matrix(reports: Sequence[EncodedReport], features: int) -> sparse.csr_matrix:
    """The word features of reports (B, F)."""
    indptr = np.cumsum([0, *(len(report.features) for report in reports)])
    columns = np.concatenate([report.features for report in reports]) - 1
    values = np.concatenate([report.values for report in reports])
    return sparse.csr_matrix((values, columns, indptr), shape=(len(reports), features))


def _held_out_scores(x: sparse.csr_matrix, targets: np.ndarray, fold: np.ndarray, c: float) -> np.ndarray:
    """Scores (B, L) of each fold by SVMs fitted on the other folds."""
    scores = np.zeros(targets.shape)
    for number in np.unique(fold[fold >= 0]):
        held_out = fold == number
        weights, bias = _fit_svms(sparse.csr_matrix(x[~held_out]), targets[~held_out], c)
        scores[held_out] = x[held_out] @ weights + bias
    return scores


def _fit_svms(x: sparse.csr_matrix, targets: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights (F, L) and bias (L,) of one linear SVM per code."""
    from sklearn.svm import LinearSVC

    weights, bias = np.zeros((x.shape[1], targets.shape[1])), np.full(targets.shape[1], _ABSENT_SCORE)
    for label in range(targets.shape[1]):
        target = targets[:, label]
        if 0 < target.sum() < len(target):
            svm = LinearSVC(C=c, random_state=0).fit(x, target)
            weights[:, label], bias[label] = svm.coef_[0], svm.intercept_[0]
        elif target.any():
            bias[label] = -_ABSENT_SCORE
    return weights, bias
