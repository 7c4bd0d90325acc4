"""Words reduced to what inflection, spelling and, of learned words, language leave: Greek and Latin made most of them.

"haemorrhages", "hemorrhage" and "hemorragia" share one stem, as do "neumonía" and "pneumonia". The stem of a word is no
word of any language; two words of one stem are taken for one word, and `data/words.tsv` says which others are as good
as one ("renal", "kidney", "riñón").
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from nosology.text.data import rows

_SHORT = 4  # words up to this length stay as they are: they are abbreviations, or have no ending to lose
# Words that would else become others: tests and testes, sangre (blood) and sangrado (bleeding), calloso and callus.
_WHOLE = frozenset(
    ["test", "tests", "tested", "testing", "testis", "testes", "teste", "sangre", "calloso", "callosum", "hipocondrio"]
)
_PLURAL = re.compile(r"[^siu]s$")
_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^(?:ps|pn)", lambda found: found[0][1]),
        (r"^es(?=[cdfglmnpqt])", "s"),  # esclerosis, estenosis, espasmo
        (r"(?<=[ao])es(?=[cpt])", "s"),  # broncoespasmo, arterioesclerosis
        (r"[ao]e", "e"),
        (r"our$", "or"),
        (r"(?<=[bt])re$", "er"),
        (r"ph", "f"),
        (r"rrh|rh", "r"),
        (r"th", "t"),
        (r"ch|(?<!c)k", "c"),
        (r"qu(?=[ei])", "c"),
        (r"gu(?=[ei])", "g"),
        (r"y", "i"),
        (r"z", "c"),
        (r"(?<![ws])h", ""),
        (r"(?:cc|ct|[cstx])ion", "cion"),
        (r"n(?=[fpbm])", "m"),
        (r"mient", "ment"),
        (r"([^aeiou])\1", r"\1"),
    )
]
_ENDINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=cion)(?:es|s|al|ales)$", ""),
        (r"(?<=[a-z]{4})(?:ing|ings)$", ""),
        (r"(?<=[a-z]{3}[^aeiou])ed$", ""),
        (r"(?<=[a-z]{4})ad[ao]s?$", ""),
        (r"idad(?:es)?$", "it"),
        (r"(?<=[a-z]{3})o[su][ao]?s?$", ""),  # venous, venoso; also the Greek thrombosis' neighbours in -os, -ous
        (r"(?<=ic)al(?:es)?$", ""),
        (r"(?<=[a-z]{3})(?:is|es|s)$", ""),
        (r"(?<=[a-z]{4})(?:us|um)$", ""),
        (r"(?<=nc)(?:ia|i|e)$", ""),
    )
]
_YOTTE = re.compile(r"(?<!fil)i$")  # retinopatía and retinopathy; but eosinófilo is not eosinofilia


@lru_cache(maxsize=1 << 17)
def stem(word: str) -> str:
    """The stem of a lower-case word; of a short word or a number, the word without accents."""
    plain = unicodedata.normalize("NFD", word).replace("n\u0303", "ni")  # ñ is a letter of its own: año, ano
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    if plain in _WHOLE or not plain.isalpha():
        return plain
    reduced = plain[:-1] if len(plain) > _SHORT and _PLURAL.search(plain) else plain
    if len(reduced) <= _SHORT:
        return reduced
    for pattern, replacement in _SPELLINGS:
        reduced = pattern.sub(replacement, reduced)
    for pattern, replacement in _ENDINGS:
        shorter = pattern.sub(replacement, reduced)
        if len(shorter) >= _SHORT - 1:
            reduced = shorter
    if len(reduced) > _SHORT + 1 and reduced[-1] in "aeiou":
        reduced = reduced[:-1]
    return reduced[:-1] if len(reduced) > _SHORT + 2 and _YOTTE.search(reduced) else reduced


@lru_cache(maxsize=1)
def _groups() -> dict[str, tuple[str, ...]]:
    """Stem -> the first words of the groups that it stands in, as stems."""
    table = rows("words.tsv")
    found: dict[str, dict[str, None]] = {(first := stem(row["word"])): {first: None} for row in table}
    for row in table:
        first = stem(row["word"])
        for other in row["same"].split(","):
            found.setdefault(stem(other.strip().lower()), {})[first] = None
    return {word: tuple(firsts) for word, firsts in found.items()}


@lru_cache(maxsize=1 << 17)
def word_keys(word: str) -> tuple[str, ...]:
    """What a lower-case word may stand for: the first word of each group it is in, else itself, as stems."""
    own = stem(word)
    return _groups().get(own, (own,))


def is_listed_word(word: str) -> bool:
    """Whether a lower-case word stands in the table of words: a short one that does is no abbreviation."""
    return stem(word) in _groups()
