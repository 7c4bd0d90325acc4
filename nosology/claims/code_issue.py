"""A problem of an assigned code."""

from __future__ import annotations

from dataclasses import dataclass

from nosology.core import Code

LEVELS = ("error", "warning", "hint")


@dataclass(frozen=True, slots=True)
class CodeIssue:
    """A problem of one code: level (see LEVELS), kind of check, message, and codes that would solve it."""

    level: str
    kind: str
    code: Code
    message: str
    alternatives: tuple[Code, ...] = ()
