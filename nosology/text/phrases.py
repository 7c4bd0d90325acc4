"""Phrase matching in notes, in any word order and inflection and with a few words in between.

A phrase is a set of keys (see `stems`). All phrases are in flat arrays, grouped by their rarest key. A note is matched
against 250,000 phrases in milliseconds, and a stored index loads without further work.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from nosology.text.cleaning import whole_words
from nosology.text.sentences import sentences
from nosology.text.stems import stem, word_keys
from nosology.text.tokens import Tokens, function_words, rows, sided_words, tokenize, words_of

MAX_KEYS = 10  # longer phrases do not occur word for word
SIDE_KEYS = frozenset(stem(word) for word in ("right", "left", "bilateral"))
"""Keys that may be anywhere in the sentence of their phrase, unless another side is nearer."""

_SHORT_SIDES = {"r": "right", "rt": "right", "l": "left", "lt": "left"}  # only before sided words: R knee
_NOT_SIDED = frozenset(["spine", "wave", "waves", "lateral", "and", "chop", "basilic", "the", "with", "for"])
_SIDED_LENGTH = 3  # letters of a word after a side in capitals: L MCA
_COMMA = re.compile("[,;]")
_LIST_NUMBER = re.compile(
    r"(?=[ \t(#\d])"  # the first character: most places of a text are not tried any further
    r"(?:^[ \t]*[(#]?|(?<=[\s;,])\(?(?=\d{1,2}\))|(?:(?<=[.:;] )|(?<=[ \t]{2}))(?=\d{1,2}\.\s))(\d{1,2})[.)](?!\d)",
    re.MULTILINE,
)
_DECIMAL = re.compile(r"(?<![\w.-])(\d{1,4})\.(\d{1,4})(?![\w-])")  # a measurement; 40.0-44.9 is a range of a term
_MISSPELLED_LENGTH = 7  # the minimum number of letters of a word that may be misspelled
_CORRECT_PREFIX = 4  # the first letters of a misspelled word are correct


class PhraseMatch(NamedTuple):
    """A phrase at these words of a note, in order; `gap`: the number of other content words between them."""

    phrase: int
    places: tuple[int, ...]
    gap: int


def phrase_keys(text: str) -> tuple[str, ...]:
    """The sorted distinct keys of a phrase; () if it has none or too many."""
    text = text if text.isascii() else whole_words(text).text
    words, letters = words_of(text), frozenset[int]()
    if any(len(word) == 1 or word in _expansions() for word in words):  # the offsets matter in few phrases
        tokens = expand(text, tokenize(text))
        words, letters = tokens.words, _type_letters(text, tokens.words, tokens.starts.tolist())
    content = (word for i, word in enumerate(words) if word not in function_words() or i in letters)
    keys = sorted({word_keys(word)[0] for word in content})
    return tuple(keys) if len(keys) <= MAX_KEYS else ()


class _Expansion(NamedTuple):
    """An abbreviation, its words written out, and the case of its last word: upper, lower or "" (any)."""

    short: list[str]
    words: tuple[str, ...]
    case: str

    def is_at(self, text: str, tokens: Tokens, place: int) -> bool:
        """Whether the words at a place are the abbreviation, in its case."""
        if tokens.words[place : place + len(self.short)] != self.short:
            return False
        last = place + len(self.short) - 1
        written = text[int(tokens.starts[last]) : int(tokens.ends[last])]
        return not self.case or (written.isupper() if self.case == "upper" else written.islower())


@cache
def _expansions() -> dict[str, list[_Expansion]]:
    """The first word of an abbreviation -> the abbreviations that start with it, the longest first."""
    found: dict[str, list[_Expansion]] = {}
    for row in rows("expansions.tsv"):
        short = row["short"].split()
        found.setdefault(short[0], []).append(_Expansion(short, tuple(row["long"].split()), row["case"]))
    return {word: sorted(items, key=lambda item: -len(item.short)) for word, items in found.items()}


def expand(text: str, tokens: Tokens) -> Tokens:
    """The tokens with abbreviations written out (CHF: heart failure), so that they can be part of longer terms."""
    table = _expansions()
    places = [place for place, word in enumerate(tokens.words) if word in table]
    if not places:
        return tokens
    words: list[str] = []
    first: list[int] = []  # the first and last original word of each word
    last: list[int] = []
    done = 0
    for place in places:
        expansion = next((item for item in table[tokens.words[place]] if item.is_at(text, tokens, place)), None)
        if place < done or expansion is None:
            continue
        end = place + len(expansion.short)
        words += [*tokens.words[done:place], *expansion.words]
        first += [*range(done, place), *[place] * len(expansion.words)]
        last += [*range(done, place), *[end - 1] * len(expansion.words)]
        done = end
    words += tokens.words[done:]
    first += range(done, len(tokens))
    last += range(done, len(tokens))
    return Tokens(words, tokens.starts[first], tokens.ends[last])


@dataclass(frozen=True)
class TokenizedNote:
    """The words of a note in lower case: offsets, sentences, and numbers of content words and commas before each."""

    words: list[str]
    starts: list[int]
    ends: list[int]
    sentence: list[int]
    content: list[int]
    clause: list[int]
    hyphenated: dict[int, str]  # the first of two words with a hyphen between them -> both as one word
    letters: frozenset[int]  # words that look like function words but are types: hepatitis A, vitamin E
    list_numbers: frozenset[int]  # numbers of list items and measurements, which are part of no phrase
    tokens: Tokens  # words, starts and ends as arrays
    written: Tokens  # the words before abbreviations were expanded

    @classmethod
    def from_text(cls, text: str) -> TokenizedNote:
        """The words of a text; the words of an expanded abbreviation all have its offsets."""
        written = tokenize(text if text.isascii() else whole_words(text))
        tokens = expand(text, written)
        starts, ends = tokens.starts.tolist(), tokens.ends.tolist()
        letters = _type_letters(text, tokens.words, starts)
        functions = function_words()
        is_content = [word not in functions or i in letters for i, word in enumerate(tokens.words)]
        words = _with_sides(text, tokens)
        sentence_starts = [span.start for span in sentences(text)]
        sentence = (np.searchsorted(sentence_starts, tokens.starts, side="right") - 1).tolist()
        adjacent = np.flatnonzero(tokens.starts[1:] == tokens.ends[:-1] + 1).tolist()
        hyphenated = {i: tokens.words[i] + tokens.words[i + 1] for i in adjacent if text[ends[i]] == "-"}
        clause = np.searchsorted([comma.start() for comma in _COMMA.finditer(text)], tokens.starts).tolist()
        content = (np.cumsum(is_content, dtype=np.int64) - is_content).tolist()
        numbers = np.searchsorted(tokens.starts, [match.start(1) for match in _LIST_NUMBER.finditer(text)])
        decimals = [at for match in _DECIMAL.finditer(text) for at in (match.start(1), match.start(2))]
        list_numbers = frozenset([*numbers.tolist(), *np.searchsorted(tokens.starts, decimals).tolist()])
        tokens = Tokens(words, tokens.starts, tokens.ends)
        return cls(words, starts, ends, sentence, content, clause, hyphenated, letters, list_numbers, tokens, written)


@lru_cache(maxsize=4)  # coder and claim both read a note
def tokenized_note(text: str) -> TokenizedNote:
    """The words of a note (see `TokenizedNote.from_text`), cached for the latest notes."""
    return TokenizedNote.from_text(text)


@dataclass(frozen=True)
class PhraseIndex:
    """P phrases over V keys; phrase p has the keys `keys[bounds[p]:bounds[p + 1]]`, the rarest first."""

    vocabulary: list[str]
    bounds: np.ndarray  # (P + 1,)
    keys: np.ndarray  # the keys of all phrases, one after the other

    @classmethod
    def build(cls, phrases: Sequence[tuple[str, ...]]) -> PhraseIndex:
        """The index of distinct phrases, each a non-empty tuple of keys."""
        counts = Counter(chain.from_iterable(phrases))
        vocabulary = sorted(counts)
        number = {key: i for i, key in enumerate(vocabulary)}
        ordered = [sorted(keys, key=lambda key: (key in SIDE_KEYS, counts[key], key)) for keys in phrases]
        bounds = np.concatenate([[0], np.cumsum([len(keys) for keys in ordered], dtype=np.int64)]).astype(np.int32)
        flat = np.fromiter((number[key] for keys in ordered for key in keys), dtype=np.int32, count=int(bounds[-1]))
        return cls(vocabulary, bounds, flat)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @cached_property
    def _number(self) -> dict[str, int]:
        return {key: i for i, key in enumerate(self.vocabulary)}

    @cached_property
    def _by_first_key(self) -> tuple[np.ndarray, np.ndarray]:
        """The phrases sorted by their first keys, and the start of each key's phrases (V + 1,)."""
        first = self.keys[self.bounds[:-1]]
        order = np.argsort(first, kind="stable").astype(np.int32)
        return order, np.searchsorted(first[order], np.arange(len(self.vocabulary) + 1))

    def phrase(self, number: int) -> tuple[str, ...]:
        """The sorted keys of a phrase."""
        return tuple(sorted(self.vocabulary[key] for key in self.keys[self.bounds[number] : self.bounds[number + 1]]))

    def find(self, note: TokenizedNote, gap: int) -> list[PhraseMatch]:
        """All phrases with their keys in one sentence and at most `gap` other content words between them."""
        places = self._key_places(note)
        side_numbers = (self._number[key] for key in sorted(SIDE_KEYS) if key in self._number)
        sides = {number: places[number] for number in side_numbers if number in places}
        in_sentences = {key: {note.sentence[place] for place in at} for key, at in places.items()}
        matches: list[PhraseMatch] = []
        for phrase, keys in self._complete(np.fromiter(places, dtype=np.int64, count=len(places))):
            if len(keys) == 1:
                matches += [PhraseMatch(phrase, (place,), 0) for place in places[keys[0]]]
            elif shared := set.intersection(*(in_sentences[key] for key in keys)):
                # In long notes most places of a common word are in sentences without the other words.
                near = {key: [place for place in places[key] if note.sentence[place] in shared] for key in keys}
                matches += self._occurrences(phrase, near, sides, note, gap)
        return matches

    def misspelled(self, note: TokenizedNote) -> list[int]:
        """The words of a note that are in no phrase, but are one letter away from a word of a phrase."""
        return [
            place
            for place, word in enumerate(note.words)
            if len(word) >= _MISSPELLED_LENGTH and self._similar_keys(word)
        ]

    def _key_places(self, note: TokenizedNote) -> dict[int, list[int]]:
        """The words of a note for each key that occurs."""
        functions, number = function_words(), self._number
        places: dict[int, list[int]] = {}
        for place, word in enumerate(note.words):
            is_function_word = word in functions and place not in note.letters
            keys = () if is_function_word or place in note.list_numbers else word_keys(word)
            for key in (*keys, *word_keys(note.hyphenated[place])) if place in note.hyphenated else keys:
                if key in number:
                    places.setdefault(number[key], []).append(place)
        for place in self.misspelled(note):
            for key in self._similar_keys(note.words[place]):
                insort(places.setdefault(key, []), place)
        return places

    @cached_property
    def _similar(self) -> dict[str, tuple[int, ...]]:
        """The results of `_similar_keys` so far."""
        return {}

    def _similar_keys(self, word: str) -> tuple[int, ...]:
        """For a word that is in no phrase, the keys that differ by one letter (inserted, omitted or changed)."""
        if (key := word_keys(word)[0]) in self._number:
            return ()
        if key not in self._similar:
            self._similar[key] = tuple(self._one_letter_away(key))
        return self._similar[key]

    def _one_letter_away(self, key: str) -> Iterator[int]:
        for number in range(bisect_left(self.vocabulary, key[:_CORRECT_PREFIX]), len(self.vocabulary)):
            if not self.vocabulary[number].startswith(key[:_CORRECT_PREFIX]):
                break
            if is_misspelling(key, self.vocabulary[number]):
                yield number

    def _complete(self, present: np.ndarray) -> list[tuple[int, list[int]]]:
        """The phrases whose keys are all present, with their keys."""
        if not len(present):
            return []
        order, starts = self._by_first_key
        candidates = np.concatenate([order[starts[key] : starts[key + 1]] for key in present.tolist()])
        if not len(candidates):
            return []
        is_present = np.zeros(len(self.vocabulary), dtype=bool)
        is_present[present] = True
        lengths = self.bounds[candidates + 1] - self.bounds[candidates]
        first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        offsets = np.repeat(self.bounds[candidates] - first, lengths)
        hits = is_present[self.keys[np.arange(int(lengths.sum())) + offsets]]
        phrases = candidates[np.logical_and.reduceat(hits, first)]
        bounds = zip(phrases.tolist(), self.bounds[phrases].tolist(), self.bounds[phrases + 1].tolist())
        return [(phrase, self.keys[start:end].tolist()) for phrase, start, end in bounds]

    def _occurrences(
        self, phrase: int, keys: dict[int, list[int]], sides: dict[int, list[int]], note: TokenizedNote, gap: int
    ) -> Iterable[PhraseMatch]:
        """The occurrences of a phrase: the closest places of its keys, and for each of its sides the nearest place."""
        near = [at for key, at in keys.items() if key not in sides] or list(keys.values())
        far = [at for key, at in keys.items() if key in sides] if len(near) < len(keys) else []
        others = [at for key, at in sides.items() if key not in keys] if far else []
        seen = set()
        for window in _windows(near, note.sentence):
            between = note.content[window[-1]] - note.content[window[0]] + 1 - len(window)
            chosen = set(window)
            for at in far:
                side = _nearest_side(at, window, chosen, note)
                if side is None or any(
                    _is_nearer(_nearest_side(it, window, chosen, note), side, note) for it in others
                ):
                    break
                chosen.add(side.place)
                between -= window[0] < side.place < window[-1]
            else:
                match = PhraseMatch(phrase, tuple(sorted(chosen)), max(0, between))
                if between <= gap and match.places not in seen:
                    seen.add(match.places)
                    yield match


def is_misspelling(key: str, correct: str) -> bool:
    """Whether a key becomes another by one letter inserted, omitted or changed.

    Another ending is another word (keratin, keratitis; eosinophil, eosinophilia), but one letter too many is not.
    """
    shorter = min(len(key), len(correct))
    if shorter < _MISSPELLED_LENGTH or not key.isalpha():
        return False
    same = next((i for i, (a, b) in enumerate(zip(key, correct)) if a != b), shorter)
    rest, expected = key[same:], correct[same:]
    return rest[1:] == expected or (len(expected) > 1 and (rest[1:] == expected[1:] or rest == expected[1:]))


def _with_sides(text: str, tokens: Tokens) -> list[str]:
    """The words, with R and L written out where they are sides: before a sided word, or in capitals before a word."""
    words = list(tokens.words)
    for place, (word, following) in enumerate(zip(words, [*words[1:], ""])):
        if word not in _SHORT_SIDES:
            continue
        start, end = int(tokens.starts[place]), int(tokens.ends[place])
        is_capital = text[start:end].isupper() and text[end : end + 1] == " "
        is_unit = place > 0 and words[place - 1].isdigit()  # 2 L of oxygen
        is_word = len(following) >= _SIDED_LENGTH and following.isalpha() and following not in _NOT_SIDED
        if following in sided_words() or (is_capital and is_word and not is_unit):
            words[place] = _SHORT_SIDES[word]
    return words


def _type_letters(text: str, words: list[str], starts: list[int]) -> frozenset[int]:
    """The words that are a capital letter after a word in lower case: a type such as hepatitis A, not an article."""
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
    """A side relative to the words of a phrase; the smallest is the nearest, with commas before distance."""

    is_other_clause: bool
    distance: int
    place: int


def _nearest_side(at: list[int], window: Sequence[int], taken: set[int], note: TokenizedNote) -> _Side | None:
    """The nearest of a side's places, which are sorted, to a word of the window in its sentence."""
    nearest = None
    for word in window:
        after = bisect_left(at, word)
        for place in at[max(0, after - 2) : after + 2]:
            side = _Side(note.clause[place] != note.clause[word], abs(place - word), place)
            is_free = note.sentence[place] == note.sentence[word] and place not in taken
            if is_free and (nearest is None or side < nearest):
                nearest = side
    return nearest


def _is_nearer(other: _Side | None, side: _Side, note: TokenizedNote) -> bool:
    """Whether another side is nearer, as for the knee in "left hip and right knee", but not in "left and right"."""
    if other is None or other[:2] >= side[:2]:
        return False
    first, last = sorted((side.place, other.place))
    return not function_words().issuperset(note.words[first + 1 : last])


def _windows(places: list[list[int]], sentence: list[int]) -> Iterator[list[int]]:
    """The shortest windows of one sentence with a place of each list; a window has one place per list, in order."""
    last: dict[int, int] = {}
    for place, number in sorted((place, number) for number, at in enumerate(places) for place in at):
        before = last.get(number, -1)
        last[number] = place
        window = sorted(last.values())
        # A window with an earlier place of its last word's key is not the shortest.
        is_shortest = len(last) == len(places) and before < window[0]
        if is_shortest and sentence[window[0]] == sentence[place] and len(set(window)) == len(window):
            yield window
