"""A code system in one release: every chapter, block, category and code, its place in the tree and its notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosology.codes.search import SearchHit

_DELETE = "\x7f"  # in no text, and JSON writes it as it is
NOTES = (
    "inclusion_terms",
    "includes",
    "excludes1",
    "excludes2",
    "code_first",
    "code_also",
    "use_additional",
    "notes",
)


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """A line of the classification with its own notes; `CodeTable.inherited_notes` adds those of the lines above."""

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
    """The lines of one system and release, in the order of the book: each line is followed by all that stand below it.

    Columns, all of one length: codes, descriptions, parents (code or None), billable. `notes` is sparse:
    code -> kind of note (see NOTES) -> the notes.
    """

    def __init__(
        self,
        system: str,
        release: str,
        codes: Sequence[str],
        descriptions: Sequence[str],
        parents: Sequence[str | None],
        billable: Sequence[bool | int],
        notes: Mapping[str, Mapping[str, Sequence[str]]],
    ):
        self.system = system
        self.release = release
        self._codes, self._descriptions, self._parents, self._billable = codes, descriptions, parents, billable
        self._notes = notes
        self._row = {code: row for row, code in enumerate(codes)}

    @classmethod
    def from_json(cls, system: str, release: str, value: Mapping[str, Any]) -> CodeTable:
        """The table that `to_json` wrote."""
        codes, descriptions, above = (value[name].split(_DELETE) for name in ("codes", "descriptions", "parents"))
        parents = [parent or None for parent in above]
        billable = [flag == "1" for flag in value["billable"]]
        return cls(system, release, codes, descriptions, parents, billable, value["notes"])

    def to_json(self) -> dict[str, Any]:
        """The table as columns, each one string: these load several times faster than lists."""
        return {
            "codes": _DELETE.join(self._codes),
            "descriptions": _DELETE.join(self._descriptions),
            "parents": _DELETE.join(parent or "" for parent in self._parents),
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
        notes = {kind: tuple(lines) for kind, lines in self._notes.get(code, {}).items()}
        billable = bool(self._billable[row])
        return CodeEntry(code, self._descriptions[row], billable, self._parents[row], self.kind(code), **notes)

    def get(self, code: str) -> CodeEntry | None:
        """The line of a code, block or chapter; None if the release has none."""
        return self[code] if code in self._row else None

    def codes(self, *, billable: bool | None = None) -> list[str]:
        """All codes, without chapters and blocks; with `billable` only those that are, or are not."""
        return [
            code
            for code, flag in zip(self._codes, self._billable)
            if (billable is None or bool(flag) == billable) and self.kind(code) in ("category", "subcategory")
        ]

    def lines(self) -> list[str]:
        """All codes, blocks and chapters."""
        return list(self._codes)

    def all_notes(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """The notes by line and kind."""
        return self._notes

    def description(self, code: str) -> str:
        """The description of a code, block or chapter; KeyError if the release has none."""
        return self._descriptions[self._row[code]]

    def billable(self, code: str) -> bool:
        """Whether the code may be billed: it exists in this release and is not divided further."""
        return code in self._row and bool(self._billable[self._row[code]])

    def kind(self, code: str) -> str:
        """chapter, block, category or subcategory; of procedures the corresponding levels (see docs/codes.md)."""
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
        """The lines directly below, in the order of the book."""
        return [line for line in self.descendants(code) if self._parents[self._row[line]] == code]

    def descendants(self, code: str) -> list[str]:
        """All lines below, in the order of the book: they follow the line itself without a gap."""
        below = {code: None}
        for row in range(self._row[code] + 1, len(self._codes)):
            if self._parents[row] not in below:
                break
            below[self._codes[row]] = None
        return list(below)[1:]

    def chapters(self) -> list[str]:
        """The top lines."""
        return list(self._top)

    @cached_property
    def _top(self) -> tuple[str, ...]:
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
        """The chapter a code stands in."""
        return self._at_level(code, "chapter") or code

    def block(self, code: str) -> str | None:
        """The innermost block a code stands in; None where a chapter has no blocks."""
        return self._at_level(code, "block")

    def category(self, code: str) -> str | None:
        """The category (three characters, of procedures fewer or as many) of a code; None for chapters and blocks."""
        return self._at_level(code, "category")

    def inherited_notes(self, code: str, kind: str) -> list[tuple[str, str]]:
        """The notes of a kind (see NOTES) that bind a code: (line where it is written, note), the nearest first."""
        if kind not in NOTES:
            raise ValueError(f"kind must be one of {', '.join(NOTES)}; got {kind}")
        lines = (code, *self.ancestors(code))
        return [(line, note) for line in lines for note in self._notes.get(line, {}).get(kind, ())]

    def search(self, query: str, limit: int = 20, *, billable: bool | None = None) -> list[SearchHit]:
        """The codes whose description or terms match the words of the query, best first."""
        from nosology.codes.search import search

        return search(self, query, limit, billable=billable)

    def descriptions(self) -> list[str]:
        """The descriptions of all lines, in the order of `lines`."""
        return list(self._descriptions)
