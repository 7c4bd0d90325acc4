"""The first stage of two-stage inference: a cheap linear scorer retrieves candidate codes of a note.

score(note, code) = sum over the note's distinct words of weight(word, code) + bias(code). A weight comes from how much
more often the word stands in train notes with the code, and from the code's description; the bias grows with the
number of train notes. A code without train notes is retrieved by its description only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

_FIRST = 2  # ids below are the pad and the unknown word, which carry no information
_SMOOTHING = 30.0  # notes with the code as any other notes are, added to those that were seen
_WORDS = 30  # per code: with more, unspecific words dominate
_CODES = 512  # whose counts are in memory at once
_HELD = 0.1  # share of the notes on which the parts are weighed,
_BLOCKS = 10  # in so many stretches, since notes of a patient often stand together,
_MOST_HELD = 500  # but no more notes than that
_MAX_CANDIDATES = 300  # candidates a note at which recall is compared
_DESCRIPTION, _PRIOR, _UNSEEN = (0.0, 0.25, 0.5, 0.75, 1.0), (0.1, 0.3, 0.6, 0.9, 1.2), (0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class CandidateRetriever:
    """Weights of words and codes; V words, L codes."""

    weights: sparse.csr_matrix  # (V, L) float32
    bias: np.ndarray  # (L,) float32
    rarity: np.ndarray  # (V,) float32: what a word of a description is worth
    unseen: float  # the length of the weights of a code that has its description alone

    @classmethod
    def fit(cls, ids: Sequence[np.ndarray], gold: sparse.csr_matrix, texts: np.ndarray) -> CandidateRetriever:
        """The retriever of train notes.

        ids: word ids (T,) of each note; gold: 0/1 (B, L); texts: (L, words) word ids of descriptions, pads at the end.
        The weights of the parts are tuned on a tenth of the notes; the counts are then taken from all notes.
        """
        words = 1 + max([int(texts.max(initial=0)), *(int(note.max(initial=0)) for note in ids)])
        present, gold = _presence(ids, words), gold.tocsr().astype(np.float32)
        held = _held_out_mask(len(ids))
        parts = _Parts.of(present[~held], gold[~held], texts)
        part_weights = parts.tune(present[held], gold[held])
        return _Parts.of(present, gold, texts).combine(part_weights)

    def retrieve(self, ids: np.ndarray, k: int) -> np.ndarray:
        """The columns (k,) of the codes with the highest scores for a note (T,) of word ids, best first."""
        found = self.scores(ids)
        k = min(k, len(found))
        chosen = np.argpartition(-found, k - 1)[:k] if k else np.empty(0, np.int64)
        return chosen[np.argsort(-found[chosen], kind="stable")]

    def scores(self, ids: np.ndarray) -> np.ndarray:
        """Scores (L,) of a note (T,) of word ids; words that were not there when it was made are passed over."""
        words = np.unique(ids)
        words = words[(words >= _FIRST) & (words < self.weights.shape[0])]
        rows = self.weights[words]
        return self.bias + np.bincount(rows.indices, rows.data, minlength=len(self.bias)).astype(np.float32)

    def for_codes(self, kept: Sequence[int], texts: np.ndarray) -> CandidateRetriever:
        """The retriever of other codes: kept[j] is the column code j had, -1 for one that is new.

        texts: (len(kept), words) word ids of their descriptions; a new code is proposed by them.
        """
        kept = np.asarray(kept, dtype=np.int64)
        old = kept >= 0
        place = np.flatnonzero(old)
        shape = (self.weights.shape[1], len(kept))
        moved = self.weights @ sparse.csr_matrix((np.ones(len(place), np.float32), (kept[old], place)), shape=shape)
        new = _description_weights(np.where(old[:, None], 0, texts), self.rarity) * np.float32(self.unseen)
        bias = np.where(old, self.bias[kept], np.float32(0)) if len(self.bias) else np.zeros(len(kept), np.float32)
        return CandidateRetriever((moved + new).tocsr(), bias.astype(np.float32), self.rarity, self.unseen)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that the retriever is made of, by name."""
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
        weights.check_format()  # an index out of range would read beyond the arrays
        return cls(weights, bias, rarity, float(arrays["unseen"][0]))


@dataclass(frozen=True)
class _PartWeights:
    """How much each part counts; the first three are relative to a spread of 1 of the first."""

    own: float
    description: float
    prior: float
    unseen: float


@dataclass(frozen=True)
class _Parts:
    """What words say, by counts and by descriptions, each a vector of length 1 a code, and how frequent codes are."""

    own: sparse.csr_matrix  # (V, L)
    description: sparse.csr_matrix  # (V, L)
    prior: np.ndarray  # (L,)
    rarity: np.ndarray  # (V,)

    @staticmethod
    def of(present: sparse.csr_matrix, gold: sparse.csr_matrix, texts: np.ndarray) -> _Parts:
        """The parts for notes (B, V) of 0/1 with codes (B, L)."""
        notes = np.asarray(gold.sum(0)).ravel()
        prior = np.log1p(notes).astype(np.float32)
        rarity = _rarity(present, texts)
        return _Parts(_association_weights(present, gold, notes), _description_weights(texts, rarity), prior, rarity)

    def tune(self, present: sparse.csr_matrix, gold: sparse.csr_matrix) -> _PartWeights:
        """The weights of the parts that propose most of the true codes of notes that the parts were not made of."""
        seen = self.prior > 0
        own, description = (present @ self.own).toarray(), (present @ self.description).toarray()
        spread = [float(part[:, seen].std()) or 1.0 if seen.any() and len(own) else 1.0 for part in (own, description)]
        own, description, prior = own / spread[0], description / spread[1], self.prior / (self.prior.std() or 1.0)
        k = max(1, min(_MAX_CANDIDATES, gold.shape[1] // 20))

        def recall(a: float, b: float, u: float) -> int:
            scores = own + np.where(seen, a, u).astype(np.float32) * description + np.float32(b) * prior
            return _recalled(scores, gold, k)

        a, b = max(((a, b) for a in _DESCRIPTION for b in _PRIOR), key=lambda pair: recall(*pair, 0.0))
        u = max(_UNSEEN, key=lambda u: recall(a, b, u))
        return _PartWeights(1 / spread[0], a / spread[1], b / float(self.prior.std() or 1.0), u / spread[1])

    def combine(self, by: _PartWeights) -> CandidateRetriever:
        """One matrix of weights."""
        weights = (self.own * np.float32(by.own) + self.description * np.float32(by.description)).tocsr()
        weights.sum_duplicates()
        return CandidateRetriever(weights, (by.prior * self.prior).astype(np.float32), self.rarity, by.unseen)


def _presence(ids: Sequence[np.ndarray], words: int) -> sparse.csr_matrix:
    """Which words stand in each note: 0/1 (B, V), pads and unknown words left out."""
    rows = [np.unique(note[note >= _FIRST]).astype(np.int32) for note in ids]
    ends = np.cumsum([0, *map(len, rows)])
    indices = np.concatenate(rows) if rows else np.empty(0, np.int32)
    return sparse.csr_matrix((np.ones(len(indices), np.float32), indices, ends), shape=(len(rows), words))


def _held_out_mask(notes: int) -> np.ndarray:
    """True (B,) for some stretches of the notes."""
    place = np.arange(notes) * _BLOCKS / max(1, notes) % 1
    return place >= 1 - min(_HELD, _MOST_HELD / max(1, notes))


def _rarity(present: sparse.csr_matrix, texts: np.ndarray) -> np.ndarray:
    """What a word of a description is worth (V,): it should be rare in notes, and rare in descriptions."""
    notes = np.asarray(present.sum(0)).ravel()
    described = np.asarray(_presence(list(texts), present.shape[1]).sum(0)).ravel()
    worth = np.log((present.shape[0] + 1) / (notes + 1)) * np.log((len(texts) + 1) / (described + 1))
    return worth.astype(np.float32)


def _description_weights(texts: np.ndarray, rarity: np.ndarray) -> sparse.csr_matrix:
    """Weights (V, L) from descriptions (L, words): each word by its rarity, a code's vector of length 1."""
    known = np.where(texts < len(rarity), texts, 0)
    return _unit(_presence(list(known), len(rarity)) @ sparse.diags(rarity)).T.tocsr()


def _association_weights(present: sparse.csr_matrix, gold: sparse.csr_matrix, notes: np.ndarray) -> sparse.csr_matrix:
    """Weights (V, L) from counts: of each code its words of largest log-likelihood ratio, a vector of length 1."""
    share = np.asarray(present.sum(0)).ravel() / max(1, present.shape[0])
    columns, parts = gold.tocsc(), []
    for start in range(0, gold.shape[1], _CODES):
        counts = (columns[:, start : start + _CODES].T @ present).tocsr()
        code = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr)) + start
        usual = share[counts.indices]
        among = (counts.data + _SMOOTHING * usual) / (notes[code] + _SMOOTHING)
        counts.data = np.maximum(counts.data * np.log(among / usual), 0).astype(np.float32)
        parts.append(_unit(_largest(counts, _WORDS)))
    return sparse.vstack(parts).T.tocsr() if parts else sparse.csr_matrix((present.shape[1], 0), dtype=np.float32)


def _largest(rows: sparse.csr_matrix, kept: int) -> sparse.csr_matrix:
    """The matrix with only the `kept` largest of each row, in place."""
    for start, end in zip(rows.indptr[:-1], rows.indptr[1:]):
        if end - start > kept:
            part = rows.data[start:end]
            part[np.argpartition(-part, kept)[kept:]] = 0
    rows.eliminate_zeros()
    return rows


def _unit(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    """The matrix with every row of length 1, or 0 where it is empty."""
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    return (sparse.diags((1 / np.where(length > 0, length, 1)).astype(np.float32)) @ rows).tocsr()


def _recalled(scores: np.ndarray, gold: sparse.csr_matrix, k: int) -> int:
    """How many true codes are among the `asked` best of their notes (B, L)."""
    if not len(scores) or not scores.shape[1]:
        return 0
    least = np.partition(scores, -k, axis=1)[:, -k]
    rows, columns = gold.nonzero()
    return int((scores[rows, columns] >= least[rows]).sum())
