"""Files of billed codes: a table with id and code, and optionally order, poa, system and coder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nosology.audit.finding import BilledCode
from nosology.codes.spelling import parse
from nosology.core import Code, CodeError, DataError
from nosology.corpora.text_files import table_rows
from nosology.corpora.validation import RecordValidator, check_columns, location, missing_file

REVERSED = "it ends before it starts"  # why a bill is refused
POA = ("", "Y", "N", "U", "W", "1")
_OPTIONAL = ("order", "poa", "system", "coder")
_SYSTEMS = ("icd10cm", "icd10pcs")


@dataclass(frozen=True, slots=True)
class Bill:
    """The billed codes of an encounter in order; coder: the person who coded it, "" if not stated.

    stated: fields of the encounter that the bill has, such as sex and date. refused: why it cannot be audited.
    """

    codes: tuple[BilledCode, ...]
    coder: str = ""
    stated: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True)
class Bills:
    """The bill of each encounter by id; counts: bills that are left out, by the reason."""

    by_id: dict[str, Bill]
    counts: Mapping[str, int] = field(default_factory=dict)


def read_billed_codes(path: Path) -> dict[str, Bill]:
    """The bill of each encounter by id; DataError names the row and the column, and shows nothing of the value.

    Codes are sorted by the column order, else they stay in the order of their rows. A repeated code counts once. An
    encounter that several people coded has all of their names.
    """
    if not path.is_file():
        raise missing_file(path, "file of billed codes")
    found: dict[str, list[tuple[float, BilledCode]]] = {}
    coders: dict[str, set[str]] = {}
    names: Sequence[str] = ()
    for row, values in table_rows(path, RecordValidator(strict=True)):
        if row == 1:
            names = [name.lower() for name in values]
            check_columns(path, names, ("id", "code"), _OPTIONAL)
            continue
        record = dict(zip(names, (value.strip() for value in values)))
        where = location(path, row)
        if not record["id"]:
            raise DataError(f"{where}: id is empty")
        codes = found.setdefault(record["id"], [])
        item = BilledCode(_code(record, where), _poa(record, where))
        codes.append((_order(record, where, len(codes)), item))
        coders.setdefault(record["id"], set()).add(record.get("coder", ""))
    return {
        note_id: Bill(in_order(codes), ", ".join(sorted(coders[note_id] - {""}))) for note_id, codes in found.items()
    }


def in_order(codes: Iterable[tuple[float, BilledCode]]) -> tuple[BilledCode, ...]:
    """The codes by their numbers; a repeated code counts once."""
    first: dict[Code, BilledCode] = {}
    for _, item in sorted(codes, key=lambda pair: pair[0]):
        first.setdefault(item.code, item)
    return tuple(first.values())


def _code(record: dict[str, str], where: str) -> Code:
    system = record.get("system") or None
    if system not in (None, *_SYSTEMS):
        raise DataError(f"{where}: system must be one of {', '.join(_SYSTEMS)}")
    try:
        code = parse(record["code"], system).code
    except CodeError:  # not chained: its message shows the value
        raise DataError(f"{where}: code must be a code of {' or '.join(_SYSTEMS)}") from None
    if code.system not in _SYSTEMS:
        raise DataError(f"{where}: code must be of {' or '.join(_SYSTEMS)}; got one of {code.system}")
    return code


def _poa(record: dict[str, str], where: str) -> str:
    poa = record.get("poa", "").upper()
    if poa not in POA:
        raise DataError(f"{where}: poa must be empty or one of {', '.join(POA[1:])}")
    return poa


def _order(record: dict[str, str], where: str, place: int) -> float:
    try:
        order = float(record.get("order") or place + 1)
    except ValueError:  # not chained: its message shows the value
        order = math.nan
    if not math.isfinite(order):
        raise DataError(f"{where}: order must be a number")
    return order
