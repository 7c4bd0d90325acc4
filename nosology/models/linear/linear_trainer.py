"""Training of the linear coder: one linear SVM per code, in parallel processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt
from scipy import sparse

from nosology.core import DataError
from nosology.core.label_space import LabelSpace, column_sums
from nosology.core.parallel import cores, parallel_map
from nosology.core.progress import activity, progress
from nosology.core.settings import Settings
from nosology.models.linear.linear_model import Linear
from nosology.models.linear.tfidf import Tfidf, TfidfSettings, keep_largest
from nosology.models.train import CalibratedTrainer, FittedModel
from nosology.training.examples import Examples, codes_in_labels, label_space
from nosology.training.recipe_settings import Recipe

_PART = 32  # codes per task of a process
_MIN_PARALLEL = 50_000_000  # codes x stored values; below this, starting processes costs more than it saves

Strength = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FitSettings(Settings):
    """How the linear SVMs are fitted."""

    c: list[Strength] = Field([0.3, 1.0, 10.0], min_length=1)  # inverse regularisation
    max_features: list[PositiveInt] = Field([100, 300, 1000, 4000], min_length=1)  # largest weights per code
    choice_codes: int = Field(300, ge=1)  # codes on which values of c and max_features are compared, on dev
    negatives: int = Field(2000, ge=1)  # sampled notes without the code, per code,
    negatives_per_positive: int = Field(10, ge=1)  # or per note with the code, if that is more


class LinearRecipe(Recipe):
    """A recipe of kind `linear`."""

    kind: Literal["linear"] = "linear"
    features: TfidfSettings = TfidfSettings()
    fit: FitSettings = FitSettings()


@dataclass(frozen=True)
class Choice:
    """The settings that are chosen on dev."""

    c: float
    max_features: int


class LinearTrainer(CalibratedTrainer[LinearRecipe, Linear]):
    """Chooses regularisation and sparsity on dev notes."""

    @activity("fitting the linear coder", spinner=False)
    def fit(self, train_notes: Examples, dev_notes: Examples) -> FittedModel[Linear]:
        """A model fitted on train notes; settings are chosen on dev notes."""
        recipe = self.recipe
        labels = label_space(recipe.labels, train_notes.codes)
        gold, dev_gold = labels.encode(train_notes.codes), labels.encode(dev_notes.codes)
        tfidf, vectors = Tfidf.fit(_counted(train_notes), recipe.features)
        dev_vectors = tfidf.transform(dev_notes.texts())
        choice = choose(recipe, vectors, gold, dev_vectors, dev_gold)
        model = fit_linear(recipe, labels, tfidf, vectors, gold, choice)
        dev_codes = codes_in_labels(recipe.labels, labels, dev_notes.codes)
        empty = np.diff(dev_vectors.indptr) == 0
        return FittedModel(model, model.scores(dev_vectors), dev_gold, dev_codes, asdict(choice), empty, choice)

    @activity("fitting the linear coder again", spinner=False)
    def refit(self, notes: Examples, fitted: FittedModel[Linear]) -> Linear:
        """A model fitted on all notes with the settings of an earlier fit."""
        labels = label_space(self.recipe.labels, notes.codes)
        tfidf, vectors = Tfidf.fit(_counted(notes), self.recipe.features)
        return fit_linear(self.recipe, labels, tfidf, vectors, labels.encode(notes.codes), fitted.choice)


def _counted(examples: Examples) -> Iterator[str]:
    """The texts, while the progress of counting their words is shown."""
    return progress(examples.texts(), "counting words", total=len(examples))


def fit_linear(
    recipe: LinearRecipe,
    labels: LabelSpace,
    tfidf: Tfidf,
    vectors: sparse.csr_matrix,
    gold: sparse.csr_matrix,
    choice: Choice,
) -> Linear:
    """The model, not yet calibrated, of training notes.

    tfidf, vectors: the result of `Tfidf.fit`. gold: 0/1 (B, L); each code has at least one note.
    """
    weights, bias = _fit_codes(recipe, vectors, gold, np.arange(len(labels)), choice)
    notes = column_sums(gold).astype(np.int64)
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

    known = np.flatnonzero(column_sums(dev_gold))
    if not len(known) or len(recipe.fit.c) * len(recipe.fit.max_features) == 1:
        return Choice(recipe.fit.c[0], max(recipe.fit.max_features))
    columns = np.sort(np.random.default_rng(recipe.seed).permutation(known)[: recipe.fit.choice_codes])
    target = dev_gold[:, columns].toarray().ravel()
    quality: dict[Choice, float] = {}
    for c in recipe.fit.c:
        weights, bias = _fit_codes(recipe, vectors, gold, columns, Choice(c, max(recipe.fit.max_features)))
        for limit in sorted(recipe.fit.max_features):
            scores = (dev_vectors @ keep_largest(weights.tocsc(), limit).tocsr()).toarray() + bias
            quality[Choice(c, limit)] = float(average_precision_score(target, scores.ravel()))
    return max(quality, key=quality.__getitem__)


def _fit_codes(
    recipe: LinearRecipe, vectors: sparse.csr_matrix, gold: sparse.csr_matrix, columns: np.ndarray, choice: Choice
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Weights (features, len(columns)) and biases of one linear SVM per column."""
    if not vectors.shape[1]:
        raise DataError("the training notes have no word that [features] lets in: nothing can be learned from them")
    vectors, positives = vectors.astype(np.float64), gold.tocsc()  # LIBLINEAR computes in float64
    true = [positives.indices[positives.indptr[column] : positives.indptr[column + 1]] for column in columns]
    # Threads would share LIBLINEAR's one random generator, and the weights would depend on their order.
    workers = cores() if len(columns) * vectors.nnz > _MIN_PARALLEL else 1
    parts = [range(start, min(start + _PART, len(columns))) for start in range(0, len(columns), _PART)]
    arguments = [(recipe, vectors, [(int(columns[i]), true[i]) for i in part], choice) for part in parts]
    codes = (code for part in parallel_map(_fit_part, arguments, workers) for code in part)
    fitted = list(progress(codes, "fitting", total=len(columns), unit="codes"))
    features, values, bias = zip(*fitted)
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in features])])
    shape = (vectors.shape[1], len(columns))
    weights = sparse.csc_matrix((np.concatenate(values), np.concatenate(features), indptr), shape=shape)
    return weights.tocsr(), np.array(bias, dtype=np.float32)


def _fit_part(
    recipe: LinearRecipe, vectors: sparse.csr_matrix, codes: list[tuple[int, np.ndarray]], choice: Choice
) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """The SVMs of some codes; codes: the column and the positive rows of each."""
    return [_fit_code(recipe.fit, vectors, true, choice, (recipe.seed, column)) for column, true in codes]


def _fit_code(
    fit: FitSettings, vectors: sparse.csr_matrix, true: np.ndarray, choice: Choice, seed: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, float]:
    """One linear SVM: its features in ascending order, their weights, and its bias."""
    from sklearn.svm import LinearSVC

    n = vectors.shape[0]
    if len(true) == n:  # no negative note
        return np.empty(0, np.int32), np.empty(0, np.float32), 1.0
    target = np.full(n, -1)
    target[true] = 1
    wanted = max(fit.negatives, fit.negatives_per_positive * len(true))
    if n - len(true) > wanted:
        false = np.random.default_rng(seed).choice(np.flatnonzero(target < 0), wanted, replace=False)
        rows = np.sort(np.concatenate([true, false]))
        vectors, target = vectors[rows], target[rows]
    svm = LinearSVC(C=choice.c, tol=0.1, random_state=0).fit(vectors, target)
    weights = svm.coef_[0]
    used = np.flatnonzero(weights)
    if len(used) > choice.max_features:
        used = np.sort(used[np.argsort(-np.abs(weights[used]), kind="stable")[: choice.max_features]])
    return used.astype(np.int32), weights[used].astype(np.float32), float(svm.intercept_[0])
