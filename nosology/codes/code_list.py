"""Lists of codes that a user brings along, and the text by which a model reads a code."""

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
_LONGEST = 1 << 20  # characters of a field; a longer one is a quote that was never closed


def read_code_list(path: str | Path) -> list[tuple[Code, str]]:
    """The codes of a CSV or TSV file in their order, each with its description.

    The file has a header with `code` and, if wanted, `description` and `system`; other columns are passed over. A
    description that is not given is looked up, a system that is not given is guessed where only one can be meant. A
    code that no table knows needs a description.
    """
    path = Path(path)
    found: dict[Code, tuple[int, str]] = {}
    for row, raw, description, system in _rows(path):
        code = _code(path, row, raw, system)
        text = description or describe(code)
        if not text:
            raise DataError(f"{path}, row {row}: {code.code} is in no table of {code.system} and needs a description")
        if code in found:
            raise DataError(f"{path}, row {row}: {code.code} of {code.system} stands in row {found[code][0]} already")
        found[code] = row, text
    if not found:
        raise DataError(f"{path} has no codes below its header")
    return [(code, text) for code, (_, text) in found.items()]


def _code(path: Path, row: int, raw: str, system: str) -> Code:
    """The code of a row; the system is guessed where the row has none."""
    named = "".join(filter(str.isalnum, system.lower()))
    if system and named not in SYSTEMS:
        raise DataError(f"{path}, row {row}: system must be one of {', '.join(SYSTEMS)}; got {system[:20]!r}")
    try:
        parsed = parse(raw, named or None)
    except CodeError as error:
        raise DataError(f"{path}, row {row}: {error}") from error
    if not named and any("it may also be" in repair for repair in parsed.repairs):
        raise DataError(f"{path}, row {row}: {parsed.code.code} is a code of several systems; add a column system")
    return parsed.code


def _rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """(row number, code, description, system) of each row that is not empty."""
    reader = csv.reader(io.StringIO(text := _text(path)), delimiter=_separator(text), strict=True)
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))
    row = 0
    try:
        names = [name.strip().lower() for name in next(reader, [])]
        if "code" not in names:
            raise DataError(f"{path}: the first row must name the columns {', '.join(COLUMNS)}; code is not among them")
        if twice := next((name for name in COLUMNS if names.count(name) > 1), None):
            raise DataError(f"{path}: the first row must name the column {twice} once")
        places = [names.index(name) if name in names else None for name in COLUMNS]
        row = 1
        for row, fields in enumerate(reader, start=2):
            if not any(field.strip() for field in fields):
                continue
            if len(fields) != len(names):
                raise DataError(f"{path}, row {row}: must have {len(names)} fields as the header; got {len(fields)}")
            code, description, system = ("" if i is None else " ".join(fields[i].split()) for i in places)
            yield row, code, description, system
    except csv.Error as error:
        raise DataError(f"{path}, row {row + 1}: not a well-formed row (a quote or line end out of place)") from error


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read the list of codes {path}: {error.strerror or error}") from error


def _separator(text: str) -> str:
    header = text[: text.find("\n")] if "\n" in text else text
    return max(_SEPARATORS, key=header.count)
