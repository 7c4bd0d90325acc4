"""What a note may hold: text and codes as they come, mended or left out, and every such act counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from nosology.codes import is_known, parse
from nosology.core import SPLITS, SYSTEMS, Code, CodeError, DataError


class Kind(NamedTuple):
    """What a kind of trouble is called, and whether something was lost by it (then --strict refuses it)."""

    sentence: str
    lossy: bool
    unit: str = "row"


TROUBLES: dict[str, Kind] = {
    "encoding": Kind("lines that are not UTF-8, read as Windows-1252", lossy=False, unit="line"),
    "bad_characters": Kind("notes with NUL bytes or lone surrogates, replaced one for one", lossy=False),
    "repeated_code": Kind("codes given twice to one note, kept once", lossy=False),
    "unknown_code": Kind("codes that no known release has, kept", lossy=False),
    "repaired_code": Kind("codes that lost leading zeros or have letters for digits, restored", lossy=False),
    "malformed_code": Kind("codes that cannot be codes of their system, left out", lossy=True),
    "empty_code": Kind("rows of a table of codes that hold no code", lossy=False),
    "empty_note": Kind("notes without a word, left out", lossy=True),
    "duplicate_id": Kind("notes with an id that came before, left out", lossy=True),
    "no_admission": Kind("notes without an admission, left out", lossy=True),
    "ragged_row": Kind("rows with too many or too few fields, left out", lossy=True),
    "bad_evidence": Kind("evidence with an impossible code or a span not within its text, left out", lossy=True),
    "codes_without_note": Kind("coded ids or admissions for which there is no note", lossy=False),
}

PLACES_KEPT = 5
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,30}")
_BAD = re.compile("[\x00\ud800-\udfff]")
_SPLIT_NAMES = {name: name for name in SPLITS} | {"val": "dev", "valid": "dev", "validation": "dev"}


def place(file: str | Path, row: int, unit: str = "row") -> str:
    """The place as messages name it: row 1 is the first record, in a table the header; row 0 is the whole file.

    A quoted field may hold line feeds, so that a row of a table may have many lines.
    """
    return f"{Path(file).name} {unit} {row}" if row else Path(file).name


def shown(value: object) -> str:
    """The value as a message may show it: a short word as it is, anything else not at all, for it may be note text."""
    return (
        repr(value) if isinstance(value, str) and _NAME.fullmatch(value) else f"a value of type {type(value).__name__}"
    )


def check_columns(file: str | Path, names: Sequence[str], required: Sequence[str], once: Sequence[str] = ()) -> None:
    """Raises DataError unless the required columns are there, and these and the ones in `once` no more than once.

    If no required one is there, the first row is perhaps no header but a patient's: it is not shown.
    """
    missing = [name for name in required if name not in names]
    if missing:
        there = ", ".join(name for name in names if _NAME.fullmatch(name)) if len(missing) < len(required) else ""
        header = f"; the columns are {there}" if there else " in the header"
        raise DataError(f"{place(file, 1)}: missing column {', '.join(missing)}{header}")
    for name in (*required, *once):
        if names.count(name) > 1:
            raise DataError(
                f"{place(file, 1)}: column {shown(name)} must be there once; got it {names.count(name)} times"
            )


class Intake:
    """Takes in raw values of one or more files; `troubles` counts what was mended or left out, with the first places.

    `strict` raises where something would be lost; `check_codes` also counts codes that no release has.
    """

    def __init__(self, *, strict: bool = False, check_codes: bool = False):
        self.strict = strict
        self.check_codes = check_codes
        self.troubles: dict[str, dict] = {}
        self._ids: set[str] = set()
        self._codes: dict[tuple[str, str], tuple[Code | None, tuple[str, ...]]] = {}

    def trouble(self, kind: str, file: str | Path, row: int = 0, *, times: int = 1) -> None:
        """Counts a trouble; raises DataError if it loses something and the intake is strict."""
        if times == 0:
            return
        sentence, lossy, unit = TROUBLES[kind]
        where = place(file, row, unit)
        if self.strict and lossy:
            raise DataError(f"{where}: found {sentence.removesuffix(', left out')}")
        found = self.troubles.setdefault(kind, {"count": 0, "first": []})
        found["count"] += times
        if len(found["first"]) < PLACES_KEPT and where not in found["first"]:
            found["first"].append(where)

    def accepts(self, note_id: str, text: str, file: str | Path, row: int) -> bool:
        """Whether a corpus may hold the note: it has a word, and an id that did not come before."""
        if not note_id:
            raise DataError(f"{place(file, row)}: the id of a note is missing")
        if not text or text.isspace():
            self.trouble("empty_note", file, row)
            return False
        if note_id in self._ids:
            self.trouble("duplicate_id", file, row)
            return False
        self._ids.add(note_id)
        return True

    def text(self, raw: str, file: str | Path, row: int) -> str:
        """The text with characters no file may hold replaced one for one, so that every offset still holds."""
        if raw.isascii() and "\x00" not in raw:
            return raw
        mended = _BAD.sub(lambda match: " " if match[0] == "\x00" else "\ufffd", raw)
        if mended != raw:
            self.trouble("bad_characters", file, row)
        return mended

    def code(self, raw: str, system: str, file: str | Path, row: int) -> Code | None:
        """The code in its usual spelling, or None if it cannot be one."""
        code, kinds = self._lookup(raw, system)
        for kind in kinds:
            self.trouble(kind, file, row)
        return code

    def evidence_code(self, raw: str, system: str, file: str | Path, row: int) -> Code | None:
        """The same for a piece of evidence, whose code is counted where the note has it."""
        code, _ = self._lookup(raw, system)
        if code is None:
            self.trouble("bad_evidence", file, row)
        return code

    def codes(self, raw: Iterable[tuple[str, str]], file: str | Path, row: int) -> tuple[Code, ...]:
        """The codes of one note from (system, raw code) pairs, each once, in the order given."""
        found: dict[Code, None] = {}
        for system, value in raw:
            code = self.code(value, system, file, row)
            if code in found:
                self.trouble("repeated_code", file, row)
            elif code is not None:
                found[code] = None
        return tuple(found)

    def _lookup(self, raw: str, system: str) -> tuple[Code | None, tuple[str, ...]]:
        found = self._codes.get((system, raw))
        if found is None:
            found = self._codes[system, raw] = self._read_code(raw, system)
        return found

    def _read_code(self, raw: str, system: str) -> tuple[Code | None, tuple[str, ...]]:
        try:
            code, repairs = parse(raw, system)
        except CodeError:
            return None, ("malformed_code",)
        kinds = []
        if any(repair.endswith("restored") or repair.startswith("letters") for repair in repairs):
            kinds.append("repaired_code")
        if self.check_codes and not is_known(code):
            kinds.append("unknown_code")
        return code, tuple(kinds)


def system_name(raw: object, file: str | Path, row: int) -> str:
    """The name of a code system; DataError names the place if it is none."""
    name = raw.strip().lower() if isinstance(raw, str) else raw
    if name not in SYSTEMS:
        raise DataError(f"{place(file, row)}: system must be one of {', '.join(SYSTEMS)}; got {shown(raw)}")
    return name


def split_name(raw: object, file: str | Path, row: int) -> str | None:
    """The split a value names (val and validation are dev), None for an empty one; DataError names the place."""
    if raw is None or raw == "":
        return None
    name = _SPLIT_NAMES.get(raw.strip().lower()) if isinstance(raw, str) else None
    if name is None:
        raise DataError(f"{place(file, row)}: split must be one of {', '.join(SPLITS)}; got {shown(raw)}")
    return name
