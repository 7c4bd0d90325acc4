"""Addenda of an index (PDF): their changes, and the tree of the index with these changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nosology.codes.index_tree import IndexRow, IndexTree, bare_code, split_title
from nosology.codes.pdf_text import pdf_lines
from nosology.codes.spelling import DOTTED_ICD10CM
from nosology.core import DataError

ACTIONS = ("No Change", "Add", "Delete", "Revise from", "Revise to")
_TEXT_COLUMN = 80.0  # points: actions are left of it
_CODE_AT_END = re.compile(
    rf"(?:\s+|(?<=[a-z]))({DOTTED_ICD10CM}\.?-*)(?:\s*\[([^\]]*)\])?$"
)  # in one line a blank is missing
_REFERENCE = re.compile(r"\s+[-–—]\s+see\s+(also\s+)?(?:sub)?(category\s+|categories\s+)?", re.IGNORECASE)
_IN_BRACKETS = re.compile(r"\s*\(see also ([^()]*)\)", re.IGNORECASE)
_FIRST = re.compile(r"(?:with|without|in|due to|associated with)\b")  # subterms that are printed before the others


class Change(NamedTuple):
    """A line of the addenda: what is done, and the line of the index (with its level)."""

    action: str
    row: IndexRow


def read_addenda(path: Path) -> list[Change]:
    """The lines of an index addenda PDF, also those without a change, which lead to the changed ones."""
    changes: list[tuple[str, str]] = []
    for line in pdf_lines(path):
        action = "".join(text for x, text in line if x < _TEXT_COLUMN).strip()
        text = " ".join("".join(text for x, text in line if x >= _TEXT_COLUMN).split())
        if action in ACTIONS:
            changes.append((action, text))
        elif not action and text and changes and line[0][0] < _TEXT_COLUMN + 20:  # the rest of a long line
            changes[-1] = (changes[-1][0], f"{changes[-1][1]} {text}")
    if not changes:
        raise DataError(f"{path} has no changes of an index (Add, Delete, Revise from, Revise to)")
    return [Change(action, parse_line(text)) for action, text in changes if len(text) > 1]  # not the letters


def parse_line(text: str) -> IndexRow:
    """A printed line: "- - lung (acute) J18.9 [B96.0]", "Abasia - see Hysteria"."""
    dashes = re.match(r"(?:-\s+)*", text)
    level = dashes[0].count("-") if dashes else 0
    text = text[dashes.end() if dashes else 0 :].strip()
    code = manifestation = see = see_also = ""
    if match := _CODE_AT_END.search(text):
        code, manifestation = bare_code(match[1]), bare_code(match[2])
        text = text[: match.start()]
    if match := _IN_BRACKETS.search(text):
        see_also, text = match[1], text[: match.start()] + text[match.end() :]
    elif match := _REFERENCE.search(text):
        reference = text[match.end() :].strip()
        if match[1]:
            see_also = reference
        elif not code:
            see = f"{match[2] or ''}{reference}".strip()
        text = text[: match.start()]
        if not code and (inner := _CODE_AT_END.search(text)):
            code, text = bare_code(inner[1]), text[: inner.start()]
    title, modifiers = split_title(text)
    return IndexRow(level, title, modifiers, code, manifestation, see, see_also)


@dataclass(eq=False)
class _Node:
    row: IndexRow
    children: list[_Node] = field(default_factory=list)


def apply_addenda(
    tree: IndexTree, changes: Sequence[Change], release: str, source: str
) -> tuple[IndexTree, list[Change]]:
    """The tree with the changes, and those changes that could not be applied.

    A line is found by the titles that lead to it. What is not found is not changed.
    """
    root = _Node(IndexRow(-1, ""))
    stack = [root]
    for row in tree.rows():
        del stack[row.level + 1 :]
        stack.append(_Node(row))
        stack[-2].children.append(stack[-1])
    failed: list[Change] = []
    path: list[_Node | None] = [root]  # the node of the last line of each level; None if it was not found
    revised: tuple[_Node | None, _Node | None] = (None, None)
    for change in changes:
        action, row = change
        del path[row.level + 1 :]
        parent = path[row.level] if row.level < len(path) else None
        found = _find(parent, row) if parent else None
        if action == "Revise to":
            found, parent = revised
            if found is None:
                failed.append(change)
            else:
                manifestation = row.manifestation or (found.row.manifestation if row.code == found.row.code else "")
                found.row = row._replace(level=0, manifestation=manifestation)
        elif action == "Revise from":
            revised = (found, parent)
        elif action == "Delete":
            if found is None or parent is None:
                failed.append(change)
            else:
                parent.children.remove(found)
        elif action == "Add":
            if parent is None:
                failed.append(change)
            elif found is None or (found.row.code, found.row.see) != (row.code, row.see):
                found = _Node(row)
                parent.children.insert(_position(parent, row.title), found)
        path += [None] * (row.level + 1 - len(path)) + [found]
    return IndexTree.from_rows(release, source, _rows(root, -1)), failed


def _find(parent: _Node, row: IndexRow) -> _Node | None:
    """The child with the title of a line, with the same code if there are several."""
    wanted = _key(row.title)
    found = [child for child in parent.children if _key(child.row.title) == wanted]
    if not found:  # in some tables a title ends before its non-essential modifiers
        found = [
            child
            for child in parent.children
            if row.modifiers
            and _key(child.row.modifiers) == _key(row.modifiers)
            and wanted.startswith(_key(child.row.title))
            and child.row.code == row.code
        ]
    exact = [child for child in found if child.row.code == row.code]
    return (exact or found or [None])[0]


def _key(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text).strip().casefold()


def _position(parent: _Node, title: str) -> int:
    """Where a new line stands: in alphabetic order, behind the links such as "with"."""

    def key(text: str) -> tuple[bool, str]:
        return not _FIRST.match(text), _key(text)

    return next(
        (i for i, child in enumerate(parent.children) if key(child.row.title) > key(title)), len(parent.children)
    )


def _rows(node: _Node, level: int) -> Iterator[IndexRow]:
    if level >= 0:
        yield node.row._replace(level=level)
    for child in node.children:
        yield from _rows(child, level + 1)


def count_changes(changes: Iterable[Change]) -> int:
    """How many of the lines change something; a revision counts once."""
    return sum(change.action in ("Add", "Delete", "Revise to") for change in changes)
