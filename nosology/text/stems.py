"""Stems of English and Spanish medical words, most of which come from Greek and Latin.

"haemorrhages", "hemorrhage" and "hemorragia" have one stem, as have "neumonía" and "pneumonia". Words of one stem are
treated as equal. `data/words.tsv` has groups of other equivalent words ("renal", "kidney", "riñón").
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from nosology.text.tokens import rows

_SHORT = 4  # words up to this length are not stemmed: they are abbreviations or have no ending
# Words whose stems would collide: tests and testes, sangre (blood) and sangrado (bleeding), calloso and callus.
_NOT_STEMMED = frozenset(
    [
        "test",
        "tests",
        "tested",
        "testing",
        "testis",
        "testes",
        "teste",
        "graves",
        "pneumoniae",
        "sangre",
        "calloso",
        "callosum",
        "hipocondrio",
    ]
)
_PLURAL = re.compile(r"[^siu]s$")
_FINAL_I = re.compile(r"(?<!fil)i$")  # retinopatía and retinopathy; but eosinófilo is not eosinofilia


@lru_cache(maxsize=2)
def _rules(step: str) -> list[tuple[re.Pattern[str], str]]:
    """Patterns and replacements of a step: spelling or ending."""
    return [(re.compile(row["pattern"]), row["replacement"]) for row in rows("stem_rules.tsv") if row["step"] == step]


@lru_cache(maxsize=1 << 17)
def stem(word: str) -> str:
    """The stem of a lower-case word; for a short word or a number, the word without accents."""
    plain = unicodedata.normalize("NFD", word).replace("n\u0303", "ni")  # ñ is a letter of its own: año, ano
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    if plain in _NOT_STEMMED or not plain.isalpha():
        return plain
    reduced = plain[:-1] if len(plain) > _SHORT and _PLURAL.search(plain) else plain
    if len(reduced) <= _SHORT:
        return reduced
    for pattern, replacement in _rules("spelling"):
        reduced = pattern.sub(replacement, reduced)
    for pattern, replacement in _rules("ending"):
        shorter = pattern.sub(replacement, reduced)
        if len(shorter) >= _SHORT - 1:
            reduced = shorter
    if len(reduced) > _SHORT + 1 and reduced[-1] in "aeiou":
        reduced = reduced[:-1]
    return reduced[:-1] if len(reduced) > _SHORT + 2 and _FINAL_I.search(reduced) else reduced


@lru_cache(maxsize=1)
def _groups() -> dict[str, tuple[str, ...]]:
    """Stem -> the stems of the first words of its groups."""
    table = rows("words.tsv")
    groups: dict[str, dict[str, None]] = {(first := stem(row["word"])): {first: None} for row in table}
    for row in table:
        for equivalent in row["same"].split(","):
            groups.setdefault(stem(equivalent.strip().lower()), {})[stem(row["word"])] = None
    return {word: tuple(firsts) for word, firsts in groups.items()}


@lru_cache(maxsize=1 << 17)
def word_keys(word: str) -> tuple[str, ...]:
    """The keys of a lower-case word: the stems of the first words of its groups, else its own stem."""
    key = stem(word)
    return _groups().get(key, (key,))


def is_listed_word(word: str) -> bool:
    """Whether a lower-case word is in the table of words; then a short word is no abbreviation."""
    return stem(word) in _groups()
