"""Code tables: all lines of a code system in one release, with descriptions, tree and notes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosology.codes.search import SearchHit

Notes = Mapping[str, Mapping[str, Sequence[str]]]  # line -> kind of note (see NOTES) -> the notes

_SEPARATOR = "\x7f"  # occurs in no text, and JSON does not escape it
NOTES = ("inclusion_terms", "includes", "excludes1", "excludes2", "code_first", "code_also", "use_additional", "notes")


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """One line of a table with its own notes; `CodeTable.inherited_notes` adds those of the lines above."""

    code: str
    description: str
    billable: bool
    parent: str | None
    kind: str
    inclusion_terms: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    excludes1: tuple[str, ...] = ()
    excludes2: tuple[str, ...] = ()
    code_first: tuple[str, ...] = ()
    code_also: tuple[str, ...] = ()
    use_additional: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class CodeTable:
    """The chapters, blocks, categories and codes ("lines") of one system and release, depth first.

    Columns of equal length: codes, descriptions, parents (a line or None), billable.
    """

    def __init__(
        self,
        system: str,
        release: str,
        codes: Sequence[str],
        descriptions: Sequence[str],
        parents: Sequence[str | None],
        billable: Sequence[bool],
        notes: Notes,
    ):
        self.system = system
        self.release = release
        self._codes, self._descriptions, self._parents, self._billable = codes, descriptions, parents, billable
        self._notes = notes
        self._row = {code: row for row, code in enumerate(codes)}

    @classmethod
    def from_rows(
        cls, system: str, release: str, rows: Iterable[tuple[str, str, str | None, bool]], notes: Notes
    ) -> CodeTable:
        """The table of rows (code, description, parent, billable) that are in depth-first order."""
        codes, descriptions, parents, billable = zip(*rows)
        return cls(system, release, codes, descriptions, parents, billable, notes)

    @classmethod
    def from_tree(
        cls,
        system: str,
        release: str,
        descriptions: Mapping[str, str],
        parents: Mapping[str, str | None],
        billable: Container[str],
        notes: Notes,
        chapters: Iterable[str],
    ) -> CodeTable:
        """The table of lines in any order: it has the chapters as given and, below each line, its children sorted."""
        children: dict[str | None, list[str]] = {}
        for line in sorted(parents, reverse=True):
            children.setdefault(parents[line], []).append(line)
        order: list[str] = []
        stack = list(chapters)[::-1]
        while stack:
            order.append(line := stack.pop())
            stack.extend(children.get(line, ()))
        rows = ((line, descriptions[line], parents[line], line in billable) for line in order)
        return cls.from_rows(system, release, rows, {line: notes[line] for line in order if line in notes})

    @classmethod
    def from_json(cls, system: str, release: str, value: Mapping[str, Any]) -> CodeTable:
        """The table that `to_json` wrote."""
        codes, descriptions, above = (value[name].split(_SEPARATOR) for name in ("codes", "descriptions", "parents"))
        parents = [parent or None for parent in above]
        billable = [flag == "1" for flag in value["billable"]]
        return cls(system, release, codes, descriptions, parents, billable, value["notes"])

    def to_json(self) -> dict[str, Any]:
        """The table as columns; each column is one string, which loads several times faster than a list."""
        return {
            "codes": _SEPARATOR.join(self._codes),
            "descriptions": _SEPARATOR.join(self._descriptions),
            "parents": _SEPARATOR.join(parent or "" for parent in self._parents),
            "billable": "".join("1" if flag else "0" for flag in self._billable),
            "notes": {line: {kind: list(texts) for kind, texts in by.items()} for line, by in self._notes.items()},
        }

    def __len__(self) -> int:
        return len(self._codes)

    def __contains__(self, code: object) -> bool:
        return code in self._row

    def __iter__(self) -> Iterator[CodeEntry]:
        return map(self.__getitem__, self._codes)

    def __getitem__(self, code: str) -> CodeEntry:
        row = self._row[code]
        notes = {kind: tuple(texts) for kind, texts in self._notes.get(code, {}).items()}
        return CodeEntry(
            code, self._descriptions[row], self._billable[row], self._parents[row], self.kind(code), **notes
        )

    def get(self, code: str) -> CodeEntry | None:
        """The entry of a line; None if there is no such line."""
        return self[code] if code in self._row else None

    def codes(self, *, billable: bool | None = None) -> list[str]:
        """All codes, without chapters and blocks; `billable` selects those that are billable, or are not."""
        return [
            code
            for code, flag in zip(self._codes, self._billable)
            if (billable is None or flag == billable) and self.kind(code) in ("category", "subcategory")
        ]

    def lines(self) -> list[str]:
        """All codes, blocks and chapters."""
        return list(self._codes)

    def descriptions(self) -> list[str]:
        """The descriptions of all lines, in the order of `lines`."""
        return list(self._descriptions)

    def all_notes(self) -> Notes:
        """The notes by line and kind."""
        return self._notes

    def description(self, code: str) -> str:
        """The description of a code, block or chapter; KeyError if the release has none."""
        return self._descriptions[self._row[code]]

    def billable(self, code: str) -> bool:
        """Whether a code is billable: it exists in this release and is not divided further."""
        return code in self._row and self._billable[self._row[code]]

    def kind(self, code: str) -> str:
        """chapter, block, category or subcategory; for procedures the corresponding levels (see docs/codes.md)."""
        if self._parents[self._row[code]] is None:
            return "chapter"
        if self.system == "icd10pcs":
            return ("chapter", "block", "category")[len(code) - 1] if len(code) < 4 else "subcategory"
        if "-" in code:
            return "block"
        return "subcategory" if "." in code else "category"

    def parent(self, code: str) -> str | None:
        """The line above; None for a chapter. KeyError if the release has no such code."""
        return self._parents[self._row[code]]

    def children(self, code: str) -> list[str]:
        """The lines directly below."""
        return [line for line in self.descendants(code) if self._parents[self._row[line]] == code]

    def descendants(self, code: str) -> list[str]:
        """All lines below; in depth-first order they directly follow the line."""
        below = {code: None}
        for row in range(self._row[code] + 1, len(self._codes)):
            if self._parents[row] not in below:
                break
            below[self._codes[row]] = None
        return list(below)[1:]

    def chapters(self) -> list[str]:
        """The chapters."""
        return list(self._chapters)

    @cached_property
    def _chapters(self) -> tuple[str, ...]:
        return tuple(code for code, parent in zip(self._codes, self._parents) if parent is None)

    def ancestors(self, code: str) -> list[str]:
        """The lines above, from the parent up to the chapter."""
        above = []
        parent = self.parent(code)
        while parent is not None:
            above.append(parent)
            parent = self.parent(parent)
        return above

    def _at_level(self, code: str, kind: str) -> str | None:
        return next((line for line in (code, *self.ancestors(code)) if self.kind(line) == kind), None)

    def chapter(self, code: str) -> str:
        """The chapter of a code."""
        return self._at_level(code, "chapter") or code

    def block(self, code: str) -> str | None:
        """The innermost block of a code; None if its chapter has no blocks."""
        return self._at_level(code, "block")

    def category(self, code: str) -> str | None:
        """The category of a code (at most three characters); None for chapters and blocks."""
        return self._at_level(code, "category")

    def inherited_notes(self, code: str, kind: str) -> list[tuple[str, str]]:
        """The notes of a kind (see NOTES) that apply to a code, the nearest first: (line of the note, note)."""
        if kind not in NOTES:
            raise ValueError(f"kind must be one of {', '.join(NOTES)}; got {kind}")
        lines = (code, *self.ancestors(code))
        return [(line, note) for line in lines for note in self._notes.get(line, {}).get(kind, ())]

    def search(self, query: str, limit: int = 20, *, billable: bool | None = None) -> list[SearchHit]:
        """The codes whose description or terms match the words of a query, best first."""
        from nosology.codes.search import search

        return search(self, query, limit, billable=billable)
