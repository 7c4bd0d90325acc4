"""Official indexes as trees of lines: the Alphabetic Index, external causes, tables of neoplasms and of drugs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from xml.etree import ElementTree

from nosology.codes.spelling import DOTTED_ICD10CM
from nosology.core import DataError

_SEPARATOR = "\x7f"  # occurs in no text, and JSON does not escape it
_MAX_LEVELS = 50  # the official index has ten; more is a damaged file
_CELLS = 6  # columns of codes in the tables of neoplasms and drugs
_CODE = re.compile(rf"{DOTTED_ICD10CM}(?=\.?-*$)")
_WITH = re.compile(r"(?:associated with|with|in|due to)\b(?: \((?:due to|in|with)\))*")
_NOT_WITH = re.compile(r"(?:in (?:remission|situ|utero|vitro|crisis)|with and without)\b|without\b")


class IndexRow(NamedTuple):
    """One printed line. The words in brackets are non-essential modifiers: they do not change the code."""

    level: int
    title: str
    modifiers: str = ""
    code: str = ""
    manifestation: str = ""
    see: str = ""
    see_also: str = ""
    cells: str = ""  # six codes, separated by blanks, "-" for none


@dataclass(frozen=True, slots=True)
class IndexLine:
    """A line of an index: main term (level 0) or subterm, with the lines around it."""

    tree: IndexTree = field(repr=False)
    row: int
    title: str
    modifiers: str = ""
    code: str = ""
    manifestation: str = ""
    see: str = ""
    see_also: str = ""

    @property
    def level(self) -> int:
        """0 for a main term."""
        return self.tree.levels[self.row]

    @property
    def path(self) -> tuple[str, ...]:
        """The titles from the main term to this line: ("Failure, failed", "heart", "congestive")."""
        return tuple(self.tree.titles[row] for row in self.tree.rows_above(self.row))

    @property
    def children(self) -> list[IndexLine]:
        """The subterms directly below."""
        return [self.tree[row] for row in self.tree.rows_below(self.row)]

    @property
    def below(self) -> Iterator[IndexLine]:
        """All subterms, in printed order."""
        for row in range(self.row + 1, self.tree.end(self.row)):
            yield self.tree[row]

    @property
    def cells(self) -> tuple[str, ...]:
        """The six codes of a line in the tables of neoplasms and drugs, "" for none; () elsewhere."""
        return self.tree.cells(self.row)

    def linked(self) -> Iterator[tuple[str, IndexLine]]:
        """The conditions that the index links to this term by "with", "in" or "due to" (guideline I.A.15).

        Yields the condition and its line: for "Diabetes, diabetic", ("chronic kidney disease", line with E11.22).
        """
        for child in self.children:
            match = _WITH.match(child.title)
            if match is None or _NOT_WITH.match(child.title):
                continue
            if rest := child.title[match.end() :].strip(" ,"):
                yield rest, child
            else:
                for line in child.children:
                    yield line.title, line


class IndexTree:
    """All lines of an index in printed order; the tree follows from their levels."""

    def __init__(self, release: str, source: str, levels: Sequence[int], columns: Mapping[str, list[str]]):
        self.release, self.source, self.levels = release, source, levels
        self._columns = columns
        self.titles = columns["title"]
        self._named: dict[int, dict[str, list[int]]] = {}  # see _named_below

    @classmethod
    def from_rows(cls, release: str, source: str, rows: Iterable[IndexRow]) -> IndexTree:
        """The tree of lines in printed order; DataError if a level is skipped."""
        rows = list(rows)
        for above, row in zip([IndexRow(-1, ""), *rows], rows):
            if not 0 <= row.level <= above.level + 1:
                raise DataError(f"an index line must be at most one level below the line above; {row.title!r} is not")
        names = IndexRow._fields[1:]
        columns = {name: [getattr(row, name) for row in rows] for name in names}
        return cls(release, source, [row.level for row in rows], columns)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> IndexTree:
        """The tree that `to_json` wrote."""
        levels = [ord(character) - 48 for character in value["levels"]]
        columns = {name: value[name].split(_SEPARATOR) for name in IndexRow._fields[1:] if value.get(name) is not None}
        empty = [""] * len(levels)
        return cls(value["release"], value["source"], levels, dict.fromkeys(IndexRow._fields[1:], empty) | columns)

    def to_json(self) -> dict[str, Any]:
        """Year, source and columns; each column is one string, which loads several times faster than a list."""
        columns = {name: _SEPARATOR.join(texts) for name, texts in self._columns.items() if any(texts)}
        levels = "".join(chr(48 + level) for level in self.levels)
        return {"release": self.release, "source": self.source, "levels": levels} | columns

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, row: int) -> IndexLine:
        texts = (self._columns[name][row] for name in IndexRow._fields[1:7])
        return IndexLine(self, row, *texts)

    def __iter__(self) -> Iterator[IndexLine]:
        return map(self.__getitem__, range(len(self)))

    def rows(self) -> Iterator[IndexRow]:
        """All lines as plain rows."""
        return map(IndexRow, self.levels, *(self._columns[name] for name in IndexRow._fields[1:]))

    def cells(self, row: int) -> tuple[str, ...]:
        """The six codes of a row of a table, "" for none; () if the row has none."""
        return tuple("" if cell == "-" else cell for cell in self._columns["cells"][row].split())

    def end(self, row: int) -> int:
        """The row after the last subterm of a row."""
        below = (other for other in range(row + 1, len(self)) if self.levels[other] <= self.levels[row])
        return next(below, len(self))

    def rows_below(self, row: int) -> list[int]:
        """The rows directly below a row."""
        level = self.levels[row] + 1
        return [other for other in range(row + 1, self.end(row)) if self.levels[other] == level]

    def rows_above(self, row: int) -> list[int]:
        """The rows from the main term to a row, which is the last."""
        rows = [row]
        while self.levels[row] > 0:
            row = next(other for other in range(row - 1, -1, -1) if self.levels[other] < self.levels[row])
            rows.append(row)
        return rows[::-1]

    def find(self, *path: str) -> IndexLine | None:
        """The line of a path in any case, by the whole title or one of its names: find("diabetic", "with", "coma")."""
        rows = self._main_rows.get(path[0].casefold(), []) if path else []
        for title in path[1:]:
            wanted = title.casefold()
            rows = [below for row in rows for below in self._named_below(row).get(wanted, ())]
        return self[rows[0]] if rows else None

    def follow(self, reference: str) -> IndexLine | None:
        """The line that a "see" or "see also" names; None for "condition", "by site" and other instructions."""
        parts = [part.strip().casefold() for part in split_title(reference)[0].split(",")]
        if parts == ["condition"]:  # the word of the note, not the main term "Condition"
            return None
        candidates = [
            (row, count)
            for count in range(len(parts), 0, -1)
            for row in self._main_rows.get(", ".join(parts[:count]), ())
        ]
        while candidates:
            row, used = candidates.pop(0)
            if used == len(parts):
                return self[row]
            below = self._named_below(row)
            candidates += [
                (child, used + count)
                for count in range(len(parts) - used, 0, -1)
                for child in below.get(", ".join(parts[used : used + count]), ())
            ]
        return None

    def _named_below(self, row: int) -> dict[str, list[int]]:
        """The rows directly below a row by title and by each of its names; thousands of references name the same."""
        if row not in self._named:
            named: dict[str, list[int]] = {}
            for below in self.rows_below(row):
                for name in dict.fromkeys(names(self.titles[below])):
                    named.setdefault(name, []).append(below)
            self._named[row] = named
        return self._named[row]

    @cached_property
    def _main_rows(self) -> dict[str, list[int]]:
        """Main terms by title and by each of its names."""
        rows: dict[str, list[int]] = {}
        for row, level in enumerate(self.levels):
            if level == 0:
                for name in names(self.titles[row]):
                    rows.setdefault(name, []).append(row)
        # "Anemia" is the main term before it is a name of another.
        return {
            name: sorted(found, key=lambda row: self.titles[row].casefold() != name) for name, found in rows.items()
        }


@lru_cache(maxsize=1 << 16)
def names(title: str) -> tuple[str, ...]:
    """A title in lower case, then its names: "Diabetes, diabetic" has both, "lingula, lung" only the first.

    Names of the same term start with the same letters. NEC and NOS are no part of a name.
    """
    whole = title.casefold()
    bare = re.sub(r"\s+n(?:ec|os)\b", "", whole)
    first, *others = [part.strip() for part in bare.split(",")]
    return tuple(dict.fromkeys([whole, bare, first, *(other for other in others if other[:3] == first[:3])]))


def bare_code(text: str | None) -> str:
    """The code of a printed one without the dash that asks for more characters: "I50.-" is "I50"; "" for none."""
    match = _CODE.match((text or "").strip())
    return match[0] if match else ""


def read_index_tree(root: ElementTree.Element, source: str) -> IndexTree:
    """The tree of an official XML file: index, external causes, neoplasms or drugs."""
    terms = root.findall("./letter/mainTerm")
    if not terms:
        raise DataError(f"{source} has no letter with main terms: it is not an index of ICD-10-CM")
    rows: list[IndexRow] = []
    for term in terms:
        _add_rows(term, 0, rows)
    return IndexTree.from_rows((root.findtext("version") or "").strip(), source, rows)


def _add_rows(element: ElementTree.Element, level: int, rows: list[IndexRow]) -> None:
    if level > _MAX_LEVELS:
        raise DataError(f"an index must have at most {_MAX_LEVELS} levels of terms; this one has more")
    texts = {tag: _text(element.find(tag)) for tag in ("code", "manif", "see", "seeAlso", "subcat", "seecat")}
    title, modifiers = _title(element.find("title"))
    found = {cell.get("col", ""): bare_code(cell.text) or "-" for cell in element.findall("cell")}
    cells = " ".join(found.get(str(column), "-") for column in range(2, 2 + _CELLS)) if found else ""
    code = bare_code(texts["code"]) or bare_code(texts["subcat"])
    rows.append(
        IndexRow(level, title, modifiers, code, bare_code(texts["manif"]), texts["see"], texts["seeAlso"], cells)
    )
    for below in element.findall("term"):
        _add_rows(below, level + 1, rows)


def _text(element: ElementTree.Element | None) -> str:
    return "" if element is None else " ".join("".join(element.itertext()).split())


def _title(element: ElementTree.Element | None) -> tuple[str, str]:
    """The title without its non-essential modifiers, and these."""
    if element is None:
        return "", ""
    modifiers = [_text(part) for part in element if part.tag == "nemod"]
    words = [element.text or "", *((part.tail if part.tag == "nemod" else _text(part)) or "" for part in element)]
    return split_title(" ".join(words), " ".join(modifiers))


def split_title(text: str, modifiers: str = "") -> tuple[str, str]:
    """A printed title without its words in brackets, and these: "heart (acute)" is ("heart", "(acute)")."""
    depth, outside, inside = 0, "", ""
    for character in text:
        depth += character == "("
        if depth:
            inside += character
            if character == ")" and (depth := depth - 1) == 0:
                inside, outside = inside + " ", outside + " "
        elif character != ")":  # some brackets are never opened
            outside += character
    bare = re.sub(r" (?=,|-\w)", "", " ".join(outside.split())).strip(" ,-")
    return bare, " ".join(f"{inside}{modifiers}".split())
