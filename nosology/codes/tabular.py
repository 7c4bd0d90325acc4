"""The official ICD-10-CM tabular list (XML): its tree and notes, and the codes that a note refers to."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from nosology.codes.sources import read_xml
from nosology.codes.spelling import DOTTED_ICD10CM
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
_REFERENCE = re.compile(rf"({DOTTED_ICD10CM})(?:-({DOTTED_ICD10CM}))?(?:\.?-)?")
_IN_BRACKETS = re.compile(r"\(([^()]*)\)([^()]*)")
_POSITIONS = {"fourth": "3", "fifth": "4", "sixth": "5", "seventh": "6", "4th": "3", "5th": "4", "6th": "5", "7th": "6"}
_POSITION = f"(?:{'|'.join(_POSITIONS)})"
_CHARACTER = re.compile(rf"with ({_POSITION}(?: or {_POSITION})*) characters? (\w)(?:-(\w))?\b")
_AFTER_DOT = re.compile(r"with \.(\w+)")
_FINAL = re.compile(r"with final characters? -?(\w+)")


def read_tabular(path: Path, release: str, existing: Container[str] | None = None) -> CodeTable:
    """The table of a tabular XML file; `existing` has the codes (without dots) of the release.

    The XML defines seventh characters by rule, and a few of the resulting codes do not exist. Without `existing` (the
    order file or the code list) all of them are taken.
    """
    reader = _TabularReader(existing)
    for chapter in read_xml(path).iterfind("chapter"):
        reader.add(chapter, None, {})
    if not reader.rows:
        raise DataError(f"{path} must be an ICD-10-CM tabular list; it has no chapter")
    return CodeTable.from_rows("icd10cm", release, reader.rows, reader.notes)


class _TabularReader:
    """Collects the rows (code, description, parent, billable) and notes of the XML, depth first."""

    def __init__(self, existing: Container[str] | None):
        self.existing = existing
        self.rows: list[tuple[str, str, str | None, bool]] = []
        self.notes: dict[str, dict[str, list[str]]] = {}

    def add(self, element: ElementTree.Element, parent: str | None, sevenths: dict[str, str]) -> None:
        """Adds a chapter, section or diag and all below it; `sevenths` are the seventh characters defined above."""
        name, description, below, notes = element.get("id", ""), "", [], {}
        for part in element:
            tag, text = part.tag, (part.text or "").strip()
            if tag in ("diag", "section"):
                below.append(part)
            elif tag == "name":
                name = text
            elif tag == "desc":
                description = text
            elif tag in TAGS:
                texts = ((note.text or "").strip() for note in part if note.tag == "note")
                notes.setdefault(TAGS[tag], []).extend(filter(None, texts))
            elif tag == "sevenChrDef":
                sevenths = {ext.get("char", ""): (ext.text or "").strip() for ext in part if ext.tag == "extension"}
        if element.tag == "section" and "-" not in name:
            name = f"{name}-{name}"  # a block of one category must not have the category's name
        if notes := {kind: texts for kind, texts in notes.items() if texts}:
            self.notes[name] = notes
        extended = [] if below or element.tag != "diag" else list(self._extended(name, sevenths))
        self.rows.append((name, description, parent, element.tag == "diag" and not below and not extended))
        for part in below:
            self.add(part, name, sevenths)
        for code, character in extended:
            self.rows.append((code, f"{description}, {sevenths[character]}", name, True))

    def _extended(self, code: str, sevenths: dict[str, str]) -> Iterator[tuple[str, str]]:
        """The codes with a seventh character, with placeholders X up to the sixth, and that character."""
        bare = code.replace(".", "").ljust(6, "X")
        for character in sevenths:
            if self.existing is None or bare + character in self.existing:
                yield f"{bare[:3]}.{bare[3:]}{character}", character


class CodeReference(NamedTuple):
    """The codes from first to last with all below them; `condition` restricts them: (kind, values)."""

    first: str
    last: str
    condition: tuple[str, tuple[str, ...]] | None = None

    def covers(self, code: str) -> bool:
        """Whether the reference includes a code (with or without its dot)."""
        category = code[:3]  # most codes are in another one
        if category < self.first[:3] or category[: len(self.last)] > self.last[:3]:
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
        positions, characters = values
        return any(bare[int(position) : int(position) + 1] in tuple(characters) for position in positions)


@lru_cache(maxsize=20_000)
def code_references(note: str) -> tuple[CodeReference, ...]:
    """The codes and ranges in brackets in a note: "heart failure due to hypertension (I11.0)"."""
    references = []
    for brackets in _IN_BRACKETS.finditer(note):
        inside, after = brackets.groups()
        condition = _condition(inside) or (_condition(after) if after.lstrip().startswith("with") else None)
        for match in _REFERENCE.finditer(inside):
            references.append(CodeReference(match[1], match[2] or match[1], condition))
    return tuple(references)


def _condition(text: str) -> tuple[str, tuple[str, ...]] | None:
    if match := _CHARACTER.search(text):
        positions = "".join(_POSITIONS[position] for position in match[1].split(" or "))
        first, last = match[2], match[3] or match[2]
        return "characters", (positions, "".join(map(chr, range(ord(first), ord(last) + 1))))
    if match := _AFTER_DOT.search(text):
        return "after_dot", (match[1],)
    if match := _FINAL.search(text):
        return "final", (match[1],)
    return None
