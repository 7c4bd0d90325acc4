"""Search for codes by words of their descriptions and inclusion terms."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nosology.codes.table import CodeTable

_WORD = re.compile(r"[a-z0-9]+")
_MAX_SCORED = 1_500  # lines per group of equal query words that are scored: those with the shortest descriptions
_PHRASE = 1.1  # factor for a text that contains the whole query
_STOP = frozenset({"a", "an", "and", "by", "due", "for", "from", "in", "into", "of", "on", "or", "the", "to", "with"})
# Words without information, which do not count for the length of a text. Words in brackets are optional.
_FILLER = re.compile(
    r"\([^)]*\)|\[[^]]*\]|unspecified(?: (?:organism|site|type))?|(?:site )?not specified|\bn[oe][sc]\b"
)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A code that matches a query; `matched` is its description or the inclusion term that matches best."""

    code: str
    description: str
    billable: bool
    score: float
    matched: str


def search(table: CodeTable, query: str, limit: int = 20, *, billable: bool | None = None) -> list[SearchHit]:
    """The codes with the words of a query (as words or prefixes of words), best first.

    Rare words weigh more. Between equal matches the text with fewer other words wins, then the shorter code.
    """
    words = _query_words(query)
    texts = _texts(table)
    rows = {word: texts.rows(word) for word in words}
    weights = {word: math.log(1 + len(texts.lines) / (1 + len(matches))) for word, matches in rows.items()}
    total = sum(weights.values())
    ranked: list[tuple[float, int, str, str]] = []
    for weight, lines in _candidates(rows, weights, limit):
        # No text of this group or a later one can score more. If enough lines did already, the rest is skipped.
        best = _PHRASE * (weight / total) ** 2
        if len(ranked) >= limit and sorted(ranked)[limit - 1][0] < -best:
            break
        for row in texts.shortest(lines):
            line = texts.lines[row]
            if table.kind(line) in ("chapter", "block") or (billable is not None and table.billable(line) != billable):
                continue
            names = (table.description(line), *texts.terms.get(line, ()))
            scores = [_score(name, weights, query) * (0.97 if i else 1.0) for i, name in enumerate(names)]
            score, matched = max(zip(scores, names), key=lambda pair: pair[0])
            if score > 0:
                ranked.append((-score, len(line), line, matched))
    return [
        SearchHit(line, table.description(line), table.billable(line), round(-score, 4), matched)
        for score, _, line, matched in sorted(ranked)[:limit]
    ]


class _Texts:
    """The searchable texts of a table in one string; each row is one line with its description and terms."""

    def __init__(self, table: CodeTable):
        self.lines = table.lines()
        self.terms = {
            line: terms
            for line, notes in table.all_notes().items()
            if (terms := (*notes.get("inclusion_terms", ()), *notes.get("includes", ())))
        }
        rows = [
            " ".join((description, *self.terms.get(line, ()))).replace("\n", " ").lower()
            for line, description in zip(self.lines, table.descriptions())
        ]
        self._text = "\n".join(rows)
        self._starts = list(accumulate((len(row) + 1 for row in rows), initial=0))
        self._lengths = [len(description) for description in table.descriptions()]
        self.rows = lru_cache(maxsize=512)(self._rows)  # queries repeat the same words

    def _rows(self, word: str) -> set[int]:
        """The rows that contain the word, also inside another word; a single letter must be a word by itself."""
        if len(word) == 1:  # hepatitis B
            alone = re.finditer(f"(?<![a-z0-9]){word}(?![a-z0-9])", self._text)
            return {bisect_right(self._starts, match.start()) - 1 for match in alone}
        rows, position = set(), self._text.find(word)
        while position >= 0:
            row = bisect_right(self._starts, position) - 1
            rows.add(row)
            position = self._text.find(word, self._starts[row + 1])
        return rows

    def shortest(self, rows: list[int]) -> list[int]:
        """At most _MAX_SCORED rows: those with the shortest descriptions, which rank first anyway."""
        return rows if len(rows) <= _MAX_SCORED else sorted(rows, key=self._lengths.__getitem__)[:_MAX_SCORED]


@lru_cache(maxsize=8)
def _texts(table: CodeTable) -> _Texts:
    return _Texts(table)


def _candidates(rows: dict[str, set[int]], weights: dict[str, float], limit: int) -> list[tuple[float, list[int]]]:
    """The rows with all words, or with any if these are too few, grouped by their weight, largest first."""
    if not rows:
        return []
    candidates = set.intersection(*rows.values())
    if len(candidates) < 5 * limit:
        candidates = set.union(*rows.values())
    groups: dict[float, list[int]] = {}
    for row in candidates:
        groups.setdefault(sum(weights[word] for word, matches in rows.items() if row in matches), []).append(row)
    return sorted(groups.items(), reverse=True)


def _query_words(query: str) -> list[str]:
    words = list(dict.fromkeys(_WORD.findall(query.lower())))
    return [_singular(word) for word in words if word not in _STOP] or words


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _score(text: str, weights: dict[str, float], query: str) -> float:
    """The score of one text: the weight of its query words, reduced by the number of its other words."""
    lowered = text.lower()
    tokens = _WORD.findall(lowered)
    matched = 0.0
    for word, weight in weights.items():
        if word in tokens or word + "s" in tokens:
            matched += weight
        elif any(token.startswith(word) for token in tokens):
            matched += 0.7 * weight
    if not matched:
        return 0.0
    length = sum(0.5 if token == "other" else token not in _STOP for token in _WORD.findall(_FILLER.sub(" ", lowered)))
    phrase = _PHRASE if query.lower().strip() in lowered else 1.0
    return phrase * (matched / sum(weights.values())) ** 2 / (1 + 0.12 * max(0, length - len(weights)))
