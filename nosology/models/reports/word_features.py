"""Word features of reports, and a linear SVM per code over them.

A few hundred reports have ten thousand different words and pairs. A linear SVM generalises well on them; AdamW does
not, because it updates a word seen once as much as any other (docs/log.md). So the SVMs are fitted before the nets, and
the nets learn the remainder. In training a net gets held-out SVM scores: scores of an SVM that was fitted on the same
report would leave the net nothing to learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from nosology.models.hmhan.report_features import EncodedReport
from nosology.text.report_text import context_features, is_word_feature, positioned_features
from nosology.text.tokens import tokenize
from nosology.training.calibration import ScoreCalibration

_ABSENT_SCORE = -1.0  # SVM score of a code without a training report: the margin of a clear negative


@dataclass(frozen=True, slots=True)
class WordReport(EncodedReport):
    """A report as input of the nets and of the SVMs."""

    features: np.ndarray  # (K,) int64
    values: np.ndarray  # (K,) float32


@dataclass(frozen=True)
class WordFeatures:
    """TF-IDF of words and word pairs, marked with their context (negated ...). Ids start at 1; 0 is padding."""

    names: list[str] = field(default_factory=list)
    scale: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))  # (F,) inverse document frequency
    pairs: bool = True
    unknown_scale: float = 0.0  # the scale of a word that is no feature; 0 in bundles of version 0.2

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        min_notes: int,
        max_features: int,
        pairs: bool = True,
        descriptions: Sequence[str] = (),
    ) -> WordFeatures:
        """The features of at least `min_notes` training notes, at most `max_features`, the most frequent first.

        descriptions: of codes. Each is an additional training note, without a section.
        """
        counts: Counter[str] = Counter(
            name for text in descriptions for name in set(context_features(text, pairs=pairs, by_section=False))
        )
        notes = len(descriptions)
        for text in texts:
            counts.update(set(context_features(text, pairs=pairs)))
            notes += 1
        names = sorted(name for name, count in counts.items() if count >= min_notes)
        if len(names) > max_features:
            names = sorted(sorted(names, key=lambda name: (-counts[name], name))[:max_features])
        frequency = np.array([counts[name] for name in names], dtype=np.float64)
        scale = (np.log((1 + notes) / (1 + frequency)) + 1).astype(np.float32)
        return cls(names, scale, pairs, float(np.log((1 + notes) / 2) + 1))  # an unknown word is in one note: this one

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names, 1)}

    def vector(self, text: str, *, by_section: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The feature ids (K,) of a text, ascending, and their values (K,).

        Their L2 norm is 1, or less if the text has unknown words: otherwise the only known word of a text would have a
        value, and so an SVM score, that no word of a training note has. by_section: features with their section, too.
        """
        names = set(context_features(text, pairs=self.pairs, by_section=by_section))
        ids = np.array(sorted(self._ids[name] for name in names if name in self._ids), dtype=np.int64)
        values = self.scale[ids - 1]
        unknown = sum(is_word_feature(name) and name not in self._ids for name in names)
        norm = float(np.hypot(np.linalg.norm(values), self.unknown_scale * unknown**0.5))
        return ids, values / np.float32(max(norm, 1e-6))

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
        return {
            "names": self.names,
            "scale": self.scale.tolist(),
            "pairs": self.pairs,
            "unknown_scale": self.unknown_scale,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WordFeatures:
        scale = np.array(value["scale"], dtype=np.float32)
        return cls(value["names"], scale, value["pairs"], value.get("unknown_scale", 0.0))


@dataclass(frozen=True)
class WordSvms:
    """Calibrated linear SVMs over word features: logits = x @ weights + bias."""

    weights: np.ndarray  # (F, L) float32
    bias: np.ndarray  # (L,) float32

    @classmethod
    def empty(cls, labels: int) -> WordSvms:
        """SVMs without word features: all logits are 0."""
        return cls(np.zeros((0, labels), np.float32), np.zeros(labels, np.float32))

    def logits(self, reports: Sequence[Any]) -> np.ndarray:
        """Logits (B, L), float32, of reports with word features."""
        return word_matrix(reports, len(self.weights)) @ self.weights + self.bias


def fit_word_svms(
    reports: Sequence[WordReport],
    descriptions: Sequence[WordReport],
    features: int,
    gold: sparse.csr_matrix,
    fold: np.ndarray,
    candidates: list[float],
) -> tuple[WordSvms, np.ndarray]:
    """One linear SVM per code, fitted on training reports, and logits (B, L) of SVMs not fitted on the report itself.

    gold: 0/1 (B, L). fold: (B,) the fold of each report. candidates: values of C. The one with the best pooled average
    precision of held-out scores is used. descriptions: the encoded description of each label. Each is an additional
    training report with one code, which helps codes with one or two reports.
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
    svms = WordSvms((weights * slope).astype(np.float32), (bias * slope + shift).astype(np.float32))
    return svms, (scores[best] * slope + shift).astype(np.float32)


def word_matrix(reports: Sequence[WordReport], features: int) -> sparse.csr_matrix:
    """The word features of reports (B, F)."""
    indptr = np.cumsum([0, *(len(report.features) for report in reports)])
    columns = np.concatenate([np.empty(0, np.int64), *(report.features for report in reports)]) - 1
    values = np.concatenate([np.empty(0, np.float32), *(report.values for report in reports)])
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
