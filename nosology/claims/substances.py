"""Drugs and other substances that a note names, and their codes in the Table of Drugs and Chemicals."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from nosology.codes import DrugCodes, drug_codes
from nosology.core import Span
from nosology.text.context import phrase_variants
from nosology.text.tokens import tokenize

_MAX_WORDS = 4
_SHORTEST = 6  # letters of a name that only the table has: it also lists "tin", "blood" and "speed"


class Substance(NamedTuple):
    """A substance at a place of a note: its codes, or the one allergy code that it has; is_class: a class of drugs."""

    span: Span
    codes: DrugCodes
    allergy: str
    is_class: bool


class _Name(NamedTuple):
    substance: str
    is_class: bool


@cache
def _drug_rows() -> list[dict[str, str]]:
    lines = files("nosology.claims").joinpath("guidelines", "drugs.tsv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t"))


@cache
def drug_lists() -> dict[str, tuple[str, ...]]:
    """The names of drugs by the code of their long-term use; all names but those of classes are "drugs"."""
    lists: dict[str, list[str]] = {}
    for row in _drug_rows():
        if row["long_term"] != "-":
            names = [name.strip().removesuffix("*") for name in row["names"].split(",")]
            lists.setdefault(row["long_term"], []).extend(names)
    every = [name for row in _drug_rows() for name in row["names"].split(",") if row["substance"][0] not in "=!"]
    lists["drugs"] = [name.strip() for name in every if not name.endswith("*")]
    return {code: tuple(names) for code, names in lists.items()}


@cache
def _names() -> dict[tuple[str, ...], dict[str, _Name]]:
    """The words of a name -> the drug ("drug") and the allergy code ("allergy") that it stands for."""
    names: dict[tuple[str, ...], dict[str, _Name]] = {}
    for row in _drug_rows():
        kind = {"=": "allergy", "!": "ignored"}.get(row["substance"][0], "drug")
        for name in row["names"].split(","):
            for words in phrase_variants(name.strip().removesuffix("*")):
                found = _Name(row["substance"].removeprefix("="), name.strip().endswith("*"))
                names.setdefault(words, {}).setdefault(kind, found)
    return names


def substances_in(text: str, start: int, end: int) -> Iterator[Substance]:
    """The substances named in text[start:end], from left to right; the longest name counts."""
    tokens = tokenize(text[start:end])
    first = 0
    while first < len(tokens):
        for length in range(min(_MAX_WORDS, len(tokens) - first), 0, -1):
            span = Span(start + int(tokens.starts[first]), start + int(tokens.ends[first + length - 1]))
            if found := _substance(tuple(tokens.words[first : first + length]), span):
                yield found
                first += length - 1
                break
        first += 1


_NO_CODES = DrugCodes("", "", "", "", "", "")


def _substance(words: tuple[str, ...], span: Span) -> Substance | None:
    named = _names().get(words, {})
    if "ignored" in named:
        return None
    drug = named.get("drug")
    codes = _table_codes(drug.substance if drug else " ".join(words), known=drug is not None)
    if codes is None and "allergy" not in named:
        return None
    allergy = named["allergy"].substance if "allergy" in named else ""
    return Substance(span, codes or _NO_CODES, allergy, drug.is_class if drug else False)


@cache
def _table_codes(name: str, *, known: bool) -> DrugCodes | None:
    return drug_codes(name) if known or len(name) >= _SHORTEST else None
