"""Rules as data: context triggers, headings, abbreviations and word lists, one table each."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a table of this folder, by column name."""
    lines = files(__name__).joinpath(name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


@lru_cache(maxsize=1)
def function_words() -> frozenset[str]:
    """Words without content: articles, prepositions, pronouns, negators."""
    return frozenset(row["word"] for row in rows("function_words.tsv"))


@lru_cache(maxsize=1)
def sided_words() -> frozenset[str]:
    """Words before which a single R or L is a side."""
    return frozenset(row["word"] for row in rows("sided_words.tsv"))


@lru_cache(maxsize=1)
def general_words() -> dict[str, bool]:
    """Words that alone name no condition: body parts, sides, times, degrees, measurements.

    True for those that name one together with another word: loss, failure, lesion.
    """
    return {row["word"]: bool(row["joined"]) for row in rows("general_words.tsv")}
