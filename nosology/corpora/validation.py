"""Validation of the raw values of dataset files. Each value that is repaired or dropped is counted as an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nosology.codes import is_known, parse
from nosology.core import SPLITS, SYSTEMS, Code, CodeError, DataError
from nosology.corpora.plain_text import check_text, count_controls, not_text_reason


class IssueKind(NamedTuple):
    """Description of an issue; `lossy` if a value was dropped, which --strict refuses."""

    description: str
    lossy: bool
    unit: str = "row"


ISSUES: dict[str, IssueKind] = {
    "encoding": IssueKind("lines that are not UTF-8, read as Windows-1252", lossy=False, unit="line"),
    "bad_characters": IssueKind("notes with NUL bytes or lone surrogates, replaced one for one", lossy=False),
    "repeated_code": IssueKind("codes that a note has twice, counted once", lossy=False),
    "unknown_code": IssueKind("codes that no known release has, not changed", lossy=False),
    "repaired_code": IssueKind("codes without their leading zeros or with letters for digits, repaired", lossy=False),
    "malformed_code": IssueKind("codes that cannot be codes of their system, left out", lossy=True),
    "empty_code": IssueKind("rows of a code table without a code", lossy=False),
    "empty_note": IssueKind("notes without a word, left out", lossy=True),
    "not_text": IssueKind("notes that are RTF, HTML, base64 or other data instead of text, left out", lossy=True),
    "duplicate_id": IssueKind("notes with the id of an earlier note, left out", lossy=True),
    "no_admission": IssueKind("notes without an admission, left out", lossy=True),
    "ragged_row": IssueKind("rows with too many or too few fields, left out", lossy=True),
    "bad_evidence": IssueKind("evidence with an impossible code or a span outside its text, left out", lossy=True),
    "codes_without_note": IssueKind("coded ids or admissions without a note", lossy=False),
}

MAX_LOCATIONS = 5  # locations stored per kind of issue
_SAFE = re.compile(r"[A-Za-z0-9_.:-]{1,30}")
_BAD_CHARACTER = re.compile("[\x00\ud800-\udfff]")
_SPLIT_NAMES = {name: name for name in SPLITS} | {"val": "dev", "valid": "dev", "validation": "dev"}


def location(file: object, row: int, unit: str = "row") -> str:
    """File name and row as messages show them. Row 1 is the first record (the header of a table), row 0 the file.

    A quoted field may contain line feeds, so a row of a table can span several lines.
    """
    name = Path(str(file)).name
    return f"{name} {unit} {row}" if row else name


def missing_file(path: object, what: str) -> DataError:
    """The error for a path that is no file; what: the kind of file that it must be."""
    if Path(str(path)).is_dir():
        return DataError(f"{path} is a folder; give a {what}")
    return DataError(f"{path}: no such {what}")


def safe_repr(value: object) -> str:
    """The value if it is one short word, else its type only: it may be note text, which no message shows."""
    return (
        repr(value) if isinstance(value, str) and _SAFE.fullmatch(value) else f"a value of type {type(value).__name__}"
    )


def check_columns(
    file: object, names: Sequence[str], required: Sequence[str], once: Sequence[str] = (), hint: str = ""
) -> None:
    """Raise DataError unless all required columns exist, and these and those in `once` exist only once.

    If no required column exists, the first row may be data instead of a header. It is not shown then. hint: the end of
    the message about a missing column.
    """
    missing = [name for name in required if name not in names]
    if missing:
        present = ", ".join(name for name in names if _SAFE.fullmatch(name)) if len(missing) < len(required) else ""
        header = f"; the columns are {present}" if present else " in the header"
        raise DataError(f"{location(file, 1)}: missing column {', '.join(missing)}{header}{hint}")
    for name in (*required, *once):
        if (count := names.count(name)) > 1:
            raise DataError(f"{location(file, 1)}: column {safe_repr(name)} must exist once; got it {count} times")


def readable(value: str) -> str:
    """The value with a question mark for each lone surrogate, which no file in UTF-8 can have."""
    return value.encode("utf-8", "replace").decode("utf-8")


class RecordValidator:
    """Validates the values of one or more files; `issues` has the count and the first locations of each issue.

    cautions: sentences about files that can be read but are hardly meant so.

    strict: raise DataError instead of dropping a value.

    check_codes: count codes that no release has.
    """

    def __init__(self, *, strict: bool = False, check_codes: bool = False):
        self.strict = strict
        self.check_codes = check_codes
        self.issues: dict[str, dict[str, Any]] = {}
        self.cautions: list[str] = []
        self._ids: set[str] = set()
        self._codes: dict[tuple[str, str], tuple[Code | None, tuple[str, ...]]] = {}

    def count_issue(self, kind: str, file: object, row: int = 0, *, times: int = 1) -> None:
        """Count an issue. Raise DataError if it is lossy and the validator is strict."""
        if times == 0:
            return
        description, lossy, unit = ISSUES[kind]
        where = location(file, row, unit)
        if self.strict and lossy:
            raise DataError(f"{where}: found {description.removesuffix(', left out')}")
        issue = self.issues.setdefault(kind, {"count": 0, "first": []})
        issue["count"] += times
        if len(issue["first"]) < MAX_LOCATIONS and where not in issue["first"]:
            issue["first"].append(where)

    def accepts(self, note_id: str, text: str, file: object, row: int) -> bool:
        """Whether the note has a word, is plain text and has a new id."""
        if not note_id:
            raise DataError(f"{location(file, row)}: the id of a note is missing")
        if not text or text.isspace():
            self.count_issue("empty_note", file, row)
            return False
        if not self.is_text(text, file, row):
            return False
        if note_id in self._ids:
            self.count_issue("duplicate_id", file, row)
            return False
        self._ids.add(note_id)
        return True

    def is_text(self, text: str, file: object, row: int) -> bool:
        """Whether a note is plain text; a strict validator raises DataError with what it is instead."""
        if self.strict:
            check_text(text, f"{location(file, row)}: the note")
        elif not_text_reason(text):
            self.count_issue("not_text", file, row)
            return False
        return True

    def clean_text(self, raw: str, file: object, row: int) -> str:
        """The text with invalid characters replaced one for one, so that character offsets do not change."""
        if raw.isascii() and "\x00" not in raw:
            return raw
        nul = "\x00" if count_controls(raw) else " "  # with many, `is_text` must still recognise binary data
        text = _BAD_CHARACTER.sub(lambda match: nul if match[0] == "\x00" else "\ufffd", raw)
        if text != raw:
            self.count_issue("bad_characters", file, row)
        return text

    def parse_code(self, raw: str, system: str, file: object, row: int) -> Code | None:
        """The code in its usual spelling, None if it is malformed."""
        code, kinds = self._parse(raw, system)
        for kind in kinds:
            self.count_issue(kind, file, row)
        return code

    def parse_evidence_code(self, raw: str, system: str, file: object, row: int) -> Code | None:
        """The code of an evidence span, None if it is malformed. Other issues are counted for the code of the note."""
        code, _ = self._parse(raw, system)
        if code is None:
            self.count_issue("bad_evidence", file, row)
        return code

    def parse_codes(self, pairs: Iterable[tuple[str, str]], file: object, row: int) -> tuple[Code, ...]:
        """The distinct codes of a note, in the order of its (system, raw code) pairs."""
        codes: dict[Code, None] = {}
        for system, raw in pairs:
            code = self.parse_code(raw, system, file, row)
            if code in codes:
                self.count_issue("repeated_code", file, row)
            elif code is not None:
                codes[code] = None
        return tuple(codes)

    def _parse(self, raw: str, system: str) -> tuple[Code | None, tuple[str, ...]]:
        """The code and its issues, cached: the rows of a dataset repeat a few thousand codes."""
        if (system, raw) not in self._codes:
            self._codes[system, raw] = self._parse_once(raw, system)
        return self._codes[system, raw]

    def _parse_once(self, raw: str, system: str) -> tuple[Code | None, tuple[str, ...]]:
        try:
            code, repairs = parse(raw, system)
        except CodeError:
            return None, ("malformed_code",)
        repaired = any(repair.endswith("restored") or repair.startswith("letters") for repair in repairs)
        unknown = self.check_codes and not is_known(code)
        return code, ("repaired_code",) * repaired + ("unknown_code",) * unknown


def parse_system(raw: object, file: object, row: int) -> str:
    """The name of a code system. DataError if it is unknown."""
    name = raw.strip().lower() if isinstance(raw, str) else None
    if name not in SYSTEMS:
        raise DataError(f"{location(file, row)}: system must be one of {', '.join(SYSTEMS)}; got {safe_repr(raw)}")
    return name


def parse_split(raw: object, file: object, row: int) -> str | None:
    """The name of a split (val and validation mean dev), None for an empty value. DataError if it is unknown."""
    if raw is None or raw == "":
        return None
    name = _SPLIT_NAMES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if name is None:
        raise DataError(f"{location(file, row)}: split must be one of {', '.join(SPLITS)}; got {safe_repr(raw)}")
    return name
