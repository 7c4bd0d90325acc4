"""Lists of codes in a user's CSV or TSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from nosology.codes.lookup import describe
from nosology.codes.spelling import parse
from nosology.core import SYSTEMS, Code, CodeError, DataError

COLUMNS = ("code", "description", "system")
_SEPARATORS = ",\t;|"
_MAX_FIELD = 1 << 20  # characters; a longer field has a quote that is not closed


def read_code_list(path: str | Path) -> list[tuple[Code, str]]:
    """The codes of a file in their order, each with its description.

    The header has the column `code` and optionally `description` and `system`; other columns are ignored. A missing
    description is looked up; an unknown code needs one. A missing system is inferred if only one is possible.
    """
    path = Path(path)
    codes: dict[Code, tuple[int, str]] = {}
    for row, raw, description, system in _rows(path):
        code = _code(path, row, raw, system)
        text = description or describe(code)
        if not text:
            raise DataError(f"{path}, row {row}: {code.code} is in no table of {code.system} and needs a description")
        if code in codes:
            raise DataError(f"{path}, row {row}: {code.code} of {code.system} is already in row {codes[code][0]}")
        codes[code] = row, text
    if not codes:
        raise DataError(f"{path} has no codes below its header")
    return [(code, text) for code, (_, text) in codes.items()]


def _code(path: Path, row: int, raw: str, raw_system: str) -> Code:
    """The code of a row; the system is inferred if the row has none."""
    system = "".join(filter(str.isalnum, raw_system.lower()))
    if raw_system and system not in SYSTEMS:
        raise DataError(f"{path}, row {row}: system must be one of {', '.join(SYSTEMS)}; got {raw_system[:20]!r}")
    try:
        parsed = parse(raw, system or None)
    except CodeError as error:
        raise DataError(f"{path}, row {row}: {error}") from error
    if not system and any("it may also be" in repair for repair in parsed.repairs):
        raise DataError(f"{path}, row {row}: {parsed.code.code} is a code of several systems; add a column system")
    return parsed.code


def _rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """(row number, code, description, system) of each row that is not empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read the list of codes {path}: {error.strerror or error}") from error
    separator = max(_SEPARATORS, key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
    row = 0
    try:
        names = [name.strip().lower() for name in next(reader, [])]
        if "code" not in names:
            raise DataError(f"{path}: the first row must name the columns {', '.join(COLUMNS)}; code is missing")
        if repeated := next((name for name in COLUMNS if names.count(name) > 1), None):
            raise DataError(f"{path}: the first row must name the column {repeated} once")
        indices = [names.index(name) if name in names else None for name in COLUMNS]
        row = 1
        for row, fields in enumerate(reader, start=2):
            if not any(field.strip() for field in fields):
                continue
            if len(fields) != len(names):
                raise DataError(f"{path}, row {row}: must have {len(names)} fields like the header; got {len(fields)}")
            code, description, system = ("" if i is None else " ".join(fields[i].split()) for i in indices)
            yield row, code, description, system
    except csv.Error as error:
        raise DataError(f"{path}, row {row + 1}: not a well-formed row (misplaced quote or line end)") from error
