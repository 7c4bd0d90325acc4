"""Relative weights of MS-DRGs: Table 5 of the final rule for inpatient hospitals, as CMS publishes it each year."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nosology.codes.poa_files import spreadsheet_rows
from nosology.core import ConfigError, DataError

_YEAR = re.compile(r"\bFY\s*(20\d\d)\b")


@dataclass(frozen=True, slots=True)
class DrgWeight:
    """The relative weight of a DRG, and its mean lengths of stay in days; None: the table has no number."""

    weight: float
    geometric_days: float | None
    arithmetic_days: float | None


def load_drg_weights(paths: Iterable[Path]) -> dict[int, dict[int, DrgWeight]]:
    """The weights by fiscal year and DRG; ConfigError if two files are of the same year."""
    tables: dict[int, dict[int, DrgWeight]] = {}
    for path in paths:
        year, weights = read_drg_weights(path)
        if year in tables:
            raise ConfigError(f"--drg-weights must have one file per fiscal year; got two of FY {year}")
        tables[year] = weights
    return tables


def read_drg_weights(path: Path) -> tuple[int, dict[int, DrgWeight]]:
    """Fiscal year and weights of a Table 5: text with tabs, CSV or .xlsx, with title rows above the header."""
    if not path.is_file():
        raise ConfigError(f"no such file: {path}")
    content = path.read_bytes()
    try:
        rows = spreadsheet_rows(content) if content.startswith(b"PK") else _text_rows(content)
    except csv.Error as error:
        raise DataError(f"{path} must be CMS Table 5: it cannot be read as text with columns") from error
    place = next((i for i, row in enumerate(rows) if row and _name(row[0]) == "ms-drg"), None)
    if place is None:
        raise DataError(f"{path} must be CMS Table 5 with a column MS-DRG; no row begins with it")
    years = set(_YEAR.findall(" ".join(cell for row in rows[: place + 1] for cell in row)))
    if len(years) != 1:
        raise DataError(f"{path} must name one fiscal year above its rows, such as FY 2026; got {len(years)}")
    names = [_name(cell) for cell in rows[place]]
    columns = (_weight_column(names, path), _column(names, "geometric"), _column(names, "arithmetic"))
    weights = {}
    for number, row in enumerate(rows[place + 1 :], place + 2):
        if not row or not row[0].strip():
            continue
        values = [_number(row[at]) if at is not None and at < len(row) else None for at in columns]
        if not re.fullmatch(r"\d{1,3}", row[0].strip()):
            continue  # a footnote
        if values[0] is None:
            continue  # ungroupable, or without discharges
        if not 0 < values[0] < 100:
            raise DataError(f"{path}, row {number}: a weight must lie between 0 and 100")
        weights[int(row[0])] = DrgWeight(values[0], values[1], values[2])
    if not weights:
        raise DataError(f"{path} has no weights")
    return int(years.pop()), weights


def _text_rows(content: bytes) -> list[list[str]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    tabs = any(line.count("\t") > 3 for line in text.splitlines()[:20])
    return list(csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ","))


def _name(cell: str) -> str:
    return " ".join(cell.split()).lower()


def _column(names: Sequence[str], start: str) -> int | None:
    return next((at for at, name in enumerate(names) if name.startswith(start)), None)


def _weight_column(names: Sequence[str], path: Path) -> int:
    """The column of the weights in force; since FY 2023 a cap limits their decrease, and the table may have both."""
    found = [at for at, name in enumerate(names) if name.startswith(("weight", "relative weight"))]
    capped = [at for at in found if "cap applied" in names[at]]
    if len(capped or found) != 1:
        raise DataError(f"{path} must have one column Weights, or one with the cap applied; got {len(capped or found)}")
    return (capped or found)[0]


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
