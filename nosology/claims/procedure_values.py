"""Values of ICD-10-PCS codes (body part, side, approach, device, qualifier) from words of a note, within the tables."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import product
from typing import NamedTuple

from nosology.claims.procedure_names import procedures
from nosology.claims.rule_phrases import PhraseIndex, find_phrases, phrase_index
from nosology.codes.pcs_tables import AXES, PcsTables, PcsValue, pcs_terms
from nosology.core import Span
from nosology.text.tokens import Tokens, sided_words

SIDES = ("right", "left", "bilateral")
NOTHING = ("No Device", "No Qualifier")
_SIDE_WORDS = {
    "right": "right", "rt": "right", "left": "left", "lt": "left", "bilateral": "bilateral", "both": "bilateral",
    "bilaterally": "bilateral", "r": "right", "l": "left", "b": "",
}  # fmt: skip
_LABEL_WORD = re.compile(r"[\w/-]+")
# What a label says besides the site: "Hip Joint", "Skin, Lower Leg", "Lower Leg Muscle".
_LAYERS = frozenset(
    (
        "skin",
        "subcutaneous",
        "tissue",
        "and",
        "fascia",
        "muscle",
        "tendon",
        "bursa",
        "ligament",
        "joint",
        "region",
        "gland",
    )
)
_MIN_SITE = 3  # characters of a site that is no word of its own
_WITHOUT = ("without", " no", " not", " non", " never")
_WITHOUT_REACH = 9  # characters


class SiteLabel(NamedTuple):
    """A label without its side, and the side: "Hip Joint, Right" is ("hip joint", "right")."""

    base: str
    side: str


@lru_cache(maxsize=1 << 14)
def split_side(label: str) -> SiteLabel:
    """The label in lower case and singular without its side, and the side."""
    words = [word.lower() for word in _LABEL_WORD.findall(label)]
    side = next((word for word in words if word in SIDES), "")
    return SiteLabel(" ".join(_singular(word) for word in words if word not in SIDES), side)


def _singular(word: str) -> str:
    if word == "testes":
        return "testis"
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


class Meaning(NamedTuple):
    """What words mean: axis, labels (without sides, in lower case), side if they say it, and for which procedure.

    procedure: the id of the only procedure for which they mean this; "" if for all.
    """

    axis: str
    labels: frozenset[str]
    side: str
    procedure: str


class WordValue(NamedTuple):
    """Words of the note that mean a value."""

    meaning: Meaning
    span: Span


@dataclass(frozen=True)
class Cells:
    """The combinations of values that are still possible: rows of (table, values by axis)."""

    rows: tuple[tuple[str, tuple[tuple[PcsValue, ...], ...]], ...]

    def labels(self, axis: str) -> list[str]:
        """The labels that an axis can have."""
        number = AXES.index(axis)
        return list(dict.fromkeys(value.label for _, values in self.rows for value in values[number]))

    def keep(self, axis: str, labels: Collection[str]) -> Cells:
        """The combinations with one of these labels."""
        number = AXES.index(axis)
        rows = []
        for table, values in self.rows:
            kept = tuple(value for value in values[number] if value.label in labels)
            if kept:
                rows.append((table, (*values[:number], kept, *values[number + 1 :])))
        return Cells(tuple(rows))

    def codes(self) -> list[str]:
        """The codes that are left."""
        return [
            table + "".join(value.character for value in combination)
            for table, values in self.rows
            for combination in product(*values)
        ]


@lru_cache(maxsize=4096)
def cells(tables: PcsTables, pattern: str) -> Cells:
    """The combinations whose codes match a pattern such as 0SR[9B]0 or 0PS|0QS (see `ProcedurePart.code`)."""
    rows: list[tuple[str, tuple[tuple[PcsValue, ...], ...]]] = []
    for part in pattern.split("|"):
        allowed = [_expand(many) or one for many, one in re.findall(r"\[([^\]]*)\]|(.)", part)]
        for row in _rows(tables, allowed):
            values = []
            for number, axis in enumerate(row.values, 3):
                characters = allowed[number] if number < len(allowed) else "?"
                values.append(tuple(it for it in axis if characters == "?" or it.character in characters))
            if all(values):
                rows.append((row.table, tuple(values)))
    return Cells(tuple(dict.fromkeys(rows)))


def _expand(characters: str) -> str:
    """The characters of a set such as 0-3A-C."""
    return re.sub(r"(.)-(.)", lambda it: "".join(map(chr, range(ord(it[1]), ord(it[2]) + 1))), characters)


def _rows(tables: PcsTables, allowed: list[str]) -> Iterator:
    for table in tables.tables():
        if all(characters == "?" or table[at] in characters for at, characters in enumerate(allowed[:3])):
            yield from tables.of(table)


@cache
def _words() -> Mapping[str, Mapping[str, list[str]]]:
    """axis -> label -> phrases, from data/procedure_words.toml."""
    text = files("nosology.claims").joinpath("data", "procedure_words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _index(tables: PcsTables) -> tuple[PhraseIndex, dict[str, Meaning]]:
    """The phrases of all values, and what each key of the index means."""
    meanings: dict[str, Meaning] = {}
    phrases: dict[str, list[str]] = {}
    for meaning, texts in _phrases(tables):
        key = repr((*meaning[:1], sorted(meaning.labels), *meaning[2:]))
        meanings[key] = meaning
        phrases.setdefault(key, []).extend(text for text in texts if text)
    return phrase_index(phrases), meanings


def value_words(tables: PcsTables) -> list[str]:
    """The words of the phrases that mean values."""
    return [word for _, phrases in _index(tables)[0].values() for words in phrases for word in words]


def _phrases(tables: PcsTables) -> Iterator[tuple[Meaning, list[str]]]:
    """Meanings and their phrases: labels, what they include, our words, and words of single procedures."""
    sites: dict[str, set[str]] = {}
    for label in sorted({value.label for row in tables.rows for value in row.values[0]}):
        base = split_side(label).base
        yield Meaning("body_part", frozenset([base]), "", ""), [base, *_turned(label)]
        site = " ".join(word for word in base.split() if word not in _LAYERS)
        sites.setdefault(site, set()).add(base)
    for site, bases in sites.items():
        if len(site) > _MIN_SITE:
            yield Meaning("body_part", frozenset(bases), "", ""), [site]
    for label, includes in pcs_terms().body_parts.items():
        texts = [re.sub(r" ?\([^)]*\)", "", text) for text in includes]
        yield Meaning("body_part", frozenset([split_side(label).base]), "", ""), texts
    for axis, number in (("device", 2), ("qualifier", 3)):
        for label in sorted({value.label for row in tables.rows for value in row.values[number]}):
            if label not in NOTHING:
                yield Meaning(axis, frozenset([label.lower()]), "", ""), [label.lower()]
    by_procedure = {"": [_words()]} | {
        procedure.id: [part.words for part in (procedure, *procedure.also) if part.words] for procedure in procedures()
    }
    for name, tables_of_words in by_procedure.items():
        for axis, label, texts in ((a, b, c) for it in tables_of_words for a, by in it.items() for b, c in by.items()):
            base, side = split_side(label) if axis == "body_part" else SiteLabel(label.lower(), "")
            bases = sites.get(base, {base}) if axis == "body_part" else {base}
            yield Meaning(axis, frozenset(bases), side, name), list(texts)


def _turned(label: str) -> list[str]:
    """Other orders of a label with a comma: "Skin, Right Foot" is also "foot skin" and "skin of foot"."""
    first, _, last = (split_side(part).base for part in label.partition(","))
    return [f"{last} {first}", f"{first} of {last}", f"{first} of the {last}"] if first and last else []


def find_values(text: str, tokens: Tokens, tables: PcsTables) -> list[WordValue]:
    """Words of a note that mean values, in order; body parts that lie within longer ones do not count."""
    index, meanings = _index(tables)
    found = [
        WordValue(meanings[key], span)
        for key, spans in find_phrases(text, tokens, index).items()
        for span in spans
        if not _is_excluded(text, span)
    ]
    found.sort(key=lambda value: (value.span.start, -value.span.end))
    kept: list[WordValue] = []
    longest = Span(0, 0)  # the body part that reaches furthest
    for value in found:
        if value.meaning.axis == "body_part":
            if value.span != longest and value.span.end <= longest.end:
                continue
            longest = value.span
        kept.append(value)
    return kept


def _is_excluded(text: str, span: Span) -> bool:
    """Whether the word before denies a value: "without mesh", "non-cemented"."""
    return f" {text[max(0, span.start - _WITHOUT_REACH) : span.start]}".rstrip(" -\n").lower().endswith(_WITHOUT)


def find_sides(text: str, tokens: Tokens) -> list[tuple[str, Span]]:
    """The words for sides in a note, in order."""
    sides = []
    words = tokens.words
    for at, word in enumerate(words):
        side = _SIDE_WORDS.get(word)
        if side is None:
            continue
        span = Span(int(tokens.starts[at]), int(tokens.ends[at]))
        if len(word) == 1:
            following = words[at + 1] if at + 1 < len(words) else ""
            if not text[span.start].isupper() or (
                following not in sided_words() and not text[span.end :].startswith(")")
            ):
                continue
            side = side or "bilateral"
        sides.append((side, span))
    return sides
