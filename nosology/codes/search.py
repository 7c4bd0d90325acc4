"""Codes by words: which descriptions and inclusion terms a query fits best."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nosology.codes.table import CodeTable

_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset({"a", "an", "and", "by", "due", "for", "from", "in", "into", "of", "on", "or", "the", "to", "with"})
# What a code adds without saying more: it does not make a text longer. Brackets hold words that may be left out.
_OPEN = re.compile(r"\([^)]*\)|\[[^]]*\]|unspecified(?: (?:organism|site|type))?|(?:site )?not specified|\bn[oe][sc]\b")


@dataclass(frozen=True, slots=True)
class Hit:
    """A code that fits a query; `matched` is its description or the inclusion term that fits best."""

    code: str
    description: str
    billable: bool
    score: float
    matched: str


def search(table: CodeTable, query: str, limit: int = 20, *, billable: bool | None = None) -> list[Hit]:
    """The codes with the words of a query (whole, or as the beginning of a word), best first.

    A word counts by its rarity; of equal matches the text with fewer other words is better, then the shorter code.
    """
    words = _query_words(query)
    lines = table.lines()
    rows = {word: set() for word in words}
    for row, text in enumerate("\n".join(table.descriptions()).lower().split("\n")):
        for word in words:
            if word in text:
                rows[word].add(lines[row])
    terms = {}
    for line, notes in table.all_notes().items():
        if found := (*notes.get("inclusion_terms", ()), *notes.get("includes", ())):
            terms[line] = found
            text = " ".join(found).lower()
            for word in words:
                if word in text:
                    rows[word].add(line)
    weights = {word: math.log(1 + len(lines) / (1 + len(rows[word]))) for word in words}
    ranked = []
    for line in _candidates(list(rows.values()), limit):
        if table.kind(line) in ("chapter", "block") or (billable is not None and table.billable(line) != billable):
            continue
        texts = (table.description(line), *terms.get(line, ()))
        scores = [_score(text, weights, query) * (0.97 if place else 1.0) for place, text in enumerate(texts)]
        score, matched = max(zip(scores, texts), key=lambda pair: pair[0])
        if score > 0:
            ranked.append((-score, len(line), line, matched))
    return [
        Hit(line, table.description(line), table.billable(line), round(-score, 4), matched)
        for score, _, line, matched in sorted(ranked)[:limit]
    ]


def _candidates(rows: list[set[str]], limit: int) -> set[str]:
    """The lines with every word, or, if these are too few, those with any."""
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
    phrase = 1.1 if query.lower().strip() in lowered else 1.0
    return phrase * (got / sum(weights.values())) ** 2 / (1 + 0.12 * max(0, length - len(weights)))
