"""Phrases learned from coded notes: how often each occurs, and how often it was coded with which code.

Notes with evidence spans give their spans. Notes without evidence give phrases that are associated with a code by the
log-likelihood ratio (G2, Dunning 1993).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from nosology.core import Code, Evidence, Note
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mentions import surface
from nosology.models.lexicon.tagger import Tagger
from nosology.text.phrases import PhraseIndex, TokenizedNote, phrase_keys
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words

MAX_OFFSET = 10  # characters by which an end of a mention may differ from that of the evidence
_MAX_CODES = 6  # of a phrase
_MIN_NOTES = 2  # notes with phrase and code
_MIN_SHARE = 0.15  # of the notes with the phrase, those with the code
_MIN_G2 = 12.0  # log-likelihood ratio of phrase and code
_MAX_PHRASES = 30  # of a code


class KeyCounts(NamedTuple):
    """Occurrences of a word: all, inside evidence, and inside evidence by ICD category."""

    seen: int
    inside: int
    categories: dict[str, int]


@dataclass(frozen=True)
class LearnedPhrases:
    """P phrases over C codes: phrase p was seen seen[p] times, coded[e] times as entry_code[e] for its entries e.

    surfaces: the same for phrases as they were written: seen, and the codes with their counts.
    keys: counts of single words, for phrases that were never seen. tagger: predicts evidence from neighbouring words.
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
        """code -> its position in `codes`."""
        return {code: i for i, code in enumerate(self.codes)}

    @cached_property
    def category_notes(self) -> Counter[str]:
        """ICD category -> training notes of its codes."""
        counts: Counter[str] = Counter()
        for code, notes in zip(self.codes, self.notes.tolist()):
            counts[code.code[:3]] += notes
        return counts

    @cached_property
    def padded(self) -> bool:
        """Whether codes of injuries lack the seventh character but have the X before it: W19.XXX."""
        return any(code.code[-1] == "X" for code in self.codes)

    def entries(self, phrase: int) -> list[tuple[int, int]]:
        """The codes of a phrase (columns) and how often it was coded so, most frequent first."""
        entries = slice(self.bounds[phrase], self.bounds[phrase + 1])
        return list(zip(self.entry_code[entries].tolist(), self.coded[entries].tolist()))


def learn_from_evidence(
    notes: Sequence[Note], systems: Iterable[str], gap: int, *, tagger: bool = True
) -> LearnedPhrases:
    """Every phrase that is evidence in some note, counted over all notes; with a tagger if there is evidence."""
    selected = set(systems)
    evidence = [[item for item in note.evidence if item.code.system in selected] for note in notes]
    phrases: dict[tuple[str, ...], Counter[Code]] = defaultdict(Counter)
    for note, items in zip(notes, evidence):
        for item in items:
            if keys := phrase_keys(" ".join(note.text[start:end] for start, end in evidence_parts(item))):
                phrases[keys][item.code] += 1
    ordered = sorted(phrases)
    index = PhraseIndex.build(ordered)
    seen = np.zeros(len(ordered), dtype=np.int64)
    surface_seen: Counter[str] = Counter()
    surface_codes: dict[str, Counter[Code]] = defaultdict(Counter)
    counts: list[Counter[Code]] = [Counter() for _ in ordered]
    for note, items in zip(notes, evidence):
        tokenized = TokenizedNote.from_text(note.text)
        for match in index.find(tokenized, gap):
            seen[match.phrase] += 1
            written = surface(tokenized, match.places)
            surface_seen[written] += 1
            start, end = tokenized.starts[match.places[0]], tokenized.ends[match.places[-1]]
            for code in {item.code for item in items if is_same_span(start, end, item)}:
                counts[match.phrase][code] += 1
                surface_codes[written][code] += 1
    for keys, codes in zip(ordered, counts):
        for code in phrases[keys]:
            codes[code] = max(codes[code], 1)  # parts of evidence may be too far apart for the index
    surfaces = {text: (count, surface_codes[text]) for text, count in surface_seen.items()}
    learned = pack_counts(index, counts, seen, surfaces, _key_counts(notes, evidence), notes, selected)
    return replace(learned, tagger=Tagger.fit(notes, evidence)) if tagger else learned


def _key_counts(notes: Sequence[Note], evidence: Sequence[Sequence[Evidence]]) -> dict[str, KeyCounts]:
    """The counts of each word that is inside evidence at least once."""
    seen: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    by_category: dict[str, Counter[str]] = defaultdict(Counter)
    for note, items in zip(notes, evidence):
        tokenized = TokenizedNote.from_text(note.text)
        parts = [(start, end, item.code.code[:3]) for item in items for start, end in evidence_parts(item)]
        for word, position in zip(tokenized.words, tokenized.starts):
            if word in function_words():
                continue
            key = word_keys(word)[0]
            categories = {category for start, end, category in parts if start <= position < end}
            seen[key] += 1
            inside[key] += bool(categories)
            by_category[key].update(categories)
    return {
        key: KeyCounts(seen[key], inside[key], dict(sorted(by_category[key].items())))
        for key in sorted(inside)
        if inside[key]
    }


def evidence_parts(item: Evidence) -> list[tuple[int, int]]:
    """The spans of evidence; several if it is discontinuous."""
    return item.extra.get("spans") or [(item.start, item.end)]


def is_same_span(start: int, end: int, item: Evidence) -> bool:
    """Whether a span is that of the evidence, up to a few characters at either end."""
    return abs(start - item.start) <= MAX_OFFSET and abs(end - item.end) <= MAX_OFFSET


def is_separate(start: int, end: int, others: Iterable[tuple[int, int]]) -> bool:
    """Whether a span overlaps none of others and is not within a few characters of one."""
    return all(
        (end <= first or last <= start) and max(abs(start - first), abs(end - last)) > MAX_OFFSET
        for first, last in others
    )


def pack_counts(
    index: PhraseIndex,
    counts: Sequence[Counter[Code]],
    seen: np.ndarray,
    surfaces: Mapping[str, tuple[int, Counter[Code]]],
    keys: dict[str, KeyCounts],
    notes: Sequence[Note],
    systems: set[str],
) -> LearnedPhrases:
    """Counts in flat arrays; counts: for each phrase how often it was coded as what."""
    code_notes = Counter(code for note in notes for code in set(note.codes) if code.system in systems)
    codes = sorted(code_notes.keys() | {code for of_phrase in counts for code in of_phrase})
    column = {code: i for i, code in enumerate(codes)}
    # Sorted, because the order of sets and counters differs between processes.
    rows = [sorted(of_phrase.items(), key=lambda item: (-item[1], item[0]))[:_MAX_CODES] for of_phrase in counts]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    return LearnedPhrases(
        index,
        codes,
        bounds,
        np.array([column[code] for row in rows for code, _ in row], dtype=np.int32),
        np.array([count for row in rows for _, count in row], dtype=np.int32),
        np.maximum(seen, [sum(of_phrase.values()) for of_phrase in counts]),
        {text: (n, {column[code]: k for code, k in coded.items()}) for text, (n, coded) in surfaces.items()},
        keys,
        np.array([code_notes[code] for code in codes], dtype=np.int64),
        len(notes),
    )


def learn_associations(
    notes: Sequence[Note], systems: Iterable[str], terms: Terms | None, gap: int, longest: int
) -> LearnedPhrases:
    """Phrases of up to `longest` neighbouring content words, and terms, with the codes they are associated with.

    A phrase counts once per note, and so does a code.
    """
    selected = set(systems)
    note_phrases = [_phrases(note.text, terms, gap, longest) for note in notes]
    note_codes = [{code for code in note.codes if code.system in selected} for note in notes]
    phrase_notes = Counter(phrase for phrases in note_phrases for phrase in phrases)
    phrases = sorted(phrase for phrase, count in phrase_notes.items() if count >= _MIN_NOTES)
    codes = sorted(set().union(*note_codes))
    has_phrase, has_code = _indicators(note_phrases, phrases), _indicators(note_codes, codes)
    counts: dict[tuple[str, ...], Counter[Code]] = defaultdict(Counter)
    for phrase, code, count in _associated(has_phrase, has_code):
        counts[phrases[phrase]][codes[code]] = count
    ordered = sorted(counts)
    seen = np.array([phrase_notes[phrase] for phrase in ordered], dtype=np.int64)
    index = PhraseIndex.build(ordered)
    return pack_counts(index, [counts[phrase] for phrase in ordered], seen, {}, {}, notes, selected)


def _phrases(text: str, terms: Terms | None, gap: int, longest: int) -> set[tuple[str, ...]]:
    """The phrases of a note, each as sorted keys."""
    tokenized = TokenizedNote.from_text(text)
    phrases: set[tuple[str, ...]] = set()
    run: deque[str] = deque(maxlen=longest)
    sentence = -1
    for word, number in zip(tokenized.words, tokenized.sentence):
        if number != sentence:
            run.clear()
            sentence = number
        if word not in function_words():
            run.append(word_keys(word)[0])
            phrases.update(tuple(sorted(set(islice(run, start, None)))) for start in range(len(run)))
    if terms is not None:
        phrases.update(terms.index.phrase(match.phrase) for match in terms.index.find(tokenized, gap))
    return phrases


def _indicators(sets: Sequence[set[Any]], columns: Sequence[Any]) -> sparse.csr_matrix:
    """0/1 (notes, columns): which columns are in the set of each note."""
    number = {column: i for i, column in enumerate(columns)}
    rows = [sorted(number[item] for item in items if item in number) for items in sets]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    flat = np.array([column for row in rows for column in row], dtype=np.int64)
    return sparse.csr_matrix((np.ones(len(flat)), flat, bounds), shape=(len(sets), len(columns)))


def _associated(has_phrase: sparse.csr_matrix, has_code: sparse.csr_matrix) -> list[tuple[int, int, int]]:
    """Phrase, code and notes with both, for pairs that are associated; of each code the best phrases."""
    together = (has_phrase.T @ has_code).tocoo()
    n = has_phrase.shape[0]
    both = together.data
    phrase_notes = np.asarray(has_phrase.sum(axis=0)).ravel()[together.row]
    code_notes = np.asarray(has_code.sum(axis=0)).ravel()[together.col]
    g2 = _log_likelihood_ratio(both, phrase_notes, code_notes, n)
    positive = both * n > phrase_notes * code_notes
    good = positive & (both >= _MIN_NOTES) & (both >= _MIN_SHARE * phrase_notes) & (g2 >= _MIN_G2)
    rows = np.flatnonzero(good)
    order = rows[np.lexsort((together.row[rows], -g2[rows], together.col[rows]))]  # code by code, the best first
    code = together.col[order]
    rank = np.arange(len(order)) - np.searchsorted(code, code)
    chosen = order[rank < _MAX_PHRASES]
    return list(zip(together.row[chosen].tolist(), together.col[chosen].tolist(), both[chosen].astype(int).tolist()))


def _log_likelihood_ratio(both: np.ndarray, first: np.ndarray, second: np.ndarray, n: int) -> np.ndarray:
    """G2, twice the log-likelihood ratio of dependence against independence, of 2 x 2 tables."""
    cells = (both, first - both, second - both, n - first - second + both)
    expected = (first * second / n, first * (n - second) / n, (n - first) * second / n, (n - first) * (n - second) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = [np.where(cell > 0, cell * np.log(cell / mean), 0.0) for cell, mean in zip(cells, expected)]
    return 2 * np.sum(terms, axis=0)
