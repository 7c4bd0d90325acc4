"""The names of codes that a search ranks, as keys of their words; one index for all releases of a code system."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nosology.codes.search_words import (
    content_keys,
    content_words,
    exact_keys,
    is_abbreviation,
    look_up_order,
    meanings,
    value_ranges,
    without_possessives,
)
from nosology.codes.terms import SOURCES, DefaultCodes, Term, code_in_release, specificity_keys
from nosology.codes.word_guesses import WordGuesses
from nosology.text.stems import word_keys
from nosology.text.tokens import words_of

if TYPE_CHECKING:
    from nosology.codes.table import CodeTable

_SEPARATOR = "\x7f"  # in no name and no code
_FACTORS = dict(zip(SOURCES, (1.0, 0.99, 0.985, 0.97, 0.98, 0.95, 0.9, 0.88)))  # of a name, by its source
_RARE_CHAPTERS = "OPQVWXY"  # births, malformations, accidents
_RARE = 0.95  # their factor
_TOO_MANY = 400  # names that are ranked
_HEADS, _REFINED, _REFINED_FACTOR = 12, 40, 0.96  # see NameIndex._refined
_LEAST = 0.3  # names with less of the weight that the best name has are not ranked
_MOST = 8.0  # the weight of a rare word
_FILLER = frozenset(
    ("unspecified", "specified", "nos", "nec", "classified", "elsewhere", "otherwise", "encounter", "initial", "type")
)
_SHORT_WORD = re.compile(r"\b[a-z]{2,5}\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TOPICS = re.compile(
    r"\b(?:with|and|from|after|due to|secondary to|following|status post|s/p)\b|[,;+/&]", re.IGNORECASE
)
_STAGE = re.compile(r"\b(?:stage|grade) \w+\b", re.IGNORECASE)
_LATER = frozenset(("subsequent", "routine", "sequela", "sequelae"))  # see NameIndex._for_encounter
_HEALING = frozenset(("healing", "delayed"))
_ENCOUNTERS = ("subsequent", "sequela", "sequelae", "healing", "nonunion", "malunion", "delayed", "open", "late")


class RankedCode(NamedTuple):
    """A code that a query names; matched: its name, "" if that is the description."""

    code: str
    score: float
    matched: str


class NameIndex:
    """N names of codes, sorted by code; name n has the keys `keys[bounds[n]:bounds[n + 1]]` of V keys.

    The names are of all releases of a system. `in_table` has, for each of `codes`, the code in the release of `table`.
    """

    def __init__(self, state: dict[str, Any], table: CodeTable):
        self.vocabulary: list[str] = state["vocabulary"].split(_SEPARATOR)
        self.words: list[str] = state["words"].split(_SEPARATOR)  # as written, the most frequent first
        self.texts: list[str] = state["texts"].split(_SEPARATOR)  # "" for the description
        self.codes: list[str] = state["codes"].split(_SEPARATOR)
        self.code = np.array(state["code"], dtype=np.int32)  # into codes
        self.source = np.array(state["source"], dtype=np.int8)  # into SOURCES
        self.bounds = np.array(state["bounds"], dtype=np.int32)
        self.keys = np.array(state["keys"], dtype=np.int32)
        self.ranges: list[tuple[float, float, int]] = [tuple(item) for item in state["ranges"]]
        self._number = {key: i for i, key in enumerate(self.vocabulary)}
        owner = np.repeat(np.arange(len(self.code), dtype=np.int32), np.diff(self.bounds))
        order = np.argsort(self.keys, kind="stable")
        self._postings = owner[order]
        self._starts = np.searchsorted(self.keys[order], np.arange(len(self.vocabulary) + 1))
        counts = np.diff(self._starts)
        self.idf = np.log1p(len(self.code) / (1.0 + counts)).astype(np.float32)
        for word in _FILLER:
            if (key := self._number.get(word_keys(word)[0])) is not None:
                self.idf[key] *= 0.1
        self.weight = np.add.reduceat(self.idf[self.keys], self.bounds[:-1]) if len(self.code) else np.zeros(0)
        first = [code[0] in _RARE_CHAPTERS and table.system == "icd10cm" for code in self.codes]
        rare = np.where(np.array(first, dtype=bool), _RARE, 1.0)
        self.factor = (np.array([_FACTORS[source] for source in SOURCES])[self.source] * rare[self.code]).astype(
            np.float32
        )
        self.guesses = WordGuesses(self.words)
        self._set_table(table, self.codes)

    def _set_table(self, table: CodeTable, in_table: list[str]) -> None:
        self.table, self.in_table = table, in_table
        self.billable = np.array([table.billable(code) for code in in_table], dtype=bool)[self.code]
        self.exists = np.array([code in table for code in in_table], dtype=bool)[self.code]
        self.specificity = specificity_keys(table, in_table)

    def of_release(self, table: CodeTable) -> NameIndex:
        """The names for another release of the system: a code that it lacks stands for what was coded in its place."""
        names = copy(self)
        defaults = DefaultCodes(table, seventh=True) if table.system == "icd10cm" else None
        in_table = []
        for code in self.codes:
            if defaults and self.table.billable(code) and not table.billable(code):
                in_table.append(code_in_release(code, table, defaults) or "")
            else:
                in_table.append(code if code in table else "")
        names._set_table(table, in_table)
        return names

    @classmethod
    def build(cls, table: CodeTable, all_terms: Iterable[Term]) -> dict[str, Any]:
        """The state, as JSON values."""
        best: dict[tuple[str, tuple[str, ...]], tuple[int, int, str]] = {}
        counts: Counter[str] = Counter()
        for term in all_terms:
            text = without_possessives(term.text)
            words = words_of(text)
            counts.update(words)
            keys = tuple(sorted({word_keys(word)[0] for word in content_words(text, words)}))
            if keys:  # of equal names the one in full: heart failure, not CHF
                value = SOURCES.index(term.source), -len(words), term.text
                best[term.code, keys] = min(best.get((term.code, keys), value), value)
        items = sorted(best.items())
        codes = sorted({code for (code, _), _ in items})
        vocabulary = sorted({key for (_, keys), _ in items for key in keys})
        column, number = ({name: i for i, name in enumerate(names)} for names in (codes, vocabulary))
        bounds = np.concatenate([[0], np.cumsum([len(keys) for (_, keys), _ in items], dtype=np.int64)])
        texts = ["" if code in table and text == table.description(code) else text for (code, _), (_, _, text) in items]
        return {
            "vocabulary": _SEPARATOR.join(vocabulary),
            "words": _SEPARATOR.join(word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
            "texts": _SEPARATOR.join(texts),
            "codes": _SEPARATOR.join(codes),
            "code": [column[code] for (code, _), _ in items],
            "source": [source for _, (source, _, _) in items],
            "bounds": bounds.tolist(),
            "keys": [number[key] for (_, keys), _ in items for key in keys],
            "ranges": [(*pair, i) for i, (_, (_, _, text)) in enumerate(items) for pair in value_ranges(text)],
        }

    def postings(self, key: str) -> np.ndarray:
        """The names with a key."""
        number = self._number.get(key)
        return self._postings[:0] if number is None else self._postings[self._starts[number] : self._starts[number + 1]]

    def header(self, query: str) -> str | None:
        """The header that has the query as its description."""
        lines = self._headers.get(exact_keys(query), ())
        return next((line for line in lines if line in self.table and not self.table.billable(line)), None)

    @cached_property
    def _headers(self) -> dict[frozenset[str], list[str]]:
        headers: dict[frozenset[str], list[str]] = {}
        for line in self.table.codes(billable=False):
            headers.setdefault(exact_keys(self.table.description(line)), []).append(line)
        return headers

    def search(self, query: str, limit: int, *, headers: bool = False) -> list[RankedCode]:
        """The codes of a query, best first; of two topics, the best of each in turn."""
        query = _SHORT_WORD.sub(self._in_capitals, query)
        whole = self._ranked(query, headers)
        if not whole or whole[0].score > 0.75:
            return _distinct(whole)[:limit]
        best: tuple[float, list[list[RankedCode]]] = (whole[0].score * 1.15, [])
        for link in _TOPICS.finditer(query):
            parts = [self._ranked(part, headers) for part in (query[: link.start()], query[link.end() :])]
            score = min(part[0].score if part else 0.0 for part in parts)
            best = max(best, (score, parts), key=lambda item: item[0])
        if not best[1]:
            return _distinct(whole)[:limit]
        together = self._ranked(_STAGE.sub("", query), headers) if _STAGE.search(query) else whole
        turns = [hit for hits in zip(*best[1], together) for hit in hits]
        return _distinct([*turns, *best[1][0], *best[1][1]])[:limit]

    def _in_capitals(self, word: re.Match[str]) -> str:
        """A word in capitals if it is an abbreviation and no name has it: oa, sah."""
        is_known = word_keys(word[0])[0] in self._number
        return word[0].upper() if is_abbreviation(word[0]) and not is_known else word[0]

    def _ranked(self, query: str, headers: bool) -> list[RankedCode]:
        """The codes of a query of one topic, best first."""
        query_words = self._query_words(query)
        if not query_words:
            return []
        match = self._match(query_words)
        matched = match.weights @ match.matches
        near = np.flatnonzero(matched > _LEAST * matched.max())
        near = near[self.exists[near] & (self.billable[near] != headers)]
        score = match.score(matched[near], match.extra[near]) * self.factor[near]
        best = _largest(score, _TOO_MANY)
        hits = near[best]
        found = list(zip(score[best].tolist(), hits.tolist()))
        if not headers:
            found += self._refined(match, hits[match.extra[hits] < 0.01])
        results = self._by_code(query, found)
        if results and not headers:
            results += self._siblings(results[0])
            results.sort(key=lambda hit: -round(hit.score, 3))
        return self._for_encounter(query, results)

    def _match(self, query_words: Sequence[_QueryWord]) -> _QueryMatch:
        """How well each name matches the words of a query."""
        weights = np.array([word.weight for word in query_words], dtype=np.float32)
        matches = np.zeros((len(query_words), len(self.code)), dtype=np.float32)
        extra = self.weight.copy()
        used: set[int] = set()
        for row, word in zip(matches, query_words):
            for names, strength in word.names:
                row[names] = np.maximum(row[names], strength)
            for key in word.keys:
                if (number := self._number.get(key, -1)) >= 0 and number not in used:
                    used.add(number)
                    extra[self.postings(key)] -= self.idf[number]
        return _QueryMatch(matches, weights, float(weights.sum()), extra, used)

    def _by_code(self, query: str, found: Iterable[tuple[float, int]]) -> list[RankedCode]:
        """The codes of scored names, best first; equal ones in the order of the look-ups, then unspecified ones first.

        found: scores and names.
        """
        ranked: dict[str, tuple[float, int]] = {}
        for value, name in found:
            code = self.in_table[self.code[name]]
            ranked[code] = max(ranked.get(code, (0.0, 0)), (value, -name))
        places = look_up_order().get(exact_keys(query), {})

        def order(code: str) -> tuple[Any, ...]:
            score, name = ranked[code]
            return -round(score, 3), places.get(self.codes[self.code[-name]], len(places)), self.specificity[code]

        return [
            RankedCode(code, min(1.0, ranked[code][0]), self.texts[-ranked[code][1]])
            for code in sorted(ranked, key=order)
        ]

    def _refined(self, match: _QueryMatch, heads: np.ndarray) -> Iterator[tuple[float, int]]:
        """The names in the category of a name that is part of the query, by the other words of the query.

        "bedsore" is L89.90, pressure ulcer; "sacrum" and "stage 4" are in the description of L89.154.
        """
        done = set()
        for head in heads[:_HEADS].tolist():
            code = self.codes[self.code[head]]
            covered = match.matches[:, head]
            if covered.min() > 0 or (mark := (code[:3], tuple(covered > 0))) in done:
                continue
            done.add(mark)
            family = slice(*np.searchsorted(self.code, self._category(code[:3])))
            matched = match.weights @ np.maximum(match.matches[:, family], covered[:, None])
            better = self.billable[family] & (matched > float(match.weights @ covered) + 0.05 * match.total)
            extra = match.extra[family].copy()
            for key in {*self.name_keys(head), *self._description_keys(self.in_table[self.code[head]])} - match.used:
                names = self._postings[self._starts[key] : self._starts[key + 1]]
                start, stop = np.searchsorted(names, [family.start, family.stop])
                extra[names[start:stop] - family.start] -= self.idf[key]
            score = match.score(matched, extra) * self.factor[family] * self.factor[head] * _REFINED_FACTOR * better
            for name in _largest(score, _REFINED).tolist():
                yield float(score[name]), name + family.start

    def _siblings(self, hit: RankedCode) -> list[RankedCode]:
        """The codes next to a code, such as those of the other sides; they follow what matches half of the query."""
        if self.table.system != "icd10cm":
            return []
        base, near = hit.code[:7], []
        start, stop = self._category(base[:3])
        for length in range(len(base) - 1, 2, -1):
            near = [code for code in self.codes[start:stop] if code.startswith(base[:length]) and code[7:] in ("", "A")]
            near = [code for code in near if self.table.billable(code) and code != hit.code]
            if len(near) > 2:
                break
        return [RankedCode(code, (0.5 - 0.01 * i) * hit.score, "") for i, code in enumerate(near[:8])]

    def name_keys(self, name: int) -> list[int]:
        """The keys of a name."""
        return self.keys[self.bounds[name] : self.bounds[name + 1]].tolist()

    def _description_keys(self, code: str) -> list[int]:
        return [self._number[key] for key in content_keys(self.table.description(code)) if key in self._number]

    def _category(self, category: str) -> list[int]:
        """The first column of the codes of a category, and the first after them."""
        return [bisect_left(self.codes, category), bisect_left(self.codes, category + _SEPARATOR)]

    def _for_encounter(self, query: str, found: list[RankedCode]) -> list[RankedCode]:
        """The codes with the seventh character that the query asks for: subsequent encounter, sequela, open."""
        wanted = set(content_keys(query))
        if self.table.system != "icd10cm" or not wanted & {word_keys(word)[0] for word in _ENCOUNTERS}:
            return found
        changed = []
        for i, hit in enumerate(found):
            code = hit.code
            parent = self.table.parent(code)
            if i < 20 and len(code) == 8 and parent:
                siblings = [line for line in self.table.children(parent) if len(line) == 8]
                counts = {
                    line: len(wanted.intersection(content_keys(self.table.description(line)))) for line in siblings
                }
                best = max(siblings, key=lambda line: counts[line])
                hit = hit._replace(code=best if counts[best] > counts[code] else code)
            changed.append(hit)
        return changed

    def _query_words(self, query: str) -> list[_QueryWord]:
        """The words of a query that some name has."""
        words = list(dict.fromkeys(content_words(query)))
        capitals = set(re.findall(r"\b[A-Z]{2,5}\b", query))
        light = _FILLER | _LATER | (_HEALING if not _LATER.isdisjoint(words) else frozenset())
        query_words = []
        for i, word in enumerate(words):
            keys = dict.fromkeys(word_keys(word), 1.0)
            for first, second in zip(words[max(0, i - 1) : i + 1], words[max(1, i) : i + 2]):  # gall bladder
                if min(len(first), len(second)) > 2:
                    keys[word_keys(first + second)[0]] = 1.0
            phrases = [phrase.split() for phrase in meanings().get(word, ())]
            keys |= {word_keys(phrase[0])[0]: 0.95 for phrase in phrases if len(phrase) == 1}
            names = [(self.postings(key), strength) for key, strength in keys.items()]
            for phrase in phrases:
                together = self.postings(word_keys(phrase[0])[0])
                for other in phrase[1:]:
                    together = np.intersect1d(together, self.postings(word_keys(other)[0]), assume_unique=True)
                names.append((together, 0.95))
            names += self._values(word)
            if not any(len(found) for found, _ in names) and word.upper() not in capitals:
                keys = {word_keys(other)[0]: strength for other, strength in self.guesses.guess(word)}
                names = [(self.postings(key), strength) for key, strength in keys.items()]
            if count := max((len(found) for found, _ in names), default=0):
                weight = min(_MOST, float(np.log1p(len(self.code) / (1.0 + count))))
                query_words.append(_QueryWord(weight * (0.1 if word in light else 1.0), names, list(keys)))
        return query_words

    def _values(self, word: str) -> list[tuple[np.ndarray, float]]:
        """The names with a range that a number is in; in each category only those with the smallest range."""
        if not _NUMBER.fullmatch(word):
            return []
        value = float(word)
        found = [(high - low, name) for low, high, name in self.ranges if low <= value <= high]
        smallest: dict[str, float] = {}
        for width, name in found:
            category = self.codes[self.code[name]][:3]
            smallest[category] = min(width, smallest.get(category, width))
        names = [name for width, name in found if width == smallest[self.codes[self.code[name]][:3]]]
        return [(np.array(sorted(set(names)), dtype=np.int64), 1.0)]


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest values, the largest first; of equal values the first."""
    places = np.arange(len(values))
    if len(values) > count:
        places = np.flatnonzero(values >= -np.partition(-values, count)[count])
    return places[np.argsort(-values[places], kind="stable")[:count]]


class _QueryWord(NamedTuple):
    """A word of the query: its weight, the names that have it with the strength of the match, and its keys."""

    weight: float
    names: list[tuple[np.ndarray, float]]
    keys: list[str]


class _QueryMatch(NamedTuple):
    """S words of a query against N names."""

    matches: np.ndarray  # (S, N): the strength of the match
    weights: np.ndarray  # (S,)
    total: float
    extra: np.ndarray  # (N,): the weight of the words of a name that are not in the query
    used: set[int]  # keys of the query

    def score(self, matched: Any, extra: Any) -> Any:
        """The score of names by the weights of their words that are in the query and of those that are not."""
        return (matched / self.total) ** 2 / (1.0 + 0.35 * extra / self.total + 0.02 * extra)


def _distinct(found: Sequence[RankedCode]) -> list[RankedCode]:
    first: dict[str, RankedCode] = {}
    for hit in found:
        first.setdefault(hit.code, hit)
    return list(first.values())
