"""The linear coder: TF-IDF vectors and one linear support vector machine a code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt
from safetensors.numpy import load_file, save
from scipy import sparse

from nosology.core import DataError, EvidenceSpan
from nosology.core.label_space import LabelSpace
from nosology.core.progress import progress
from nosology.core.settings import Settings
from nosology.models.linear.tfidf import Tfidf, TfidfSettings
from nosology.models.spans import best_spans
from nosology.training.calibration import ScoreCalibration
from nosology.training.recipe_settings import Recipe

_PART = 32  # codes that a process takes at a time
_WORTH_PROCESSES = 50_000_000  # codes x stored values; below this, starting processes costs more than it saves


Strength = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FitSettings(Settings):
    """How the machines are fitted."""

    c: list[Strength] = Field([0.3, 1.0, 10.0], min_length=1)  # inverse regularisation
    max_features: list[PositiveInt] = Field([100, 300, 1000, 4000], min_length=1)  # weights kept a code, the largest
    choice_codes: int = Field(300, ge=1)  # of several values above the best on dev is taken, over so many codes
    negatives: int = Field(2000, ge=1)  # a code with more notes without it learns from this many of them,
    negatives_per_positive: int = Field(10, ge=1)  # or from so many for each note with it, if that is more


class LinearRecipe(Recipe):
    """What a recipe of kind `linear` may say."""

    kind: Literal["linear"] = "linear"
    features: TfidfSettings = TfidfSettings()
    fit: FitSettings = FitSettings()


@dataclass(frozen=True)
class Linear:
    """score = x . w + b with x the note's TF-IDF vector; probability = calibration(score)."""

    labels: LabelSpace
    notes: np.ndarray  # (L,) training notes of each code
    tfidf: Tfidf
    weights: sparse.csr_matrix  # (features, L)
    bias: np.ndarray  # (L,)
    calibration: ScoreCalibration | None = None

    kind = "linear"

    def scores(self, vectors: sparse.csr_matrix) -> np.ndarray:
        """Scores (B, L) of vectors (B, features)."""
        return (vectors @ self.weights).toarray() + self.bias

    def probabilities(self, texts: Iterable[str]) -> np.ndarray:
        """Probabilities (B, L) of the model's codes for notes; a note without a known word has none (zeros)."""
        return self.vector_probabilities(self.tfidf.transform(texts))

    def vector_probabilities(self, vectors: sparse.csr_matrix) -> np.ndarray:
        """The same (B, L) of vectors (B, features)."""
        if self.calibration is None:
            raise ValueError("the model must be calibrated before it gives probabilities")
        found = self.calibration(self.scores(vectors), self.notes)
        found[np.diff(vectors.indptr) == 0] = 0
        return found

    def contributions(self, text: str, columns: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What each token adds to the score of each column (T, columns), and where the tokens start and end (T,).

        A word's part is shared among its occurrences, a pair's part between its two words; over all tokens the parts
        add up to score - bias.
        """
        found = self.tfidf.occurrences(text)
        vector = self.tfidf.transform([text])
        value = np.zeros(len(self.tfidf), dtype=np.float32)
        value[vector.indices] = vector.data
        times = np.bincount(found.features, minlength=len(self.tfidf))[found.features]
        parts = self.weights[found.features][:, columns].toarray() * (value[found.features] / times)[:, None]
        total = np.zeros((len(found.tokens), len(columns)))
        for offset in (0, 1):  # a pair's second token
            covers = found.length > offset
            np.add.at(total, found.first[covers] + offset, parts[covers] / found.length[covers, None])
        return total, found.tokens.starts, found.tokens.ends

    def evidence(self, text: str, columns: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each column, the stretches of the note that add most to its score, strongest first."""
        total, starts, ends = self.contributions(text, columns)
        return [best_spans(text, total[:, i], starts, ends, limit) for i in range(len(columns))]

    def save(self, folder: Path) -> None:
        """Writes model.json and model.safetensors."""
        described = {
            "codes": self.labels.to_json(),
            "words": self.tfidf.words,
            "shortest": self.tfidf.shortest,
            "calibration": self.calibration.to_json() if self.calibration else None,
        }
        (folder / "model.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
        arrays = {
            "notes": self.notes,
            "pairs": self.tfidf.pairs,
            "scale": self.tfidf.scale,
            "bias": self.bias,
            "weights.data": self.weights.data,
            "weights.indices": self.weights.indices,
            "weights.indptr": self.weights.indptr,
        }
        packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        (folder / "model.safetensors").write_bytes(packed)  # save_file would not say OSError when the disk is full

    @classmethod
    def load(cls, folder: Path) -> Linear:
        """The model that `save` wrote."""
        described = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / "model.safetensors")
        labels = LabelSpace(described["codes"])
        tfidf = Tfidf(described["words"], arrays["pairs"], arrays["scale"], described["shortest"])
        weights = sparse.csr_matrix(
            tuple(arrays[f"weights.{part}"] for part in ("data", "indices", "indptr")), shape=(len(tfidf), len(labels))
        )
        calibration = ScoreCalibration(**described["calibration"]) if described["calibration"] else None
        return cls(labels, arrays["notes"], tfidf, weights, arrays["bias"], calibration)

    def calibrated(self, vectors: sparse.csr_matrix, gold: sparse.csr_matrix) -> Linear:
        """This model with its calibration fitted on notes that it was not trained on; gold: 0/1 (B, L)."""
        return replace(self, calibration=ScoreCalibration.fit(self.scores(vectors), gold, self.notes))


@dataclass(frozen=True)
class Choice:
    """The settings that dev decides on."""

    c: float
    max_features: int


def fit_linear(
    recipe: LinearRecipe,
    labels: LabelSpace,
    tfidf: Tfidf,
    vectors: sparse.csr_matrix,
    gold: sparse.csr_matrix,
    choice: Choice,
) -> Linear:
    """The model, not yet calibrated, of training notes.

    tfidf, vectors: what `Tfidf.fit` made of the notes. gold: 0/1 (B, L), each code with a true note at least.
    """
    weights, bias = _fit_codes(recipe, vectors, gold, np.arange(len(labels)), choice)
    notes = np.asarray(gold.sum(0)).ravel().astype(np.int64)
    return Linear(labels, notes, tfidf, weights, bias)


def choose(
    recipe: LinearRecipe,
    vectors: sparse.csr_matrix,
    gold: sparse.csr_matrix,
    dev_vectors: sparse.csr_matrix,
    dev_gold: sparse.csr_matrix,
) -> Choice:
    """The settings with the best pooled average precision on dev, over a sample of the codes that dev has."""
    from sklearn.metrics import average_precision_score

    known = np.flatnonzero(np.asarray(dev_gold.sum(0)).ravel())
    if not len(known) or len(recipe.fit.c) * len(recipe.fit.max_features) == 1:
        return Choice(recipe.fit.c[0], max(recipe.fit.max_features))
    columns = np.sort(np.random.default_rng(recipe.seed).permutation(known)[: recipe.fit.choice_codes])
    target = dev_gold[:, columns].toarray().ravel()
    quality: dict[Choice, float] = {}
    for c in recipe.fit.c:
        weights, bias = _fit_codes(recipe, vectors, gold, columns, Choice(c, max(recipe.fit.max_features)))
        for kept in sorted(recipe.fit.max_features):
            scores = (dev_vectors @ _largest(weights, kept)).toarray() + bias
            quality[Choice(c, kept)] = float(average_precision_score(target, scores.ravel()))
    return max(quality, key=quality.__getitem__)


def _largest(weights: sparse.csr_matrix, kept: int) -> sparse.csr_matrix:
    """The weights (features, L) with only the `kept` largest of each column."""
    columns = weights.tocsc()
    for start, end in zip(columns.indptr[:-1], columns.indptr[1:]):
        if end - start > kept:
            part = columns.data[start:end]
            part[np.argpartition(-np.abs(part), kept)[kept:]] = 0
    columns.eliminate_zeros()
    return columns.tocsr()


def _fit_codes(
    recipe: LinearRecipe, vectors: sparse.csr_matrix, gold: sparse.csr_matrix, columns: np.ndarray, choice: Choice
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Weights (features, len(columns)) and biases of one machine a column."""
    from joblib import Parallel, delayed

    if not vectors.shape[1]:
        raise DataError("the training notes have no word that [features] lets in: nothing can be learned from them")
    vectors, positives = vectors.astype(np.float64), gold.tocsc()  # LIBLINEAR computes in float64
    true = [positives.indices[positives.indptr[column] : positives.indptr[column + 1]] for column in columns]
    # Threads would share LIBLINEAR's one random generator, and the weights would depend on their order.
    workers = (os.cpu_count() or 1) if len(columns) * vectors.nnz > _WORTH_PROCESSES else 1
    parts = [range(start, min(start + _PART, len(columns))) for start in range(0, len(columns), _PART)]
    with Parallel(n_jobs=workers, return_as="generator") as pool:
        work = delayed(_fit_part)
        results = pool(work(recipe, vectors, [(int(columns[i]), true[i]) for i in part], choice) for part in parts)
        fitted = [
            one for part in progress(results, "fitting", total=len(parts), unit=f"x {_PART} codes") for one in part
        ]
    features, values, bias = zip(*fitted)
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in features])])
    shape = (vectors.shape[1], len(columns))
    weights = sparse.csc_matrix((np.concatenate(values), np.concatenate(features), indptr), shape=shape)
    return weights.tocsr(), np.array(bias, dtype=np.float32)


def _fit_part(
    recipe: LinearRecipe, vectors: sparse.csr_matrix, codes: list[tuple[int, np.ndarray]], choice: Choice
) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """The machines of some codes, given as column and rows of the notes that have it."""
    return [_fit_code(recipe.fit, vectors, true, choice, (recipe.seed, column)) for column, true in codes]


def _fit_code(
    fit: FitSettings, vectors: sparse.csr_matrix, true: np.ndarray, choice: Choice, seed: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, float]:
    """One machine: the features it uses in ascending order, their weights, and its bias."""
    from sklearn.svm import LinearSVC

    n = vectors.shape[0]
    if len(true) == n:  # nothing to tell apart
        return np.empty(0, np.int32), np.empty(0, np.float32), 1.0
    target = np.full(n, -1)
    target[true] = 1
    wanted = max(fit.negatives, fit.negatives_per_positive * len(true))
    if n - len(true) > wanted:
        false = np.random.default_rng(seed).choice(np.flatnonzero(target < 0), wanted, replace=False)
        rows = np.sort(np.concatenate([true, false]))
        vectors, target = vectors[rows], target[rows]
    machine = LinearSVC(C=choice.c, tol=0.1, random_state=0).fit(vectors, target)
    weights = machine.coef_[0]
    used = np.flatnonzero(weights)
    if len(used) > choice.max_features:
        used = np.sort(used[np.argsort(-np.abs(weights[used]), kind="stable")[: choice.max_features]])
    return used.astype(np.int32), weights[used].astype(np.float32), float(machine.intercept_[0])
