"""The federated linear coder: document frequencies, features and gradients of the SVMs are sums over sites.

The features of a code are chosen by hashed sums of the vectors of its notes. Then all SVMs are trained together: in
each round the sites add the losses and gradients of their notes, and the server takes a step of L-BFGS. The sums do not
depend on how notes are divided among sites, so the coder is the one of all notes together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import numpy as np
from scipy import sparse

from nosology.core.label_space import column_sums
from nosology.federated.federation_settings import FederatedLinearRecipe
from nosology.federated.rounds import label_lbfgs
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup
from nosology.federated.rounds.hashed_counts import (
    ROWS,
    estimates,
    hash_pairs,
    hashed_sum,
    pack_names,
    unpack_names,
)
from nosology.federated.rounds.statistics_learner import (
    COUNTS,
    FIND,
    NAMES,
    ItemCounts,
    Limits,
    StatisticsLearner,
    StatisticsSite,
)
from nosology.models.linear.linear_model import Linear
from nosology.models.linear.tfidf import SHORT_SHARE, Tfidf
from nosology.text.tokens import words_of
from nosology.training.calibration import PlattScaling, ScoreCalibration

LENGTHS, PAIRS, STEP, CALIBRATE = "lengths", "pairs", "step", "calibrate"
_TFIDF = ("words", "word_pairs", "scale", "shortest")
_PAIR_BUCKETS = 4  # times statistics.buckets: there are more pairs of features and codes than words
_LENGTHS = np.geomspace(0.1, 1e5, 7000)  # edges of the histogram of vector lengths, 0.2% apart
_SCORES = np.round(np.arange(-200, 201) / 50, 2)  # edges of the histogram of scores
_NOTE_BINS = 96  # of numbers of notes per code, four per doubling
_BLOCK = 64  # codes whose gradients are computed together


def read_tfidf(arrays: Mapping[str, np.ndarray]) -> Tfidf:
    """The vectoriser of the shared words."""
    words = unpack_names(arrays["words"])
    return Tfidf(words, arrays["word_pairs"], arrays["scale"], float(arrays["shortest"][0]))


def weight_matrix(support: np.ndarray, weights: np.ndarray, features: int) -> sparse.csr_matrix:
    """The weights (features, L); support: (L, K) the features of each label, -1 for none; weights: (L, K)."""
    label, place = np.nonzero(support >= 0)
    cells = (weights[label, place].astype(np.float32), (support[label, place], label))
    return sparse.csr_matrix(cells, shape=(features, len(support)))


def note_bins(notes: np.ndarray) -> np.ndarray:
    """The bin (L,) of numbers of notes (L,)."""
    return np.minimum((4 * np.log2(np.maximum(notes, 1))).astype(np.int64), _NOTE_BINS - 1)


@dataclass
class LinearSite(StatisticsSite):
    """The notes of a hospital for the linear coder."""

    _vectors: dict[str, sparse.csr_matrix] = field(default_factory=dict)  # by split
    _digest: str = ""  # of the words of these vectors

    def read_items(self, recipe: FederatedLinearRecipe) -> list[set[str]]:
        """The words of each train note, and its pairs of neighbouring words."""
        items, with_pairs = [], bool(recipe.features.pair_weight and recipe.features.max_pairs)
        for text in self.examples["train"].texts():
            words = words_of(text)
            pairs = {f"{first} {second}" for first, second in pairwise(words)} if with_pairs else set()
            items.append(set(words) | pairs)
        return items

    def compute(self, stage: str, arrays: Arrays, recipe: FederatedLinearRecipe) -> np.ndarray:
        """The vector of the site."""
        if stage == LENGTHS:
            lengths = read_tfidf(arrays).lengths(self.examples["train"].texts())
            return np.histogram(lengths[lengths > 0], _LENGTHS)[0].astype(np.float64)
        if stage == PAIRS:
            return self._pairs(arrays, recipe)
        return self._gradient(arrays, recipe) if stage == STEP else self._score_counts(arrays)

    def _transformed(self, arrays: Arrays, split: str) -> sparse.csr_matrix:
        """The vectors (B, features) of a split, computed once."""
        digest = hashlib.sha256(b"".join(arrays[name].tobytes() for name in _TFIDF)).hexdigest()
        if self._digest != digest:
            self._vectors, self._digest = {}, digest
        if split not in self._vectors:
            self._vectors[split] = read_tfidf(arrays).transform(self.examples[split].texts())
        return self._vectors[split]

    def _pairs(self, arrays: Arrays, recipe: FederatedLinearRecipe) -> np.ndarray:
        """Hashed sums over the notes of each code of the vectors, and the sum of all vectors."""
        vectors = self._transformed(arrays, "train").astype(np.float64)
        sums = (vectors.T @ self.gold("train").astype(np.float64)).tocoo()
        buckets = _PAIR_BUCKETS * recipe.statistics.buckets
        hashed = hashed_sum(hash_pairs(sums.row, sums.col), sums.data, buckets)
        return np.concatenate([hashed, column_sums(vectors)])

    def _gradient(self, arrays: Arrays, recipe: FederatedLinearRecipe) -> np.ndarray:
        """The gradients (L, K + 1) of the squared hinge losses, then the losses (L,); 0 for codes that are not used."""
        vectors, support, point = self._transformed(arrays, "train"), arrays["support"], arrays["point"]
        gradient, losses = np.zeros_like(point), np.zeros(len(point))
        used, columns = np.flatnonzero(self.label_mask), vectors.T.tocsr().astype(np.float64)
        gold = self.gold("train").tocsc()
        weights = weight_matrix(support, point[:, :-1], vectors.shape[1]).tocsc()
        for part in (used[at : at + _BLOCK] for at in range(0, len(used), _BLOCK)):
            sign = np.where(gold[:, part].toarray() > 0, 1.0, -1.0)
            margin = 1 - sign * ((vectors @ weights[:, part]).toarray() + point[part, -1])
            hinge = np.maximum(margin, 0)
            slope = -2 * recipe.statistics.c * sign * hinge
            dense = columns @ slope  # (features, part)
            gradient[part, :-1] = np.where(support[part] >= 0, dense[support[part], np.arange(len(part))[:, None]], 0)
            gradient[part, -1] = slope.sum(0)
            losses[part] = recipe.statistics.c * (hinge**2).sum(0)
        return np.concatenate([gradient.ravel(), losses])

    def _scores(self, arrays: Arrays, split: str) -> tuple[np.ndarray, np.ndarray]:
        """The scores (B, L) of a split, and which notes (B,) have no known word."""
        vectors, best = self._transformed(arrays, split), arrays["best"]
        weights = weight_matrix(arrays["support"], best[:, :-1], vectors.shape[1])
        scores = (vectors @ weights).toarray() + best[:, -1].astype(np.float32)
        return scores.astype(np.float32), np.diff(vectors.indptr) == 0

    def _score_counts(self, arrays: Arrays) -> np.ndarray:
        """Histograms of the scores of dev notes by number of notes of the code: of true and of false cells."""
        scores, _ = self._scores(arrays, "dev")
        gold, used = self.gold("dev").toarray().astype(bool), self.label_mask
        cells = note_bins(arrays["coded"]) * (len(_SCORES) + 1) + np.searchsorted(_SCORES, scores)
        size = _NOTE_BINS * (len(_SCORES) + 1)
        parts = (cells[:, used][gold[:, used]], cells[:, used][~gold[:, used]])
        return np.concatenate([np.bincount(part, minlength=size) for part in parts]).astype(np.float64)

    def logits(self, weights: Arrays, recipe: FederatedLinearRecipe, split: str) -> np.ndarray:
        """Calibrated logits (B, L)."""
        scores, empty = self._scores(weights, split)
        intercept, score, log_notes, both = weights["calibration"]
        log_counts = np.log(np.maximum(weights["coded"], 1))
        logits = scores * (score + both * log_counts) + (intercept + log_notes * log_counts)
        logits[empty] = -np.inf
        return logits.astype(np.float32)


class LinearLearner(StatisticsLearner[LinearSite, FederatedLinearRecipe]):
    """One linear SVM per code."""

    preprocessing, site_class = "words and pairs of words", LinearSite

    @property
    def inputs_name(self) -> str:
        """Words."""
        return "read as words"

    def stages(self) -> list[str]:
        """Agreement on words, features of each code, steps of the training, calibration."""
        return [FIND, NAMES, COUNTS, LENGTHS, PAIRS, *[STEP] * self.recipe.federation.rounds, CALIBRATE]

    def phase_name(self, number: int) -> str:
        """The stage; empty for a step of the training, which has a loss."""
        stage = super().phase_name(number)
        return "" if stage == STEP else stage

    def request(self, stage: str, state: Arrays) -> Arrays:
        """The arrays that a site needs for a stage; the history of L-BFGS stays at the server."""
        if stage in (FIND, NAMES, COUNTS):
            return state
        wanted = {STEP: ("support", "point"), CALIBRATE: ("support", "best", "coded")}.get(stage, ())
        return {name: state[name] for name in (*_TFIDF, *wanted)}

    def vector_size(self, stage: str, state: Arrays, setup: FederationSetup) -> int:
        """The length of the vector of a stage."""
        labels = len(setup.labels)
        return {
            LENGTHS: len(_LENGTHS) - 1,
            PAIRS: ROWS * _PAIR_BUCKETS * self.recipe.statistics.buckets + len(state.get("scale", ())),
            STEP: labels * (self.recipe.statistics.features + 2),
            CALIBRATE: 2 * _NOTE_BINS * (len(_SCORES) + 1),
        }[stage]

    def limits(self, stage: str, state: Arrays, total: np.ndarray, notes: int, sites: int) -> Limits:
        """The smallest and the largest possible sums."""
        if stage == LENGTHS:
            return 0.0, float(notes)
        if stage == PAIRS:  # values of a vector are at most 1
            features = len(state["scale"])
            return 0.0, np.repeat([np.inf, float(notes)], [len(total) - features, features])
        if stage == STEP:
            largest = np.concatenate(
                [self._largest_gradients(total, state, notes), np.full(len(state["point"]), np.inf)]
            )
            return np.where(np.isinf(largest), 0.0, -largest), largest
        return super().limits(stage, state, total, notes, sites)

    def _largest_gradients(self, total: np.ndarray, state: Arrays, notes: int) -> np.ndarray:
        """The largest absolute gradients (L x (K + 1),) of notes with these losses (Cauchy-Schwarz inequality)."""
        losses, width = np.maximum(total[state["point"].size :], 0), state["point"].shape[1]
        return np.repeat(2 * np.sqrt(self.recipe.statistics.c * notes * losses), width) * (1 + 1e-3)

    def merge_counts(self, state: Arrays, items: list[str], counts: ItemCounts, setup: FederationSetup) -> Arrays:
        """The vectoriser, and the number of notes of each code."""
        notes = dict(zip(items, counts.notes.tolist()))
        words = {item: n for item, n in notes.items() if " " not in item}
        pairs = {(pair[0], pair[1]): n for item, n in notes.items() if len(pair := item.split(" ")) == 2}
        tfidf = Tfidf.from_counts(words, pairs, counts.total, self.recipe.features)
        return {
            "words": pack_names(tfidf.words),
            "word_pairs": tfidf.pairs,
            "scale": tfidf.scale,
            "shortest": np.zeros(1),
            "coded": counts.coded,
            "notes": np.array([counts.total]),
        }

    def merge_sum(self, stage: str, state: Arrays, total: np.ndarray, setup: FederationSetup) -> Arrays:
        """The state after a stage."""
        if stage == LENGTHS:
            known = np.cumsum(total)
            place = int(np.searchsorted(known, SHORT_SHARE * known[-1], "right")) if known[-1] else 0
            return state | {"shortest": _LENGTHS[[min(place, len(_LENGTHS) - 1)]]}
        if stage == PAIRS:
            support = self._support(total, state)
            return state | {"support": support} | label_lbfgs.start(len(support), support.shape[1] + 1)
        if stage == STEP:
            return self._step(state, total)
        return {name: state[name] for name in (*_TFIDF, "support", "best", "coded")} | {
            "calibration": self._calibration(state, total)
        }

    def _support(self, total: np.ndarray, state: Arrays) -> np.ndarray:
        """The features (L, K) whose mean over the notes of a code exceeds that of all notes most; -1 for none."""
        features, size = len(state["scale"]), self.recipe.statistics.features
        hashed, mean = total[:-features], total[-features:] / state["notes"][0]
        buckets, numbers = _PAIR_BUCKETS * self.recipe.statistics.buckets, np.arange(features)
        support = np.full((len(state["coded"]), size), -1, dtype=np.int32)
        for label, coded in enumerate(np.maximum(state["coded"], 1).tolist()):
            sums = estimates(hashed, hash_pairs(numbers, np.full(features, label)), buckets)
            excess = np.where(sums > 0, sums / coded - mean, -np.inf)
            best = np.argsort(-excess, kind="stable")[:size]
            best = best[np.isfinite(excess[best])]
            support[label, : len(best)] = best
        return support

    def _step(self, state: Arrays, total: np.ndarray) -> Arrays:
        """The state after a step of L-BFGS. The penalty is half the square of weights and biases, as in LIBLINEAR."""
        point = state["point"]
        gradient, losses = total[: point.size].reshape(point.shape), total[point.size :]
        penalised = losses + (point**2).sum(1) / 2
        new = label_lbfgs.advance(state, penalised, gradient + point)
        return state | new | {"loss": np.array([losses.sum() / (self.recipe.statistics.c * state["notes"][0])])}

    def _calibration(self, state: Arrays, total: np.ndarray) -> np.ndarray:
        """The four numbers of the calibration."""
        true, false = np.maximum(np.rint(total), 0).reshape(2, -1)
        middles = np.concatenate([_SCORES[:1], (_SCORES[:-1] + _SCORES[1:]) / 2, _SCORES[-1:]])
        notes = np.maximum(state["coded"], 1)
        bins, log_of_bin = note_bins(notes), np.zeros(_NOTE_BINS)
        for number in np.unique(bins):
            log_of_bin[number] = np.log(notes[bins == number]).mean()
        scores, log_notes = np.tile(middles, _NOTE_BINS), np.repeat(log_of_bin, len(middles))
        return np.array(list(asdict(ScoreCalibration.fit_counts(scores, log_notes, true, false, notes)).values()))

    def build_model(
        self, setup: FederationSetup, weights: Mapping[str, np.ndarray], calibration: PlattScaling
    ) -> Linear:
        """The coder of the last stage."""
        tfidf, best = read_tfidf(weights), weights["best"]
        matrix = weight_matrix(weights["support"], best[:, :-1], len(tfidf))
        fitted = ScoreCalibration(*weights["calibration"].tolist())
        notes = np.maximum(weights["coded"], 1)
        return Linear(setup.labels, notes, tfidf, matrix, best[:, -1].astype(np.float32), fitted)
