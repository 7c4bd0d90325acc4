"""The tree of ICD-10-CM from its lines alone: a code stands below its longest prefix, a category in its block."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from nosology.codes.table import CodeTable


def tree_of_prefixes(
    newest: CodeTable,
    release: str,
    lines: Mapping[str, str],
    billable: Container[str],
    notes: Mapping[str, Mapping[str, Sequence[str]]],
) -> CodeTable:
    """The table of ICD-10-CM lines (code, block or chapter -> description); notes of absent lines are left out.

    A line keeps the parent it has in the newest release where that exists. A chapter is a number whose description ends
    with its range, as in "Neoplasms (C00-D49)".
    """
    chapters = {line: lines[line][-8:-1] for line in sorted(filter(str.isdigit, lines), key=int)}
    blocks = [line for line in lines if "-" in line]
    parents: dict[str, str | None] = {}
    for line in lines:
        above = newest.parent(line) if line in newest else None
        if line in chapters:
            parents[line] = None
        elif above in lines:
            parents[line] = above  # also where ranges mislead: C4A stands in C43-C44
        elif "-" in line:
            parents[line] = _chapter(line, chapters)
        else:
            around = (block for block in blocks if block[:3] <= line[:3] <= block[-3:])
            parents[line] = _longest_prefix(line, lines) or max(around, default=None) or _chapter(line, chapters)
    order = _book_order(parents, chapters)
    return CodeTable(
        "icd10cm",
        release,
        order,
        [lines[line] for line in order],
        [parents[line] for line in order],
        [line in billable for line in order],
        {line: notes[line] for line in order if line in notes},
    )


def _chapter(line: str, chapters: Mapping[str, str]) -> str:
    """The chapter that begins last before a line: a new category may lie beyond the known end of its chapter."""
    return max((chapter for chapter, span in chapters.items() if span[:3] <= line[:3]), key=chapters.__getitem__)


def _longest_prefix(code: str, lines: Container[str]) -> str | None:
    """The line above a code; it skips the placeholders of T07.XXXA, which stands below T07."""
    prefixes = (code[:length].rstrip(".") for length in range(len(code) - 1, 2, -1))
    return next((prefix for prefix in prefixes if prefix in lines), None)


def _book_order(parents: Mapping[str, str | None], chapters: Sequence[str]) -> list[str]:
    below: dict[str | None, list[str]] = {}
    for line in sorted(parents, reverse=True):
        below.setdefault(parents[line], []).append(line)
    order: list[str] = []
    stack = list(reversed(chapters))
    while stack:
        order.append(line := stack.pop())
        stack.extend(below.get(line, ()))
    return order
