"""A tagger that predicts which words of a note are evidence from their letters and neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
from scipy import sparse

from nosology.core import Evidence, Note
from nosology.models.lexicon.logistic_regression import fit_logistic_regressions
from nosology.text.context import context_flags
from nosology.text.phrases import TokenizedNote
from nosology.text.stems import word_keys

TAGS = ("inside", "begin", "end")
_BUCKETS = 1 << 18  # of hashed features
MAX_NOTES = 1000  # that it is trained on
_OUTSIDE = "_"


@dataclass(frozen=True)
class Tagger:
    """P(word is inside evidence, begins it, ends it) = sigmoid(weights . features + bias); features are 0 or 1."""

    weights: np.ndarray  # (TAGS, buckets)
    bias: np.ndarray  # (TAGS,)

    @classmethod
    def fit(cls, notes: Sequence[Note], evidence: Sequence[Sequence[Evidence]]) -> Tagger | None:
        """The tagger trained on notes and their evidence; None if no word is evidence, or all are."""
        return cls.fit_words([tagged_words(note, items) for note, items in zip(notes[:MAX_NOTES], evidence)])

    @classmethod
    def fit_words(cls, notes: Sequence[TaggedWords]) -> Tagger | None:
        """The tagger trained on the words of notes and their gold tags."""
        rows = sparse.vstack([note.features for note in notes]).tocsr()
        targets = np.concatenate([note.tags for note in notes], axis=1)
        if any(target.all() or not target.any() for target in targets):
            return None
        return cls(*fit_logistic_regressions(rows, targets))

    def probabilities(self, tokenized: TokenizedNote, text: str) -> np.ndarray:
        """Probabilities (TAGS, T) of a note's T words."""
        from scipy.special import expit  # takes long to import, and only trained lexicons need it

        return expit((_features(tokenized, text) @ self.weights.T).T + self.bias[:, None])


class TaggedWords(NamedTuple):
    """The features (T, buckets) of the T words of a note and their gold tags (TAGS, T)."""

    features: sparse.csr_matrix
    tags: np.ndarray


def tagged_words(note: Note, evidence: Sequence[Evidence], tokenized: TokenizedNote | None = None) -> TaggedWords:
    """What the tagger learns from a note; tokenized: its words, if they are known."""
    words = TokenizedNote.from_text(note.text) if tokenized is None else tokenized
    return TaggedWords(_features(words, note.text), _tags(words, evidence))


def _tags(tokenized: TokenizedNote, items: Sequence[Evidence]) -> np.ndarray:
    """The gold tags, boolean (TAGS, T); discontinuous evidence begins with its first part and ends with its last."""
    tags = np.zeros((len(TAGS), len(tokenized.words)), dtype=bool)
    for item in items:
        for start, end in item.extra.get("spans") or [(item.start, item.end)]:
            tags[0] |= (tokenized.tokens.starts >= start) & (tokenized.tokens.starts < end)
        words = np.flatnonzero((tokenized.tokens.starts >= item.start) & (tokenized.tokens.starts < item.end))
        if len(words):
            tags[1, words[0]] = tags[2, words[-1]] = True
    return tags


def _features(tokenized: TokenizedNote, text: str) -> sparse.csr_matrix:
    """0/1 (T, buckets): hashed features of each word and its neighbours; crc32 is the same in every process."""
    rows = [sorted({crc32(name.encode()) % _BUCKETS for name in names}) for names in _names(tokenized, text)]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    columns = np.array([column for row in rows for column in row], dtype=np.int32)
    return sparse.csr_matrix((np.ones(len(columns), np.float32), columns, bounds), shape=(len(rows), _BUCKETS))


def _names(tokenized: TokenizedNote, text: str) -> Iterator[list[str]]:
    """The names of the features of each word."""
    words, sentence, n = tokenized.words, tokenized.sentence, len(tokenized.words)
    keys = [word_keys(word)[0] for word in words]
    starts, ends = tokenized.starts, tokenized.ends
    marks = context_flags(text, tokenized.tokens)

    def at(here: int, there: int, of: list[str]) -> str:
        return of[there] if 0 <= there < n and sentence[there] == sentence[here] else _OUTSIDE

    for i, (word, key) in enumerate(zip(words, keys)):
        before, after = at(i, i - 1, keys), at(i, i + 1, keys)
        closer = text[ends[i] : starts[i + 1]].strip()[:2] if i + 1 < n else "$"
        opener = text[ends[i - 1] : starts[i]].strip()[-2:] if i else "^"
        written = text[starts[i] : ends[i]]
        yield [
            f"key {key}", f"-1 {before}", f"+1 {after}", f"-2 {at(i, i - 2, keys)}", f"+2 {at(i, i + 2, keys)}",
            f"word {word}", *(f"ends {word[-k:]}" for k in (3, 4, 5)), *(f"starts {word[:k]}" for k in (3, 4, 5)),
            f"-1 0 {before} {key}", f"0 +1 {key} {after}", f"-1 +1 {before} {after}",
            f"+1 ends {at(i, i + 1, words)[-3:]}", f"-1 ends {at(i, i - 1, words)[-3:]}",
            f"closer {closer}", f"opener {opener}",
            f"closer {closer[:1]} {at(i, i + 1, words)}", f"opener {opener[-1:]} {at(i, i - 1, words)}",
            f"capitals {written.isupper()}", f"digits {word.isdigit()}",
            *(f"mark {c}" for c in np.flatnonzero(marks[:, i])),
        ]  # fmt: skip
