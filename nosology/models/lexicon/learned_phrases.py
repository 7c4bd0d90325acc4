"""Phrases learned from coded notes: how often each occurs, and how often it was coded with which code.

Notes with evidence spans give their spans. Notes without evidence give phrases that are associated with a code by the
log-likelihood ratio (G2, Dunning 1993).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from nosology.core import Code, Evidence, Note
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mentions import surface
from nosology.models.lexicon.tagger import Tagger
from nosology.text.data import function_words
from nosology.text.phrases import PhraseIndex, TokenizedNote, phrase_keys
from nosology.text.stems import word_keys

NEAR = 10  # characters by which an end of a mention may miss that of the evidence
_CODES_A_PHRASE = 6


class KeyCounts(NamedTuple):
    """Occurrences of a word: all, inside evidence, and inside evidence by ICD category."""

    seen: int
    inside: int
    categories: dict[str, int]


@dataclass(frozen=True)
class LearnedPhrases:
    """P phrases over C codes: phrase p was seen seen[p] times, coded[e] times as entry_code[e] for its entries e.

    surfaces: the same for phrases as they were written: seen, and the codes with their counts.
    keys: what single words say, for phrases that were never seen; so does the tagger, from the words around them.
    notes: (C,) training notes of each code.
    """

    index: PhraseIndex
    codes: list[Code]
    bounds: np.ndarray  # (P + 1,)
    entry_code: np.ndarray
    coded: np.ndarray
    seen: np.ndarray  # (P,)
    surfaces: dict[str, tuple[int, dict[int, int]]]
    keys: dict[str, KeyCounts]
    notes: np.ndarray
    n_notes: int
    tagger: Tagger | None = None

    @cached_property
    def column(self) -> dict[Code, int]:
        """code -> its place in `codes`."""
        return {code: i for i, code in enumerate(self.codes)}

    @cached_property
    def padded(self) -> bool:
        """Whether the notes write injuries without a seventh character, but with the X before it: W19.XXX."""
        return any(code.code[-1] == "X" for code in self.codes)

    def entries(self, phrase: int) -> list[tuple[int, int]]:
        """The codes of a phrase (numbers) and how often it was coded so, the most frequent first."""
        own = slice(self.bounds[phrase], self.bounds[phrase + 1])
        return list(zip(self.entry_code[own].tolist(), self.coded[own].tolist()))


def learn_from_evidence(
    notes: Sequence[Note], systems: Iterable[str], gap: int, *, tagger: bool = True
) -> LearnedPhrases:
    """What notes with evidence teach: every phrase that is evidence somewhere, counted over all notes; and a tagger."""
    wanted = set(systems)
    spans = [[item for item in note.evidence if item.code.system in wanted] for note in notes]
    phrases: dict[tuple[str, ...], Counter[Code]] = defaultdict(Counter)
    for note, items in zip(notes, spans):
        for item in items:
            if keys := phrase_keys(evidence_text(note.text, item)):
                phrases[keys][item.code] += 1
    ordered = sorted(phrases)
    index = PhraseIndex.build(ordered)
    seen = np.zeros(len(ordered), dtype=np.int64)
    surfaces: dict[str, list[Any]] = {}
    counts: list[Counter[Code]] = [Counter() for _ in ordered]
    for note, items in zip(notes, spans):
        reading = TokenizedNote.from_text(note.text)
        for hit in index.find(reading, gap):
            seen[hit.phrase] += 1
            row = surfaces.setdefault(surface(reading, hit.places), [0, Counter()])
            row[0] += 1
            start, end = int(reading.starts[hit.places[0]]), int(reading.ends[hit.places[-1]])
            for code in {item.code for item in items if is_same_span(start, end, item)}:
                counts[hit.phrase][code] += 1
                row[1][code] += 1
    for keys, own in zip(ordered, counts):
        for code in phrases[keys]:
            own[code] = max(own[code], 1)  # evidence in pieces that lie too far is_separate for the index
    found = pack_counts(index, counts, seen, surfaces, _key_counts(notes, spans), notes, wanted)
    return replace(found, tagger=Tagger.fit(notes, spans)) if tagger else found


def _key_counts(notes: Sequence[Note], spans: Sequence[Sequence[Evidence]]) -> dict[str, KeyCounts]:
    """For each key of the notes how often it stands inside evidence, and of what."""
    seen: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    categories: dict[str, Counter[str]] = defaultdict(Counter)
    empty = function_words()
    for note, items in zip(notes, spans):
        reading = TokenizedNote.from_text(note.text)
        pieces = [
            (start, end, item.code.code[:3])
            for item in items
            for start, end in item.extra.get("spans") or [(item.start, item.end)]
        ]
        for word, start in zip(reading.words, reading.starts.tolist()):
            if word in empty:
                continue
            key = word_keys(word)[0]
            seen[key] += 1
            told = {category for first, last, category in pieces if first <= start < last}
            inside[key] += bool(told)
            categories[key].update(told)
    return {
        key: KeyCounts(seen[key], inside[key], dict(sorted(categories[key].items())))
        for key in sorted(inside)
        if inside[key]
    }


def is_same_span(start: int, end: int, item: Evidence) -> bool:
    """Whether a span is that of the evidence, up to a few characters at either end."""
    return abs(start - item.start) <= NEAR and abs(end - item.end) <= NEAR


def is_separate(start: int, end: int, others: Iterable[tuple[int, int]]) -> bool:
    """Whether a span overlaps none of others and is not nearly at the place of one: it says something of its own."""
    return all(
        (end <= first or last <= start) and max(abs(start - first), abs(end - last)) > NEAR for first, last in others
    )


def evidence_text(text: str, item: Evidence) -> str:
    """The words of evidence; of evidence in pieces, those of the pieces."""
    pieces = item.extra.get("spans") or [(item.start, item.end)]
    return " ".join(text[start:end] for start, end in pieces)


def pack_counts(
    index: PhraseIndex,
    counts: Sequence[Counter[Code]],
    seen: np.ndarray,
    surfaces: dict[str, list[Any]],
    keys: dict[str, KeyCounts],
    notes: Sequence[Note],
    systems: set[str],
) -> LearnedPhrases:
    """What was counted, in flat arrays; counts: for each phrase how often it was coded as what."""
    often = Counter(code for note in notes for code in set(note.codes) if code.system in systems)
    codes = sorted(often.keys() | {code for own in counts for code in own})
    column = {code: i for i, code in enumerate(codes)}
    # Sorted, since sets and counters keep an order that is not the same in every process.
    rows = [sorted(own.items(), key=lambda item: (-item[1], item[0]))[:_CODES_A_PHRASE] for own in counts]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    return LearnedPhrases(
        index,
        codes,
        bounds,
        np.array([column[code] for row in rows for code, _ in row], dtype=np.int32),
        np.array([count for row in rows for _, count in row], dtype=np.int32),
        np.maximum(seen, [sum(own.values()) for own in counts]),
        {text: (n, {column[code]: k for code, k in own.items()}) for text, (n, own) in surfaces.items()},
        keys,
        np.array([often[code] for code in codes], dtype=np.int64),
        len(notes),
    )


_MIN_NOTES = 2  # notes with phrase and code
_MIN_SHARE = 0.15  # of the notes with the phrase, those with the code
_MIN_G2 = 12.0  # log-likelihood ratio (Dunning) of phrase and code
_PHRASES_A_CODE = 30


def learn_associations(
    notes: Sequence[Note], systems: Iterable[str], terms: Terms | None, gap: int, longest: int
) -> LearnedPhrases:
    """Phrases of up to `longest` neighbouring content words, and terms of the classification, with the codes they tell.

    A phrase is counted once a note, and so is its code.
    """
    wanted = set(systems)
    found = [_phrases(note.text, terms, gap, longest) for note in notes]
    often = Counter(phrase for phrases in found for phrase in phrases)
    phrases = sorted(phrase for phrase, count in often.items() if count >= _MIN_NOTES)
    codes = sorted({code for note in notes for code in note.codes if code.system in wanted})
    has_phrase = _matrix([sorted(own & often.keys()) for own in found], phrases)
    has_code = _matrix([[code for code in note.codes if code.system in wanted] for note in notes], codes)
    together = (has_phrase.T @ has_code).tocoo()
    kept = _associated(together, has_phrase, has_code)
    counts: dict[tuple[str, ...], Counter] = {}
    for phrase, code, count in kept:
        counts.setdefault(phrases[phrase], Counter())[codes[code]] = count
    ordered = sorted(counts)
    seen = np.array([often[phrase] for phrase in ordered], dtype=np.int64)
    return pack_counts(PhraseIndex.build(ordered), [counts[phrase] for phrase in ordered], seen, {}, {}, notes, wanted)


def _phrases(text: str, terms: Terms | None, gap: int, longest: int) -> set[tuple[str, ...]]:
    reading, empty = TokenizedNote.from_text(text), function_words()
    found: set[tuple[str, ...]] = set()
    run: list[str] = []
    sentence = -1
    for word, here in zip(reading.words, reading.sentence):
        if here != sentence:
            run, sentence = [], here
        if word in empty:
            continue
        run = [*run[-(longest - 1) :], word_keys(word)[0]] if longest > 1 else [word_keys(word)[0]]
        found.update(tuple(sorted(set(run[start:]))) for start in range(len(run)))
    if terms is not None:
        found.update(terms.index.phrase(hit.phrase) for hit in terms.index.find(reading, gap))
    return found


def _matrix(lists: Sequence[Sequence], columns: Sequence) -> sparse.csr_matrix:
    """0/1 (notes, columns)."""
    number = {column: i for i, column in enumerate(columns)}
    indices = [sorted({number[item] for item in items if item in number}) for items in lists]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in indices])])
    flat = np.array([column for row in indices for column in row], dtype=np.int64)
    return sparse.csr_matrix((np.ones(len(flat)), flat, bounds), shape=(len(lists), len(columns)))


def _associated(
    together: sparse.coo_matrix, has_phrase: sparse.csr_matrix, has_code: sparse.csr_matrix
) -> list[tuple[int, int, int]]:
    """Phrase, code and notes with both, for the pairs that say something; at most some phrases a code, the best."""
    n = has_phrase.shape[0]
    both = together.data
    phrase_notes = np.asarray(has_phrase.sum(axis=0)).ravel()[together.row]
    code_notes = np.asarray(has_code.sum(axis=0)).ravel()[together.col]
    g2 = _log_likelihood(both, phrase_notes, code_notes, n)
    positive = both * n > phrase_notes * code_notes
    good = positive & (both >= _MIN_NOTES) & (both >= _MIN_SHARE * phrase_notes) & (g2 >= _MIN_G2)
    rows = np.flatnonzero(good)
    order = rows[np.lexsort((together.row[rows], -g2[rows], together.col[rows]))]
    taken: Counter[int] = Counter()
    kept = []
    for row in order.tolist():
        code = int(together.col[row])
        if taken[code] < _PHRASES_A_CODE:
            taken[code] += 1
            kept.append((int(together.row[row]), code, int(both[row])))
    return kept


def _log_likelihood(both: np.ndarray, first: np.ndarray, second: np.ndarray, n: int) -> np.ndarray:
    """Twice the log-likelihood ratio of dependence against independence for 2 x 2 tables."""
    cells = (both, first - both, second - both, n - first - second + both)
    expected = (first * second / n, first * (n - second) / n, (n - first) * second / n, (n - first) * (n - second) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = [np.where(cell > 0, cell * np.log(cell / mean), 0.0) for cell, mean in zip(cells, expected)]
    return 2 * np.sum(terms, axis=0)
