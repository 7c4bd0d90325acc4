"""Codes that differ in their side alone: what is said of a knee, and of the left one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nosology.codes.table import CodeTable

SIDES = ("right", "left", "bilateral")
_SIDE = re.compile(r"\b(right|left|bilateral)\b")
_VAGUE = re.compile(r"\bunspecified\b")
_ORGAN = re.compile(r",\s*(?:eye|ear|side)\b")


def sided_codes(table: CodeTable, codes: Iterable[str]) -> dict[str, dict[str, str]]:
    """code -> side -> the code of the same thing on that side, for the codes that have such relatives."""
    groups: dict[tuple[str, str, str], dict[str, str]] = {}
    for code in codes:
        title = table.description(code).lower()
        side = _SIDE.search(title)
        rest = _ORGAN.sub(",", " ".join(_VAGUE.sub("", _SIDE.sub("", title)).split())).strip(" ,")
        groups.setdefault((code[:3], rest, code[7:]), {})[side[1] if side else ""] = code
    return {
        code: {side: own for side, own in group.items() if side}
        for group in groups.values()
        if len(group) > 1
        for code in group.values()
    }
