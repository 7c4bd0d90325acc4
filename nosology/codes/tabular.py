"""ICD-10-CM from the official tabular list (XML): the tree, the notes, and the seventh characters."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from nosology.codes.sources import read_xml
from nosology.codes.table import CodeTable
from nosology.core import DataError

TAGS = {
    "inclusionTerm": "inclusion_terms",
    "includes": "includes",
    "excludes1": "excludes1",
    "excludes2": "excludes2",
    "codeFirst": "code_first",
    "codeAlso": "code_also",
    "useAdditionalCode": "use_additional",
    "notes": "notes",
    "sevenChrNote": "notes",
}


def read_tabular(path: Path, release: str, exists: Container[str] | None = None) -> CodeTable:
    """The table of a tabular XML file; `exists` holds the codes (without dots) that the release really has.

    The XML states seventh characters by rule, and a few of the codes so formed do not exist; without the list
    (the order file, or the code list) all of them are taken.
    """
    reader = _Reader(exists)
    for chapter in read_xml(path).iterfind("chapter"):
        reader.line(chapter, None, {})
    if not reader.lines:
        raise DataError(f"{path} holds no chapter: it is not an ICD-10-CM tabular list")
    return CodeTable("icd10cm", release, *zip(*reader.lines), reader.notes)


def _texts(element: ElementTree.Element) -> Iterator[str]:
    return (text for note in element if note.tag == "note" and (text := (note.text or "").strip()))


class _Reader:
    """Walks the XML depth first and gathers its lines: code, description, parent, billable."""

    def __init__(self, exists: Container[str] | None):
        self.exists = exists
        self.lines: list[tuple[str, str, str | None, bool]] = []
        self.notes: dict[str, dict[str, list[str]]] = {}

    def line(self, element: ElementTree.Element, parent: str | None, sevenths: dict[str, str]) -> None:
        """Adds a chapter, section or diag and all below it; `sevenths` are the characters in force above."""
        name, description, below, notes = element.get("id", ""), "", [], {}
        for part in element:
            tag = part.tag
            if tag in ("diag", "section"):
                below.append(part)
            elif tag == "name":
                name = (part.text or "").strip()
            elif tag == "desc":
                description = (part.text or "").strip()
            elif tag in TAGS:
                notes.setdefault(TAGS[tag], []).extend(_texts(part))
            elif tag == "sevenChrDef":
                sevenths = {ext.get("char", ""): (ext.text or "").strip() for ext in part if ext.tag == "extension"}
        if element.tag == "section" and "-" not in name:
            name = f"{name}-{name}"  # a block of one category would bear the category's own name
        if notes and (notes := {kind: lines for kind, lines in notes.items() if lines}):
            self.notes[name] = notes
        extended = [] if below or element.tag != "diag" else list(self.extended(name, sevenths))
        self.lines.append((name, description, parent, element.tag == "diag" and not below and not extended))
        for part in below:
            self.line(part, name, sevenths)
        for code, character in extended:
            self.lines.append((code, f"{description}, {sevenths[character]}", name, True))

    def extended(self, code: str, sevenths: dict[str, str]) -> Iterator[tuple[str, str]]:
        """The codes that a seventh character makes of an undivided code, with placeholders X up to the sixth."""
        bare = code.replace(".", "").ljust(6, "X")
        for character in sevenths:
            if self.exists is None or bare + character in self.exists:
                yield f"{bare[:3]}.{bare[3:]}{character}", character


_CODE = r"[A-Z]\d[0-9A-Z](?:\.[0-9A-Z]{1,4})?"
_REFERENCE = re.compile(rf"({_CODE})(?:-(?=[A-Z]\d)({_CODE}))?(?:\.?-)?")
_IN_BRACKETS = re.compile(r"\(([^()]*)\)([^()]*)")
_PLACES = {"fourth": 3, "fifth": 4, "sixth": 5, "seventh": 6}
_PLACE = "(?:fourth|fifth|sixth|seventh)"
_CHARACTER = re.compile(rf"with ({_PLACE}(?: or {_PLACE})*) characters? (\w)(?:-(\w))?")
_AFTER_DOT = re.compile(r"with \.(\w+)")
_FINAL = re.compile(r"with final characters? -?(\w+)")


class CodeReference(NamedTuple):
    """Codes from first to last with all below them; `condition` narrows them: (kind, values), None if not at all."""

    first: str
    last: str
    condition: tuple[str, tuple[str, ...]] | None = None

    def covers(self, code: str) -> bool:
        """Whether a code (with or without its dot) is one that the reference means."""
        if not self.first[:1] <= code[:1] <= self.last[:1]:  # most codes are of another chapter
            return False
        bare = code.replace(".", "")
        first, last = self.first.replace(".", ""), self.last.replace(".", "")
        if len(bare) < len(first) or not first <= bare[: len(first)] or not bare[: len(last)] <= last:
            return False
        if self.condition is None:
            return True
        kind, values = self.condition
        if kind == "after_dot":
            return bare[3:].startswith(values)
        if kind == "final":
            return bare.endswith(values)
        places, characters = values[0], values[1]
        return any(bare[int(place) : int(place) + 1] in tuple(characters) for place in places)


@lru_cache(maxsize=20_000)
def code_references(note: str) -> tuple[CodeReference, ...]:
    """Every code or range that stands in brackets in a note, with the condition that follows it."""
    found = []
    for brackets in _IN_BRACKETS.finditer(note):
        inside, after = brackets.groups()
        condition = _condition(inside) or (_condition(after) if after.lstrip().startswith("with") else None)
        for match in _REFERENCE.finditer(inside):
            found.append(CodeReference(match[1], match[2] or match[1], condition))
    return tuple(found)


def _condition(words: str) -> tuple[str, tuple[str, ...]] | None:
    if match := _CHARACTER.search(words):
        places = "".join(str(_PLACES[place]) for place in match[1].split(" or "))
        first, last = match[2], match[3] or match[2]
        return "characters", (places, "".join(map(chr, range(ord(first), ord(last) + 1))))
    if match := _AFTER_DOT.search(words):
        return "after_dot", (match[1],)
    if match := _FINAL.search(words):
        return "final", (match[1],)
    return None
