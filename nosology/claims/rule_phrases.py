"""Phrases of the rules in a note: one pass over its words finds the phrases of all rules and lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from nosology.core import Span
from nosology.text.context import phrase_variants
from nosology.text.tokens import Tokens

_BREAKS = frozenset(",;:|()[]\n")
_MAX_GAP = 3  # characters between two words of a phrase: "H. pylori", "A-fib"

PhraseIndex = Mapping[str, tuple[list[int], Mapping[tuple[str, ...], tuple[str, ...]]]]
"""First word -> lengths of the phrases that start with it (longest first), and the keys (lists or phrases) of each."""


def phrase_index(keys: Mapping[str, Iterable[str]]) -> PhraseIndex:
    """The index of the phrases of each key; a phrase may have alternatives, as in "quit|stopped smoking"."""
    owners: dict[tuple[str, ...], dict[str, None]] = {}
    for key, phrases in keys.items():
        for phrase in phrases:
            for words in _variants(phrase):
                owners.setdefault(words, {})[key] = None
    index: dict[str, tuple[list[int], dict[tuple[str, ...], tuple[str, ...]]]] = {}
    for words in sorted(filter(None, owners), key=lambda words: (-len(words), words)):
        lengths, by_words = index.setdefault(words[0], ([], {}))
        by_words[words] = tuple(owners[words])
        if len(words) not in lengths:
            lengths.append(len(words))
    return index


@cache
def _variants(phrase: str) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted(phrase_variants(phrase)))


def find_phrases(text: str, tokens: Tokens, index: PhraseIndex) -> dict[str, list[Span]]:
    """key -> where its phrases occur, in order; of phrases of one key at the same word only the longest counts."""
    hits: dict[str, list[Span]] = {}
    words, starts, ends = tokens.words, tokens.starts.tolist(), tokens.ends.tolist()
    for at, word in enumerate(words):
        if word not in index:
            continue
        seen: set[str] = set()
        lengths, phrases = index[word]
        for length in lengths:
            last = at + length
            keys = phrases.get(tuple(words[at:last])) if last <= len(words) else None
            if keys is None or not _connected(text, starts, ends, at, last):
                continue
            for key in keys:
                if key not in seen:
                    hits.setdefault(key, []).append(Span(starts[at], ends[last - 1]))
            seen.update(keys)
    return hits


def _connected(text: str, starts: list[int], ends: list[int], first: int, last: int) -> bool:
    """Whether the words first..last-1 are not separated by punctuation; a single line break is allowed."""
    for word in range(first, last - 1):
        between = text[ends[word] : starts[word + 1]]
        if len(between) > _MAX_GAP or (between != "\n" and not _BREAKS.isdisjoint(between)):
            return False
    return True
