"""Notes files: JSON lines, CSV or Parquet with id, text and, if known, patient, site, split, lang, codes, evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nosology.core import SYSTEMS, DataError, Evidence, Note
from nosology.corpora.intake import Intake, check_columns, place, split_name, system_name
from nosology.corpora.lines import table_rows, text_lines

FIELDS = ("id", "text", "patient", "site", "split", "lang", "codes", "evidence")
_SUFFIXES = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "parquet",
}


def is_notes_file(path: str | Path) -> bool:
    """Whether the name says so."""
    return _form(Path(path)) is not None


def _form(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return _SUFFIXES.get(next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), ""))


def read_notes(
    path: str | Path, intake: Intake | None = None, *, system: str | None = None, coded: bool = True
) -> Iterator[Note]:
    """The notes of a file, one by one; `system` is that of codes which do not name their own.

    An intake counts troubles, and leaves out empty notes and repeated ids. Without one every note comes, in order, and
    a value that would be lost is an error. `coded=False` leaves codes and evidence unread, whatever they are.
    """
    path, checked, intake = Path(path), intake is not None, intake or Intake(strict=True)
    form = _form(path)
    if form is None:
        raise DataError(f"{path}: a notes file must end in .jsonl, .csv, .tsv (each also .gz) or .parquet")
    if not path.is_file():
        raise DataError(f"{path}: no such notes file")
    records = {"json": json_records, "table": _table_records, "parquet": _parquet_records}[form]
    for row, record in records(path, intake):
        if not coded:
            record = {name: value for name, value in record.items() if name not in ("codes", "evidence")}
        note = note_from_json(record, intake, file=path, row=row, system=system)
        if not checked or intake.accepts(note.id, note.text, path, row):
            yield note


def note_from_json(
    record: Mapping[str, Any],
    intake: Intake | None = None,
    *,
    file: str | Path = "note",
    row: int = 1,
    system: str | None = None,
) -> Note:
    """The note a record describes; file and row are for messages."""
    intake = intake or Intake(strict=True)
    text = "" if record.get("text", 0) is None else record.get("text")
    if not isinstance(text, str):
        raise DataError(f"{place(file, row)}: text is missing or no string")
    text = intake.text(text, file, row)
    note_id = _label(record, "id", file, row)
    if note_id is None:
        raise DataError(f"{place(file, row)}: id is missing or empty")
    pairs = [_code_pair(item, system, file, row) for item in _list(record, "codes", file, row)]
    return Note(
        id=note_id,
        text=text,
        patient=_label(record, "patient", file, row),
        site=_label(record, "site", file, row),
        split=split_name(record.get("split"), file, row),
        lang=_label(record, "lang", file, row),
        codes=intake.codes(pairs, file, row),
        evidence=evidence_from_json(
            _list(record, "evidence", file, row), len(text), intake, file=file, row=row, system=system
        ),
        extra={name: value for name, value in record.items() if name not in FIELDS},
    )


def note_to_json(note: Note) -> dict[str, Any]:
    """The record of a note; fields that are not known are left away."""
    known = {name: getattr(note, name) for name in FIELDS[:6] if getattr(note, name) is not None}
    known["codes"] = [{"system": code.system, "code": code.code} for code in note.codes]
    if note.evidence:
        known["evidence"] = [
            {**item.code._asdict(), "start": item.start, "end": item.end, **item.extra} for item in note.evidence
        ]
    return known | dict(note.extra)


def json_records(path: Path, intake: Intake) -> Iterator[tuple[int, dict]]:
    """(row, object) of each line that is not empty."""
    for row, line in enumerate(text_lines(path, intake), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deep, or a number too long")
            raise DataError(f"{place(path, row)}: not a line of JSON ({reason})") from error
        if not isinstance(record, dict):
            raise DataError(f"{place(path, row)}: expected a JSON object; got {type(record).__name__}")
        yield row, record


def _table_records(path: Path, intake: Intake) -> Iterator[tuple[int, dict]]:
    rows = table_rows(path, intake)
    _, names = next(rows)
    names = [name.lower() if name.lower() in FIELDS else name for name in names]
    check_columns(path, names, FIELDS[:2], once=[name for name in names if name])
    for row, fields in rows:
        yield row, dict(zip(names, fields))


def _parquet_records(path: Path, intake: Intake) -> Iterator[tuple[int, dict]]:
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for record in batch.to_pylist():
                    row += 1
                    yield row, record
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as Parquet after row {row}") from error


def _label(record: Mapping[str, Any], name: str, file: str | Path, row: int) -> str | None:
    """The field as text, None if it is empty; whole numbers become text, 7.0 (a column with gaps) becomes 7."""
    value = record.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        return value.strip().encode("utf-8", "replace").decode("utf-8") or None
    if value is None or value != value:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DataError(f"{place(file, row)}: {name} must be text or a whole number; got {type(value).__name__}")


def _list(record: Mapping[str, Any], name: str, file: str | Path, row: int) -> list:
    """The items of a list field; in a table it is JSON, codes also a list split at semicolons, commas, blanks."""
    value = record.get(name)
    if value is None or value == "" or value != value:
        return []
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{place(file, row)}: {name} is not a JSON list") from error
        elif name == "codes":
            return value.replace(";", " ").replace(",", " ").split()
    if not isinstance(value, list):
        raise DataError(f"{place(file, row)}: {name} must be a list; got {type(value).__name__}")
    return value


def _code_pair(item: Any, system: str | None, file: str | Path, row: int) -> tuple[str, str]:
    """(system, raw code) of {system, code}, "icd10cm:I10" or "I10" with a default system."""
    if isinstance(item, Mapping):
        code, named = item.get("code"), item.get("system") or system
    else:
        before, colon, after = str(item).partition(":")
        code, named = (after, before) if colon else (item, system)
    if isinstance(code, int) and not isinstance(code, bool):
        code = str(code)
    if not isinstance(code, str):
        raise DataError(f"{place(file, row)}: a code must be text; got {type(code).__name__}")
    if named is None:
        raise DataError(f"{place(file, row)}: a code names no system; give one with --system ({', '.join(SYSTEMS)})")
    return system_name(named, file, row), code


def evidence_from_json(
    items: list, length: int, intake: Intake, *, file: str | Path, row: int, system: str | None = None
) -> tuple[Evidence, ...]:
    """The evidence that lies within a text of that length; other keys than system, code, start and end are kept."""
    found = []
    for item in items:
        if not isinstance(item, Mapping):
            raise DataError(f"{place(file, row)}: evidence must be objects; got {type(item).__name__}")
        named, raw = _code_pair(item, system, file, row)
        start, end = item.get("start"), item.get("end")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= length):
            intake.trouble("bad_evidence", file, row)
            continue
        code = intake.evidence_code(raw, named, file, row)
        if code is not None:
            extra = {key: value for key, value in item.items() if key not in ("system", "code", "start", "end")}
            found.append(Evidence(code, start, end, extra))
    return tuple(found)
