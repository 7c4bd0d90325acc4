"""Codes by words: which descriptions and inclusion terms a query fits best."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nosology.codes.table import CodeTable

_WORD = re.compile(r"[a-z0-9]+")
_MOST = 1_500  # lines with the same words of the query that are scored: those of the shortest descriptions
_PHRASE = 1.1  # the gain of a text that has the query as it stands
_STOP = frozenset({"a", "an", "and", "by", "due", "for", "from", "in", "into", "of", "on", "or", "the", "to", "with"})
# What a code adds without saying more: it does not make a text longer. Brackets hold words that may be left out.
_OPEN = re.compile(r"\([^)]*\)|\[[^]]*\]|unspecified(?: (?:organism|site|type))?|(?:site )?not specified|\bn[oe][sc]\b")


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A code that fits a query; `matched` is its description or the inclusion term that fits best."""

    code: str
    description: str
    billable: bool
    score: float
    matched: str


def search(table: CodeTable, query: str, limit: int = 20, *, billable: bool | None = None) -> list[SearchHit]:
    """The codes with the words of a query (whole, or as the beginning of a word), best first.

    A word counts by its rarity; of equal matches the text with fewer other words is better, then the shorter code.
    """
    words = _query_words(query)
    texts = _texts(table)
    rows = {word: texts.rows(word) for word in words}
    weights = {word: math.log(1 + len(texts.lines) / (1 + len(found))) for word, found in rows.items()}
    whole = sum(weights.values())
    ranked: list[tuple[float, int, str, str]] = []
    for share, lines in _by_share(_candidates(list(rows.values()), limit), rows, weights):
        # No text can score more than this; if enough do so already, the lines to come need not be looked at.
        best = _PHRASE * (share / whole) ** 2
        if len(ranked) >= limit and sorted(ranked)[limit - 1][0] < -best:
            break
        for row in texts.shortest(lines):
            line = texts.lines[row]
            if table.kind(line) in ("chapter", "block") or (billable is not None and table.billable(line) != billable):
                continue
            found = (table.description(line), *texts.terms.get(line, ()))
            scores = [_score(text, weights, query) * (0.97 if place else 1.0) for place, text in enumerate(found)]
            score, matched = max(zip(scores, found), key=lambda pair: pair[0])
            if score > 0:
                ranked.append((-score, len(line), line, matched))
    return [
        SearchHit(line, table.description(line), table.billable(line), round(-score, 4), matched)
        for score, _, line, matched in sorted(ranked)[:limit]
    ]


class _Texts:
    """All that can be searched in a table, in one string: a row a line, its description and its terms."""

    def __init__(self, table: CodeTable):
        self.lines = table.lines()
        self.terms = {
            line: found
            for line, notes in table.all_notes().items()
            if (found := (*notes.get("inclusion_terms", ()), *notes.get("includes", ())))
        }
        rows = [
            " ".join((words, *self.terms.get(line, ()))).replace("\n", " ").lower()
            for line, words in zip(self.lines, table.descriptions())
        ]
        self._text = "\n".join(rows)
        self._starts = list(accumulate((len(row) + 1 for row in rows), initial=0))
        self._sizes = [len(words) for words in table.descriptions()]
        self.rows = lru_cache(maxsize=512)(self._rows)  # people look for the same words again and again

    def _rows(self, word: str) -> set[int]:
        """The rows that have the word, be it as a part of another; a single letter only as a word of its own."""
        if len(word) == 1:  # hepatitis B: as a part, it is in every row
            alone = re.finditer(f"(?<![a-z0-9]){word}(?![a-z0-9])", self._text)
            return {bisect_right(self._starts, match.start()) - 1 for match in alone}
        found, place = set(), self._text.find(word)
        while place >= 0:
            row = bisect_right(self._starts, place) - 1
            found.add(row)
            place = self._text.find(word, self._starts[row + 1])
        return found

    def shortest(self, rows: list[int]) -> list[int]:
        """The rows; of very many, those with the shortest descriptions, which would come first anyway."""
        return rows if len(rows) <= _MOST else sorted(rows, key=self._sizes.__getitem__)[:_MOST]


@lru_cache(maxsize=8)
def _texts(table: CodeTable) -> _Texts:
    return _Texts(table)


def _by_share(
    candidates: set[int], rows: dict[str, set[int]], weights: dict[str, float]
) -> Iterator[tuple[float, list[int]]]:
    """The candidates in groups by the weight of the query's words that they have, the heaviest first."""
    groups: dict[float, list[int]] = {}
    for row in candidates:
        groups.setdefault(sum(weights[word] for word, found in rows.items() if row in found), []).append(row)
    return iter(sorted(groups.items(), reverse=True))


def _candidates(rows: list[set[int]], limit: int) -> set[int]:
    """The rows with every word, or, if these are too few, those with any."""
    if not rows:
        return set()
    every = set.intersection(*rows)
    return every if len(every) >= 5 * limit else set.union(*rows)


def _query_words(query: str) -> list[str]:
    words = list(dict.fromkeys(_WORD.findall(query.lower())))
    return [_singular(word) for word in words if word not in _STOP] or words


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _score(text: str, weights: dict[str, float], query: str) -> float:
    """How well one text fits: the weight of the query's words it has, less the more words it has besides."""
    lowered = text.lower()
    tokens = _WORD.findall(lowered)
    got = 0.0
    for word, weight in weights.items():
        if word in tokens or word + "s" in tokens:
            got += weight
        elif any(token.startswith(word) for token in tokens):
            got += 0.7 * weight
    if not got:
        return 0.0
    length = sum(0.5 if token == "other" else token not in _STOP for token in _WORD.findall(_OPEN.sub(" ", lowered)))
    phrase = _PHRASE if query.lower().strip() in lowered else 1.0
    return phrase * (got / sum(weights.values())) ** 2 / (1 + 0.12 * max(0, length - len(weights)))
