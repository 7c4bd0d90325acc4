"""Which words of a note are evidence, told by their letters and neighbours, in phrases never seen as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from scipy import sparse
from scipy.special import expit

from nosology.core import Evidence, Note
from nosology.text.context import context_flags
from nosology.text.phrases import TokenizedNote
from nosology.text.stems import word_keys
from nosology.text.tokens import Tokens

TAGS = ("inside", "begin", "end")
_BUCKETS = 1 << 18  # of hashed features
_MOST_NOTES = 1000  # that it learns from
_OUTSIDE = "_"


@dataclass(frozen=True)
class Tagger:
    """P(word is inside evidence, begins it, ends it) = sigmoid(weights . features + bias), the features 0/1."""

    weights: np.ndarray  # (TAGS, buckets)
    bias: np.ndarray  # (TAGS,)

    @classmethod
    def fit(cls, notes: Sequence[Note], spans: Sequence[Sequence[Evidence]]) -> Tagger | None:
        """The tagger that notes and their evidence teach; None where no word is evidence, or all are."""
        from sklearn.linear_model import LogisticRegression

        readings = [TokenizedNote.from_text(note.text) for note in notes[:_MOST_NOTES]]
        rows = sparse.vstack([_features(reading, note.text) for reading, note in zip(readings, notes)]).tocsr()
        targets = np.concatenate([_tags(reading, items) for reading, items in zip(readings, spans)], axis=1)
        if any(own.all() or not own.any() for own in targets):
            return None
        fitted = [LogisticRegression(solver="liblinear", tol=0.02, max_iter=1000).fit(rows, own) for own in targets]
        weights = np.concatenate([one.coef_ for one in fitted]).astype(np.float32)
        return cls(weights, np.concatenate([one.intercept_ for one in fitted]).astype(np.float32))

    def probabilities(self, reading: TokenizedNote, text: str) -> np.ndarray:
        """Probabilities (TAGS, T) of a note's T words."""
        return expit((_features(reading, text) @ self.weights.T).T + self.bias[:, None])


def _tags(reading: TokenizedNote, items: Sequence[Evidence]) -> np.ndarray:
    """Which words are what: boolean (TAGS, T); evidence in pieces begins with the first and ends with the last."""
    found = np.zeros((len(TAGS), len(reading.words)), dtype=bool)
    for item in items:
        for start, end in item.extra.get("spans") or [(item.start, item.end)]:
            found[0] |= (reading.starts >= start) & (reading.starts < end)
        own = np.flatnonzero((reading.starts >= item.start) & (reading.starts < item.end))
        if len(own):
            found[1, own[0]] = found[2, own[-1]] = True
    return found


def _features(reading: TokenizedNote, text: str) -> sparse.csr_matrix:
    """0/1 (T, buckets): what each word and its neighbours are, hashed the same way in every process."""
    rows = [sorted({crc32(name.encode()) % _BUCKETS for name in names}) for names in _names(reading, text)]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    columns = np.array([column for row in rows for column in row], dtype=np.int32)
    return sparse.csr_matrix((np.ones(len(columns), np.float32), columns, bounds), shape=(len(rows), _BUCKETS))


def _names(reading: TokenizedNote, text: str) -> Iterator[list[str]]:
    """For each word the names of its features."""
    words, sentence, n = reading.words, reading.sentence, len(reading.words)
    keys = [word_keys(word)[0] for word in words]
    starts, ends = reading.starts.tolist(), reading.ends.tolist()
    marks = context_flags(text, Tokens(words, reading.starts, reading.ends))

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
