"""ICD-9-CM: the codes of a claim mapped back through the General Equivalence Mappings (GEMs), by release."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.resources import files

from nosology.codes import describe, in_release, map_code, previously_assigned, table
from nosology.core import Code
from nosology.text.stems import stem
from nosology.text.tokens import function_words, words_of

UNDATED = "2008-04-01"
"""The day of a note without a date: the middle of the years with ICD-9-CM codes and electronic notes, 2001 to 2015."""

_GEM_RELEASE = "2019"  # the first known release; codes that are newer are mapped by their predecessors
_UNSPECIFIED = re.compile(r"\bunspecified\b|\bNOS\b|\bnot otherwise specified\b", re.IGNORECASE)
_OTHER = re.compile(r"\bother\b|\bunspecified\b", re.IGNORECASE)
_IGNORED = frozenset({"unspecified", "specified", "nos", "mention"})


def icd9_codes(code: str, words: str = "", day: str = "") -> tuple[str, ...]:
    """The ICD-9-CM codes for an ICD-10-CM code: one, or all parts of a combination; () if there is none.

    words: the evidence in the note, which decides where ICD-9-CM distinguishes more; day: YYYY-MM-DD of the encounter.
    """
    codes = _chosen(code, words)
    if codes is None:
        codes = _mapped(code, " ".join(words_of(words)))
    return tuple(dict.fromkeys(icd9_on(it, day) for it in codes))


def icd9_on(code: str, day: str = "") -> str:
    """The ICD-9-CM code on a day: what was used before it if the code, or the division that made it, is newer."""
    day = day or UNDATED
    for length in range(len(code), 2, -1):
        first, before, _ = _releases().get(code[:length].rstrip("."), ("", code, ""))
        if day < first:
            return icd9_on(before, day) if before not in code else before
    return code


def icd9_title(code: str) -> str:
    """The title of an ICD-9-CM code of any release."""
    _, before, title = _releases().get(code, ("", "", ""))
    return title if before == code else table("icd9cm").description(code)


def _chosen(code: str, words: str) -> tuple[str, ...] | None:
    """The codes of the first row of the table of choices that fits; None if none does."""
    for line in _shorter(code):
        for pattern, targets in _choices().get(line, ()):
            if not pattern or re.search(pattern, words, re.IGNORECASE):
                return targets
    return None


@lru_cache(maxsize=1 << 14)
def _mapped(code: str, words: str) -> tuple[str, ...]:
    mapped = _in_gems(code)
    if mapped is None:
        return ()
    known = _stems(describe(Code("icd10cm", code))) | _stems(words)
    parts: dict[int, list[str]] = {}  # number of a choice list, 0 for single targets -> targets
    for it in map_code(mapped, "icd9cm"):
        if it.target is not None and (not it.combination or it.scenario == 1):
            parts.setdefault(it.choice_list if it.combination else 0, []).append(it.target.code)
    if not parts:
        parts[0] = _forward_sources().get(mapped.code, [])
    if 0 in parts:
        return (_closest(known, parts[0]),) if parts[0] else ()
    return tuple(_closest(known, parts[number]) for number in sorted(parts))


def _in_gems(code: str) -> Code | None:
    """The code, or if the GEMs lack it what it was divided from, else the closest "other" code of its category.

    The built-in GEMs are older than the first known release, so the predecessor may be a shorter code.
    """
    titles = table("icd10cm", _GEM_RELEASE)
    own = Code("icd10cm", code)
    old = [*in_release(own, _GEM_RELEASE), *previously_assigned(own)]
    old.sort(key=lambda it: it.code not in titles or not _UNSPECIFIED.search(titles.description(it.code)))
    for it in (code, *(it.code for it in old)):
        for line in _shorter(it):
            if map_code(Code("icd10cm", line), "icd9cm"):
                return Code("icd10cm", line)
    known = _stems(describe(own))
    siblings = [it for it in _siblings(code) if map_code(Code("icd10cm", it), "icd9cm")]

    def rank(sibling: str) -> tuple[bool, float]:
        title = describe(Code("icd10cm", sibling))
        return _OTHER.search(title) is not None, _likeness(known, title)

    return Code("icd10cm", max(siblings, key=rank)) if siblings else None


def _shorter(code: str) -> Iterator[str]:
    """The code and its prefixes, longest first; with placeholders before a seventh character: T81.4XXA."""
    for length in range(len(code), 2, -1):
        prefix = code[:length].rstrip(".")
        yield prefix
        if len(code) == 8 and length < 8:
            yield prefix.ljust(7, "X") + code[7] if "." in prefix else f"{prefix}.XXX{code[7]}"


def _siblings(code: str) -> list[str]:
    """The codes of the category of a code that have the same seventh character."""
    codes = table("icd10cm")
    categories = [it for it in codes.ancestors(code) if codes.kind(it) == "category"]
    return [it for line in categories for it in codes.descendants(line) if it[7:] == code[7:]]


@cache
def _choices() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Codes for which the GEMs give another code than coders used: vomiting is 787.03, not 536.2."""
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for row in _rows("icd9_choices.tsv"):
        found.setdefault(row["icd10cm"], []).append((row["words"], tuple(row["icd9cm"].replace("-", "").split())))
    return found


@cache
def _releases() -> dict[str, tuple[str, str, str]]:
    """New code, or code that was divided: the first day, the code before it, and the title of that."""
    return {row["code"]: (row["day"], row["before"], row["title"]) for row in _rows("icd9_releases.tsv")}


def _rows(name: str) -> Iterable[dict[str, str]]:
    lines = files("nosology.claims").joinpath("data", name).read_text(encoding="utf-8").splitlines()
    return csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t")


@cache
def _forward_sources() -> dict[str, list[str]]:
    """ICD-10-CM code -> the ICD-9-CM codes that the GEMs map to it."""
    sources: dict[str, list[str]] = {}
    for code in table("icd9cm").codes(billable=True):
        for mapping in map_code(Code("icd9cm", code), "icd10cm"):
            if mapping.target is not None and not mapping.combination:
                sources.setdefault(mapping.target.code, []).append(code)
    return sources


def _closest(known: frozenset[str], candidates: list[str]) -> str:
    """The candidate whose title has most words in common with what is known; of equal ones the unspecified."""
    titles = table("icd9cm")

    def rank(candidate: str) -> tuple[float, bool]:
        title = titles.description(candidate)
        return _likeness(known, title), _UNSPECIFIED.search(title) is not None

    return max(dict.fromkeys(candidates), key=rank)


def _likeness(known: frozenset[str], title: str) -> float:
    words = _stems(title)
    return len(known & words) / max(1, len(known | words))


@lru_cache(maxsize=1 << 14)
def _stems(title: str) -> frozenset[str]:
    return frozenset(stem(word) for word in words_of(title) if word not in function_words() and word not in _IGNORED)
