"""ICD-9-CM: the codes of a claim mapped back through the General Equivalence Mappings (GEMs)."""

from __future__ import annotations

import csv
import re
from functools import cache, lru_cache
from importlib.resources import files

from nosology.codes import describe, in_release, map_code, previously_assigned, table
from nosology.core import Code
from nosology.text.stems import stem
from nosology.text.tokens import words_of

_GEM_RELEASE = "2019"  # the known release next to the last GEMs (2018); newer codes are mapped by their predecessors
_UNSPECIFIED = re.compile(r"\bunspecified\b|\bNOS\b|\bnot otherwise specified\b", re.IGNORECASE)


@lru_cache(maxsize=1 << 14)
def icd9_codes(code: str) -> tuple[str, ...]:
    """The ICD-9-CM codes for an ICD-10-CM code: one, or all parts of a combination; () if there is none."""
    if code in _choices():
        return (_choices()[code],)
    mapped = _in_gems(code)
    if mapped is None:
        return ()
    mappings = map_code(mapped, "icd9cm")
    single = [it.target.code for it in mappings if it.target is not None and not it.combination]
    if single or mapped.code in _forward_sources():
        return (_closest(mapped.code, single),)
    parts: dict[int, str] = {}
    for it in mappings:
        if it.target is not None and it.scenario == 1:
            parts.setdefault(it.choice_list, it.target.code)
    return tuple(parts[number] for number in sorted(parts))


def _in_gems(code: str) -> Code | None:
    """The code, or if the GEMs lack it a predecessor, else the code next to it in its category that they have."""
    codes = table("icd10cm")
    old = [*in_release(Code("icd10cm", code), _GEM_RELEASE), *previously_assigned(Code("icd10cm", code))]
    titles = table("icd10cm", _GEM_RELEASE)
    old = sorted(old, key=lambda it: it.code not in titles or not _UNSPECIFIED.search(titles.description(it.code)))
    lines = [line for line in codes.ancestors(code) if codes.kind(line) in ("category", "subcategory")]
    siblings = (Code("icd10cm", it) for line in lines for it in codes.descendants(line) if it[7:] == code[7:])
    return next((it for it in (Code("icd10cm", code), *old, *siblings) if map_code(it, "icd9cm")), None)


@cache
def _choices() -> dict[str, str]:
    """Codes for which the GEMs give another code than coders used: vomiting is 787.03, not 536.2."""
    lines = files("nosology.claims").joinpath("data/icd9_choices.tsv").read_text(encoding="utf-8").splitlines()
    return {row["icd10cm"]: row["icd9cm"] for row in csv.DictReader(lines, delimiter="\t")}


@cache
def _forward_sources() -> dict[str, list[str]]:
    """ICD-10-CM code -> the ICD-9-CM codes that the GEMs map to it."""
    sources: dict[str, list[str]] = {}
    for code in table("icd9cm").codes(billable=True):
        for mapping in map_code(Code("icd9cm", code), "icd10cm"):
            if mapping.target is not None and not mapping.combination:
                sources.setdefault(mapping.target.code, []).append(code)
    return sources


def _closest(code: str, targets: list[str]) -> str:
    """The best of the targets of an ICD-10-CM code and of the ICD-9-CM codes that the GEMs map to it.

    Unspecified titles are best, then titles that share most words with that of the code, then targets.
    """
    titles = table("icd9cm")
    words = _stems(describe(Code("icd10cm", code)))

    def rank(candidate: str) -> tuple[bool, float, bool]:
        title = titles.description(candidate)
        shared = len(words & _stems(title)) / max(1, len(words | _stems(title)))
        return _UNSPECIFIED.search(title) is not None, shared, candidate in targets

    return max(dict.fromkeys([*targets, *_forward_sources().get(code, ())]), key=rank)


def _stems(title: str) -> frozenset[str]:
    return frozenset(map(stem, words_of(title)))
