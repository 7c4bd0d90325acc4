"""Mutual information of words and codes in train notes (Saha Roy et al. 2024, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from nosology.core.progress import progress

Kind = Literal["mutual_information", "normalised"]  # normalised: divided by the joint entropy

_CELLS = 12_000_000  # codes x words that are dense in memory at once


@dataclass(frozen=True, eq=False)
class Relevance:
    """For each label its most informative words, best first. Those of label j are at bounds[j]:bounds[j + 1]."""

    bounds: np.ndarray  # (L + 1,) int64
    words: np.ndarray  # (N,) uint16 or uint32: token ids
    scores: np.ndarray  # (N,) float32, positive
    size: int  # V, of the vocabulary

    @staticmethod
    def empty() -> Relevance:
        """The relevance for no label."""
        return Relevance(np.zeros(1, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.float32), 0)

    @staticmethod
    def of(
        words: sparse.csr_matrix,
        codes: sparse.csr_matrix,
        kind: Kind = "normalised",
        top: int = 1000,
        *,
        positive: bool = True,
    ) -> Relevance:
        """The relevance of words for codes, from the notes that have them: 0/1 (B, V) and (B, L).

        positive: only words that are more frequent with the code than without it count, because attention must not
        point at evidence against a code. Of words with equal scores the one with the smaller id comes first.
        """
        if words.shape[0] != codes.shape[0]:
            raise ValueError(f"words and codes must be of the same notes; got {words.shape[0]} and {codes.shape[0]}")
        word_notes, code_notes = (np.diff(matrix.tocsc().indptr).astype(np.float64) for matrix in (words, codes))
        of_code, present = codes.T.tocsr(), words.astype(np.int32)

        def joint_counts(part: slice) -> np.ndarray:
            return (of_code[part].astype(np.int32) @ present).toarray()

        return Relevance.of_counts(words.shape[0], word_notes, code_notes, joint_counts, kind, top, positive=positive)

    @staticmethod
    def of_counts(
        n: int,
        word_notes: np.ndarray,
        code_notes: np.ndarray,
        joint_counts: Callable[[slice], np.ndarray],
        kind: Kind = "normalised",
        top: int = 1000,
        *,
        positive: bool = True,
    ) -> Relevance:
        """As `of`, from numbers of notes: `n` in all, with each word (V,), and with each code (L,).

        joint_counts: returns the numbers of notes with each code of a part of the codes and each word (codes, V).
        """
        size = len(word_notes)
        dtype = np.uint16 if size <= 1 << 16 else np.uint32
        ids, scores = [np.empty(0, dtype)], [np.empty(0, np.float32)]
        bounds = [0]
        step = max(1, _CELLS // max(1, size))
        for first in progress(range(0, len(code_notes), step), "mutual information", unit=f"parts of {step} codes"):
            part = slice(first, first + step)
            for both, with_code in zip(joint_counts(part), code_notes[part]):
                is_positive = both * float(n) > with_code * word_notes  # int32 would overflow
                candidates = np.flatnonzero(is_positive if positive else word_notes)
                value = _information(both[candidates], word_notes[candidates], with_code, n, kind)
                best = np.argsort(-value, kind="stable")[:top]
                best = best[value[best] > 0]
                ids.append(candidates[best].astype(dtype))
                scores.append(value[best].astype(np.float32))
                bounds.append(bounds[-1] + len(best))
        return Relevance(np.array(bounds), np.concatenate(ids), np.concatenate(scores), size)

    def __len__(self) -> int:
        """L, the number of labels."""
        return len(self.bounds) - 1

    def best(self, label: int, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The words and scores of a label, strongest first."""
        part = slice(self.bounds[label], self.bounds[label + 1])
        return self.words[part][:limit], self.scores[part][:limit]

    def matrix(self) -> sparse.csr_matrix:
        """Scores (L, V)."""
        parts = (self.scores.copy(), self.words.astype(np.int32), self.bounds.copy())
        matrix = sparse.csr_matrix(parts, shape=(len(self), self.size))
        matrix.sort_indices()
        return matrix

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields as arrays, for `from_arrays`."""
        return {"bounds": self.bounds, "words": self.words, "scores": self.scores, "size": np.array([self.size])}

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray]) -> Relevance:
        """The relevance that `arrays` described."""
        return Relevance(arrays["bounds"], arrays["words"], arrays["scores"], int(arrays["size"][0]))


def _information(together: np.ndarray, with_word: np.ndarray, with_code: float, n: int, kind: Kind) -> np.ndarray:
    """The mutual information, in nats, of a code with words, from numbers of notes; float64.

    together: notes with both (W,); with_word: (W,). Normalised: divided by the entropy of both together.
    """
    cells = np.stack([together, with_word - together, with_code - together, n - with_word - with_code + together]) / n
    word, code = with_word / n, with_code / n
    alone = np.stack([word * code, word * (1 - code), (1 - word) * code, (1 - word) * (1 - code)])
    logs = np.log(cells, out=np.zeros_like(cells), where=cells > 0)
    gain = np.sum(cells * (logs - np.log(alone, out=np.zeros_like(alone), where=cells > 0)), axis=0)
    if kind == "mutual_information":
        return gain
    entropy = -np.sum(cells * logs, axis=0)
    return np.divide(gain, entropy, out=np.zeros_like(gain), where=entropy > 0)
