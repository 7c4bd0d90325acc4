"""Phrases learned from coded notes: how often each occurs, and how often it was coded with which code.

Notes with evidence spans give their spans. For notes without evidence see `phrase_associations`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nosology.core import Code, Evidence, Note
from nosology.models.lexicon.mentions import surface_form
from nosology.models.lexicon.tagger import MAX_NOTES, TaggedWords, Tagger, tagged_words
from nosology.text.phrases import PhraseIndex, TokenizedNote, phrase_keys
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words

MAX_OFFSET = 10  # characters by which an end of a mention may differ from that of the evidence
_MAX_CODES = 6  # of a phrase


class KeyCounts(NamedTuple):
    """Occurrences of a word: all, inside evidence, and inside evidence by ICD category."""

    seen: int
    inside: int
    categories: dict[str, int]


@dataclass(frozen=True)
class LearnedPhrases:
    """P phrases over C codes: phrase p was seen seen[p] times, coded[e] times as entry_code[e] for its entries e.

    surface_forms: the same for phrases as they were written: seen, and the codes with their counts.
    keys: counts of single words, for phrases that were never seen. tagger: predicts evidence from neighbouring words.
    notes: (C,) training notes of each code.
    """

    index: PhraseIndex
    codes: list[Code]
    bounds: np.ndarray  # (P + 1,)
    entry_code: np.ndarray
    coded: np.ndarray
    seen: np.ndarray  # (P,)
    surface_forms: dict[str, tuple[int, dict[int, int]]]
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


class NoteEvidence(NamedTuple):
    """What a note with evidence adds to learned phrases, whatever the other notes are.

    seen, inside, categories: the counts of KeyCounts. words: for the tagger; None: not computed.
    """

    note: Note
    items: list[Evidence]
    phrases: list[tuple[tuple[str, ...], Code]]
    seen: Counter[str]
    inside: Counter[str]
    categories: dict[str, Counter[str]]
    words: TaggedWords | None


def note_evidence(note: Note, systems: Collection[str], tagger: bool) -> NoteEvidence:
    """The evidence of a note for codes of some systems; tagger: with the words for a tagger."""
    items = [item for item in note.evidence if item.code.system in systems]
    texts = [" ".join(note.text[start:end] for start, end in evidence_parts(item)) for item in items]
    phrases = [(keys, item.code) for item, text in zip(items, texts) if (keys := phrase_keys(text))]
    tokenized = TokenizedNote.from_text(note.text)
    spans = [(start, end, item.code.code[:3]) for item in items for start, end in evidence_parts(item)]
    keys = [None if word in function_words() else word_keys(word)[0] for word in tokenized.words]
    inside: Counter[str] = Counter()
    by_category: dict[str, Counter[str]] = {}
    categories_at: dict[int, set[str]] = {}
    for start, end, category in spans:
        for place in range(bisect_left(tokenized.starts, start), bisect_left(tokenized.starts, end)):
            categories_at.setdefault(place, set()).add(category)
    for place, categories in categories_at.items():
        if (key := keys[place]) is not None:
            inside[key] += 1
            by_category.setdefault(key, Counter()).update(categories)
    words = tagged_words(note, items, tokenized) if tagger else None
    return NoteEvidence(
        note, items, phrases, Counter(key for key in keys if key is not None), inside, by_category, words
    )


def learn_from_evidence(notes: Sequence[NoteEvidence], systems: Collection[str], gap: int) -> LearnedPhrases:
    """Every phrase that is evidence in some note, counted over all notes; with a tagger if the notes have words."""
    phrases: dict[tuple[str, ...], set[Code]] = defaultdict(set)
    for note in notes:
        for keys, code in note.phrases:
            phrases[keys].add(code)
    ordered = sorted(phrases)
    index = PhraseIndex.build(ordered)
    seen = np.zeros(len(ordered), dtype=np.int64)
    form_seen: Counter[str] = Counter()
    form_codes: dict[str, Counter[Code]] = defaultdict(Counter)
    counts: list[Counter[Code]] = [Counter() for _ in ordered]
    for note in notes:
        tokenized = TokenizedNote.from_text(note.note.text)
        for match in index.find(tokenized, gap):
            seen[match.phrase] += 1
            written = surface_form(tokenized, match.places)
            form_seen[written] += 1
            start, end = tokenized.starts[match.places[0]], tokenized.ends[match.places[-1]]
            for code in {item.code for item in note.items if is_same_span(start, end, item)}:
                counts[match.phrase][code] += 1
                form_codes[written][code] += 1
    for keys, codes in zip(ordered, counts):
        for code in phrases[keys]:
            codes[code] = max(codes[code], 1)  # parts of evidence may be too far apart for the index
    surface_forms = {text: (count, form_codes[text]) for text, count in form_seen.items()}
    code_notes = count_codes((note.note for note in notes), systems)
    learned = pack_counts(index, counts, seen, surface_forms, _key_counts(notes), code_notes, len(notes))
    words = [note.words for note in notes[:MAX_NOTES] if note.words is not None]
    return replace(learned, tagger=Tagger.fit_words(words)) if words else learned


def _key_counts(notes: Sequence[NoteEvidence]) -> dict[str, KeyCounts]:
    """The counts of each word that is inside evidence at least once."""
    seen: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    by_category: dict[str, Counter[str]] = defaultdict(Counter)
    for note in notes:
        seen.update(note.seen)
        inside.update(note.inside)
        for key, categories in note.categories.items():
            by_category[key].update(categories)
    return {key: KeyCounts(seen[key], inside[key], dict(sorted(by_category[key].items()))) for key in sorted(inside)}


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


def count_codes(notes: Iterable[Note], systems: Collection[str]) -> Counter[Code]:
    """The number of notes of each code of some systems."""
    return Counter(code for note in notes for code in set(note.codes) if code.system in systems)


def pack_counts(
    index: PhraseIndex,
    counts: Sequence[Counter[Code]],
    seen: np.ndarray,
    surface_forms: Mapping[str, tuple[int, Counter[Code]]],
    keys: dict[str, KeyCounts],
    code_notes: Mapping[Code, int],
    n_notes: int,
) -> LearnedPhrases:
    """Counts in flat arrays; counts: for each phrase how often it was coded as what. code_notes: notes of each code."""
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
        {text: (n, {column[code]: k for code, k in coded.items()}) for text, (n, coded) in surface_forms.items()},
        keys,
        np.array([code_notes.get(code, 0) for code in codes], dtype=np.int64),
        n_notes,
    )
