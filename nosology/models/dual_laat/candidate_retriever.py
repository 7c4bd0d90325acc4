"""The first stage of two-stage inference: a cheap linear scorer retrieves candidate codes of a note.

score(note, code) = sum over the note's distinct words of weight(word, code) + bias(code). A weight depends on how much
more often train notes with the code contain the word, and on the code's description; the bias grows with the number of
train notes of the code. A code without train notes is retrieved by its description only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.core.label_space import column_sums
from nosology.encoders.tokenizers import SPECIALS
from nosology.models.linear.tfidf import keep_largest

_SMOOTHING = 30.0  # notes with average word frequencies that are added to the notes of each code
_WORDS = 30  # per code: with more, unspecific words dominate
_CODES = 512  # whose counts are in memory at once
_TUNE_SHARE = 0.1  # of the notes, on which the weights of the parts are tuned
_TUNE_BLOCKS = 10  # of consecutive notes: notes of a patient are often neighbours
_MAX_TUNE_NOTES = 500
_MAX_CANDIDATES = 300  # per note, at which recall is compared
_DESCRIPTION, _PRIOR, _UNSEEN = (0.0, 0.25, 0.5, 0.75, 1.0), (0.1, 0.3, 0.6, 0.9, 1.2), (0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class CandidateRetriever:
    """Weights of words and codes; V words, L codes."""

    weights: sparse.csr_matrix  # (V, L) float32
    bias: np.ndarray  # (L,) float32
    rarity: np.ndarray  # (V,) float32: weight of a word in a description
    unseen: float  # norm of the weights of a code without train notes

    @classmethod
    def fit(cls, ids: Sequence[np.ndarray], gold: sparse.csr_matrix, texts: np.ndarray) -> CandidateRetriever:
        """The retriever of train notes.

        ids: word ids (T,) of each note; gold: 0/1 (B, L); texts: (L, words) word ids of descriptions, padded.
        The weights of the parts are tuned on a tenth of the notes; the counts are then taken from all notes.
        """
        words = 1 + max([int(texts.max(initial=0)), *(int(note.max(initial=0)) for note in ids)])
        present, gold = _presence(ids, words), gold.tocsr().astype(np.float32)
        position = np.arange(len(ids)) * _TUNE_BLOCKS / max(1, len(ids)) % 1  # within a block
        held_out = position >= 1 - min(_TUNE_SHARE, _MAX_TUNE_NOTES / max(1, len(ids)))
        weights = _ScoreParts.of(present[~held_out], gold[~held_out], texts).tune(present[held_out], gold[held_out])
        return _ScoreParts.of(present, gold, texts).combine(*weights)

    def retrieve(self, ids: np.ndarray, k: int) -> np.ndarray:
        """The columns (k,) of the codes with the highest scores for a note (T,) of word ids, best first."""
        scores = self.scores(ids)
        k = min(k, len(scores))
        columns = np.argpartition(-scores, k - 1)[:k] if k else np.empty(0, np.int64)
        return columns[np.argsort(-scores[columns], kind="stable")]

    def scores(self, ids: np.ndarray) -> np.ndarray:
        """Scores (L,) of a note (T,) of word ids; ids that were not seen during training are ignored."""
        words = np.unique(ids)
        words = words[(words >= SPECIALS) & (words < self.weights.shape[0])]
        rows = self.weights[words]
        return self.bias + np.bincount(rows.indices, rows.data, minlength=len(self.bias)).astype(np.float32)

    def for_codes(self, columns: Sequence[int], texts: np.ndarray) -> CandidateRetriever:
        """The retriever of other codes: code j was column columns[j], or is new (-1).

        texts: (len(columns), words) word ids of their descriptions; a new code is retrieved by them.
        """
        old = np.asarray(columns, dtype=np.int64)
        known = old >= 0
        place = np.flatnonzero(known)
        shape = (self.weights.shape[1], len(old))
        moved = self.weights @ sparse.csr_matrix((np.ones(len(place), np.float32), (old[known], place)), shape=shape)
        new = _description_weights(np.where(known[:, None], 0, texts), self.rarity) * np.float32(self.unseen)
        bias = np.zeros(len(old), np.float32)
        bias[known] = self.bias[old[known]]
        return CandidateRetriever((moved + new).tocsr(), bias, self.rarity, self.unseen)

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields as arrays, for `from_arrays`."""
        return {
            "data": self.weights.data,
            "indices": self.weights.indices.astype(np.int32),
            "indptr": self.weights.indptr.astype(np.int64),
            "bias": self.bias,
            "rarity": self.rarity,
            "unseen": np.array([self.unseen], dtype=np.float32),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> CandidateRetriever:
        """The retriever that `arrays` described."""
        bias, rarity = arrays["bias"], arrays["rarity"]
        parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
        weights = sparse.csr_matrix(parts, shape=(len(rarity), len(bias)))
        weights.check_format()  # an index out of range would read outside the arrays
        return cls(weights, bias, rarity, float(arrays["unseen"][0]))


@dataclass(frozen=True)
class _ScoreParts:
    """The parts of a score. The weights of each code are a vector of length 1."""

    association: sparse.csr_matrix  # (V, L) from words in notes
    description: sparse.csr_matrix  # (V, L)
    prior: np.ndarray  # (L,) log frequencies of codes
    rarity: np.ndarray  # (V,)

    @staticmethod
    def of(present: sparse.csr_matrix, gold: sparse.csr_matrix, texts: np.ndarray) -> _ScoreParts:
        """The parts for notes (B, V) of 0/1 with codes (B, L)."""
        notes = column_sums(gold)
        prior = np.log1p(notes).astype(np.float32)
        rarity = _rarity(present, texts)
        association, description = _association_weights(present, gold, notes), _description_weights(texts, rarity)
        return _ScoreParts(association, description, prior, rarity)

    def tune(self, present: sparse.csr_matrix, gold: sparse.csr_matrix) -> tuple[float, float, float, float]:
        """The weights of association, description, prior, and description of unseen codes with the highest recall.

        present, gold: held-out notes (B, V) and (B, L).
        """
        seen = self.prior > 0
        association, description = ((present @ part).toarray() for part in (self.association, self.description))
        has_spread = seen.any() and len(association)
        spread = [float(part[:, seen].std()) or 1.0 if has_spread else 1.0 for part in (association, description)]
        prior_spread = float(self.prior.std()) or 1.0
        association, description = association / spread[0], description / spread[1]
        prior, k = self.prior / prior_spread, max(1, min(_MAX_CANDIDATES, gold.shape[1] // 20))

        def recall(a: float, b: float, u: float) -> int:
            scores = association + np.where(seen, a, u).astype(np.float32) * description + np.float32(b) * prior
            return _recalled(scores, gold, k)

        a, b = max(((a, b) for a in _DESCRIPTION for b in _PRIOR), key=lambda pair: recall(*pair, 0.0))
        u = max(_UNSEEN, key=lambda u: recall(a, b, u))
        return 1 / spread[0], a / spread[1], b / prior_spread, u / spread[1]

    def combine(self, association: float, description: float, prior: float, unseen: float) -> CandidateRetriever:
        """The retriever with the weighted sum of the parts."""
        weights = (self.association * np.float32(association) + self.description * np.float32(description)).tocsr()
        weights.sum_duplicates()
        return CandidateRetriever(weights, (prior * self.prior).astype(np.float32), self.rarity, unseen)


def _presence(ids: Sequence[np.ndarray], words: int) -> sparse.csr_matrix:
    """The words of each note: 0/1 (B, V), without padding and unknown words."""
    rows = [np.unique(note[note >= SPECIALS]).astype(np.int32) for note in ids]
    ends = np.cumsum([0, *map(len, rows)])
    indices = np.concatenate(rows) if rows else np.empty(0, np.int32)
    return sparse.csr_matrix((np.ones(len(indices), np.float32), indices, ends), shape=(len(rows), words))


def _rarity(present: sparse.csr_matrix, texts: np.ndarray) -> np.ndarray:
    """The weight of a word in a description (V,): high if it is rare in notes and in descriptions."""
    notes = column_sums(present)
    described = column_sums(_presence(list(texts), present.shape[1]))
    rarity = np.log((present.shape[0] + 1) / (notes + 1)) * np.log((len(texts) + 1) / (described + 1))
    return rarity.astype(np.float32)


def _description_weights(texts: np.ndarray, rarity: np.ndarray) -> sparse.csr_matrix:
    """Weights (V, L) from descriptions (L, words): words by their rarity."""
    known = np.where(texts < len(rarity), texts, 0)
    return _unit(_presence(list(known), len(rarity)) @ sparse.diags(rarity)).T.tocsr()


def _association_weights(present: sparse.csr_matrix, gold: sparse.csr_matrix, notes: np.ndarray) -> sparse.csr_matrix:
    """Weights (V, L) from counts: the words of each code with the largest log-likelihood ratios."""
    share = column_sums(present) / max(1, present.shape[0])
    columns, parts = gold.tocsc(), []
    for start in range(0, gold.shape[1], _CODES):
        counts = (columns[:, start : start + _CODES].T @ present).tocsr()
        code = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr)) + start
        overall = share[counts.indices]
        with_code = (counts.data + _SMOOTHING * overall) / (notes[code] + _SMOOTHING)
        counts.data = np.maximum(counts.data * np.log(with_code / overall), 0).astype(np.float32)
        parts.append(_unit(keep_largest(counts, _WORDS)))
    return sparse.vstack(parts).T.tocsr() if parts else sparse.csr_matrix((present.shape[1], 0), dtype=np.float32)


def _unit(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    """The matrix with rows of length 1; empty rows stay empty."""
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    return (sparse.diags((1 / np.where(length > 0, length, 1)).astype(np.float32)) @ rows).tocsr()


def _recalled(scores: np.ndarray, gold: sparse.csr_matrix, k: int) -> int:
    """The number of gold codes among the k highest scores of their notes (B, L)."""
    if not len(scores) or not scores.shape[1]:
        return 0
    least = np.partition(scores, -k, axis=1)[:, -k]
    rows, columns = gold.nonzero()
    return int((scores[rows, columns] >= least[rows]).sum())
