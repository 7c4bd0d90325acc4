"""Phrases found in a note whatever the order of their words, their inflection, and a few words in between.

A phrase is a set of keys (see `stems`). All phrases are laid out in flat arrays, each filed under its rarest key, so
that a note is held against a quarter of a million of them in milliseconds and a stored index opens at once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from nosology.text.data import function_words, sided_words
from nosology.text.sentences import sentences
from nosology.text.stems import stem, word_keys
from nosology.text.tokens import tokenize

LONGEST = 10  # keys; a longer phrase is never met word for word
FAR = frozenset(stem(word) for word in ("right", "left", "bilateral"))
"""Keys that may stand anywhere in the sentence of the phrase they belong to, unless another of them is nearer."""


# Only before what has sides: R knee, L distal radius.
_SHORT_SIDES = {"r": "right", "rt": "right", "l": "left", "lt": "left"}
_COMMA = re.compile("[,;]")
_ALIKE = 7  # letters of a word that may be misspelt,
_SURE = 4  # of which so many at its beginning are right


class PhraseMatch(NamedTuple):
    """A phrase of the index at these words of a note (in order); `gap`: content words between that are not its own."""

    phrase: int
    places: tuple[int, ...]
    gap: int


def phrase_keys(text: str) -> tuple[str, ...]:
    """The keys of a phrase, sorted, each once; () if it has none or too many."""
    empty, found = function_words(), tokenize(text)
    named = _letters(text, found.words, found.starts.tolist())
    keys = sorted({word_keys(word)[0] for i, word in enumerate(found.words) if word not in empty or i in named})
    return tuple(keys) if len(keys) <= LONGEST else ()


@dataclass(frozen=True)
class TokenizedNote:
    """A note's words, lower-cased: where they stand, their sentence, how many content words and commas came before."""

    words: list[str]
    starts: np.ndarray
    ends: np.ndarray
    sentence: list[int]
    content: list[int]
    clause: list[int]
    hyphenated: dict[int, str]  # the first of two words with a hyphen between -> both as one word
    letters: frozenset[int]  # the words that look like function words but are names: hepatitis A, vitamin E

    @classmethod
    def from_text(cls, text: str) -> TokenizedNote:
        """The words of a text."""
        found = tokenize(text)
        empty, content, before = function_words(), [], 0
        letters = _letters(text, found.words, found.starts.tolist())
        for place, word in enumerate(found.words):
            content.append(before)
            before += word not in empty or place in letters
        words = [
            _SHORT_SIDES[word] if word in _SHORT_SIDES and after in sided_words() else word
            for word, after in zip(found.words, [*found.words[1:], ""])
        ]
        starts = [span.start for span in sentences(text)]
        sentence = (np.searchsorted(starts, found.starts, side="right") - 1).tolist()
        hyphens = np.flatnonzero(found.starts[1:] == found.ends[:-1] + 1).tolist()
        hyphenated = {i: found.words[i] + found.words[i + 1] for i in hyphens if text[found.ends[i]] == "-"}
        commas = [found_at.start() for found_at in _COMMA.finditer(text)]
        clause = np.searchsorted(commas, found.starts).tolist()
        return cls(words, found.starts, found.ends, sentence, content, clause, hyphenated, letters)


@dataclass(frozen=True)
class PhraseIndex:
    """P phrases over V keys; phrase p has the keys `keys[bounds[p]:bounds[p + 1]]`, the rarest of them first."""

    vocabulary: list[str]
    bounds: np.ndarray  # (P + 1,)
    keys: np.ndarray  # (all keys of all phrases,)

    @classmethod
    def build(cls, phrases: Sequence[tuple[str, ...]]) -> PhraseIndex:
        """The index of distinct phrases, each a tuple of keys that is not empty."""
        often = Counter(chain.from_iterable(phrases))
        vocabulary = sorted(often)
        number = {key: i for i, key in enumerate(vocabulary)}
        ordered = [sorted(keys, key=lambda key: (key in FAR, often[key], key)) for keys in phrases]
        bounds = np.concatenate([[0], np.cumsum([len(keys) for keys in ordered], dtype=np.int64)]).astype(np.int32)
        flat = np.fromiter((number[key] for keys in ordered for key in keys), dtype=np.int32, count=int(bounds[-1]))
        return cls(vocabulary, bounds, flat)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @cached_property
    def _number(self) -> dict[str, int]:
        return {key: i for i, key in enumerate(self.vocabulary)}

    @cached_property
    def _filed(self) -> tuple[np.ndarray, np.ndarray]:
        """The phrases in the order of their first keys, and where each key's begin (V + 1,)."""
        first = self.keys[self.bounds[:-1]]
        order = np.argsort(first, kind="stable").astype(np.int32)
        return order, np.searchsorted(first[order], np.arange(len(self.vocabulary) + 1))

    @cached_property
    def far(self) -> frozenset[int]:
        """The numbers of the keys in FAR."""
        return frozenset(self._number[key] for key in FAR if key in self._number)

    def phrase(self, number: int) -> tuple[str, ...]:
        """The keys of a phrase, sorted."""
        return tuple(sorted(self.vocabulary[key] for key in self.keys[self.bounds[number] : self.bounds[number + 1]]))

    def places(self, note: TokenizedNote) -> dict[int, list[int]]:
        """The words of a note at which each key stands."""
        empty, number = function_words(), self._number
        found: dict[int, list[int]] = {}
        for place, word in enumerate(note.words):
            keys = () if word in empty and place not in note.letters else word_keys(word)
            for key in (*keys, *word_keys(note.hyphenated[place])) if place in note.hyphenated else keys:
                if key in number:
                    found.setdefault(number[key], []).append(place)
        for place in self.misspelled(note):
            for key in self._alike(word_keys(note.words[place])[0]):
                found.setdefault(key, []).append(place)
        return {key: sorted(own) for key, own in found.items()}

    def misspelled(self, note: TokenizedNote) -> list[int]:
        """The words of a note that no phrase has, but for one letter: they are taken for their likes."""
        number = self._number
        return [
            place
            for place, word in enumerate(note.words)
            if len(word) >= _ALIKE and word_keys(word)[0] not in number and self._alike(word_keys(word)[0])
        ]

    def _alike(self, key: str) -> tuple[int, ...]:
        """The keys that differ from another by one letter put in, left out or changed, not at the beginning."""
        if key not in self._likes:
            first = bisect_left(self.vocabulary, key[:_SURE])
            likes = []
            for number in range(first, len(self.vocabulary)):
                if not self.vocabulary[number].startswith(key[:_SURE]):
                    break
                if misspelt(key, self.vocabulary[number]):
                    likes.append(number)
            self._likes[key] = tuple(likes)
        return self._likes[key]

    @cached_property
    def _likes(self) -> dict[str, tuple[int, ...]]:
        """What `_alike` has found so far."""
        return {}

    def find(self, note: TokenizedNote, gap: int) -> list[PhraseMatch]:
        """Every phrase with all its keys in one sentence and at most `gap` content words of others between them."""
        places = self.places(note)
        sides = {key: places[key] for key in sorted(self.far) if key in places}
        found: list[PhraseMatch] = []
        for phrase in self._whole(np.fromiter(places, dtype=np.int64, count=len(places))):
            own = self.keys[self.bounds[phrase] : self.bounds[phrase + 1]].tolist()
            if len(own) == 1:
                found += [PhraseMatch(phrase, (place,), 0) for place in places[own[0]]]
            else:
                found += self._occurrences(phrase, {key: places[key] for key in own}, sides, note, gap)
        return found

    def _whole(self, present: np.ndarray) -> list[int]:
        """The phrases all of whose keys are present."""
        if not len(present):
            return []
        order, begin = self._filed
        candidates = np.concatenate([order[begin[key] : begin[key + 1]] for key in present.tolist()])
        if not len(candidates):
            return []
        has = np.zeros(len(self.vocabulary), dtype=bool)
        has[present] = True
        lengths = np.diff(self.bounds)[candidates]
        offsets = np.repeat(self.bounds[:-1][candidates] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        hits = has[self.keys[np.arange(int(lengths.sum())) + offsets]]
        whole = np.logical_and.reduceat(hits, np.concatenate([[0], np.cumsum(lengths)[:-1]]))
        return candidates[whole].tolist()

    def _occurrences(
        self, phrase: int, own: dict[int, list[int]], sides: dict[int, list[int]], note: TokenizedNote, gap: int
    ) -> Iterable[PhraseMatch]:
        """The occurrences of a phrase: the closest places of its keys, and each side's place nearest to them."""
        near = [at for key, at in own.items() if key not in sides] or list(own.values())
        far = [at for key, at in own.items() if key in sides] if len(near) < len(own) else []
        others = [at for key, at in sides.items() if key not in own] if far else []
        seen = set()
        for window in _windows(_shared(near, note.sentence), note.sentence):
            between = note.content[window[-1]] - note.content[window[0]] + 1 - len(window)
            chosen = set(window)
            for at in far:
                side = _nearest(at, window, chosen, note)
                if side is None or any(_nearer(_nearest(it, window, chosen, note), side, note) for it in others):
                    break
                chosen.add(side.place)
                between -= window[0] < side.place < window[-1]
            else:
                found = PhraseMatch(phrase, tuple(sorted(chosen)), max(0, between))
                if between <= gap and found.places not in seen:
                    seen.add(found.places)
                    yield found


def misspelt(key: str, right: str) -> bool:
    """Whether a key becomes another by one letter put in, left out or changed.

    Another ending is another word (keratin, keratitis; eosinophil, eosinophilia), but one letter too many is not.
    """
    if min(len(key), len(right)) < _ALIKE or not key.isalpha():
        return False
    same = next((i for i, (a, b) in enumerate(zip(key, right)) if a != b), min(len(key), len(right)))
    mine, other = key[same:], right[same:]
    return mine[1:] == other or (len(other) > 1 and (mine[1:] == other[1:] or mine == other[1:]))


def _letters(text: str, words: list[str], starts: list[int]) -> frozenset[int]:
    """The words that are a capital letter after a word in small ones: a type, not an article."""
    return frozenset(
        place
        for place, word in enumerate(words)
        if len(word) == 1
        and place
        and text[starts[place]].isupper()
        and text[starts[place] - 1] == " "
        and text[starts[place] - 2].islower()
    )


class _Side(NamedTuple):
    """A side as seen from the words of a phrase; the least is the nearest: commas come before words."""

    apart: bool
    distance: int
    place: int


def _nearest(at: list[int], window: Sequence[int], taken: set[int], note: TokenizedNote) -> _Side | None:
    """The nearest of a side's places, which are in order, to a word of the window in its sentence."""
    found = None
    for word in window:
        after = bisect_left(at, word)
        for place in at[max(0, after - 2) : after + 2]:
            side = _Side(note.clause[place] != note.clause[word], abs(place - word), place)
            if (found is None or side < found) and note.sentence[place] == note.sentence[word] and place not in taken:
                found = side
    return found


def _nearer(other: _Side | None, side: _Side, note: TokenizedNote) -> bool:
    """Whether another side is the nearer one, as of the knee in "left hip and right knee", not in "left and right"."""
    if other is None or other[:2] >= side[:2]:
        return False
    first, last = sorted((side.place, other.place))
    return not function_words().issuperset(note.words[first + 1 : last])


def _shared(places: list[list[int]], sentence: list[int]) -> list[list[int]]:
    """The places in sentences that hold one of every list; in long notes few of a common word's do."""
    shared = {sentence[place] for place in min(places, key=len)}
    for own in places:
        shared &= {sentence[place] for place in own}
    return [[place for place in own if sentence[place] in shared] for own in places] if shared else []


def _windows(places: list[list[int]], sentence: list[int]) -> Iterator[list[int]]:
    """The shortest stretches of one sentence that hold a place of every list, each as one place a list, in order."""
    last: dict[int, int] = {}
    for place, number in sorted((place, number) for number, own in enumerate(places) for place in own):
        before = last.get(number, -1)
        last[number] = place
        chosen = sorted(last.values())
        # A stretch that holds an earlier place of its last word's key is not the shortest.
        shortest = len(last) == len(places) and before < chosen[0]
        if shortest and sentence[chosen[0]] == sentence[place] and len(set(chosen)) == len(chosen):
            yield chosen
