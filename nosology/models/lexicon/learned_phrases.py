"""Phrases learned from coded notes: how often each occurs, and how often it was coded with which code.

Notes with evidence spans give their spans. For notes without evidence see `phrase_associations`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nosology.core import Code, Evidence, Note
from nosology.models.lexicon.mentions import surface
from nosology.models.lexicon.tagger import Tagger
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


def learn_from_evidence(notes: Sequence[Note], systems: Iterable[str], gap: int, tagger: bool = True) -> LearnedPhrases:
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
