"""Notes files: JSON lines, CSV or Parquet with id and text, and optionally patient, site, split, lang, codes, evidence.

for note in read_notes("notes.jsonl"): ...
for note in read_notes(InputFile(stream, "notes.csv")): ...
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nosology.core import SYSTEMS, DataError, Evidence, Note
from nosology.corpora.text_files import InputFile, Source, input_file, is_gzip, table_rows, text_lines
from nosology.corpora.validation import (
    RecordValidator,
    check_columns,
    location,
    missing_file,
    parse_split,
    parse_system,
    readable,
    safe_repr,
)

FIELDS = ("id", "text", "patient", "site", "split", "lang", "codes", "evidence")
_COLUMN_HINT = "; --column id=NAME --column text=NAME say which columns they are"
_CLOSE = 0.8  # similarity of a misspelt name of a column
_MOST_MALFORMED = 100  # rows before the first one that can be read: such a file has another format
_CODE_SEPARATORS = str.maketrans(";,|/", " " * 4)
_FORMATS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "parquet",
}


def is_notes_file(name: str | Path) -> bool:
    """Whether the file name has the suffix of a notes file."""
    return _format(name) is not None


def _format(name: str | Path) -> str | None:
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    return _FORMATS.get(next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), ""))


def read_notes(
    source: Source,
    validator: RecordValidator | None = None,
    *,
    system: str | None = None,
    coded: bool = True,
    columns: Mapping[str, str] | None = None,
) -> Iterator[Note]:
    """The notes of a file, one by one.

    source: a path, or an InputFile that wraps a binary stream or bytes; its name selects the format.

    validator: counts issues, and drops empty notes and repeated ids. Without one all notes are returned, and a value
    that would be dropped, or a note that is not plain text, raises DataError.

    system: the code system of codes without one.

    coded: False ignores codes and evidence.

    columns: the column of the file from which a field is read, where it has another name; the field icd10pcs (or
    another system) is a column of codes of that system. None: messages do not mention that columns can be named.
    """
    file, drops_notes, validator = input_file(source), validator is not None, validator or RecordValidator(strict=True)
    is_first = True
    for row, record in _records(file, validator, columns=columns):
        if coded and columns and (systems := [name for name in SYSTEMS if name in columns]):
            of_systems = {name: record.pop(name, None) for name in systems}
            record["codes"] = _codes_of_columns(record, of_systems, file, row)
        if is_first and coded:
            validator.cautions += _column_cautions(file, list(record), is_table=_format(file.name) != "json")
        is_first = False
        if not coded:
            record = _without_codes(record, columns)
        note = note_from_json(record, validator, file=file, row=row, system=system)
        if drops_notes and not validator.accepts(note.id, note.text, file, row):
            continue
        if drops_notes or validator.is_text(note.text, file, row):
            yield note


def read_well_formed_notes(
    source: Source, malformed: Callable[[DataError], None], columns: Mapping[str, str] | None = None
) -> Iterator[tuple[int, Note]]:
    """(row, note) of each row that can be read, one by one, without codes and evidence; texts are not checked.

    malformed: is called with the error of each other row, which is left out. The message has file and row, and nothing
    of the content. DataError if the file cannot be read as a notes file, or none of its first rows.

    columns: as in `read_notes`.
    """
    file, validator = input_file(source), RecordValidator(strict=True)
    first: list[DataError] | None = []  # of the rows before the first note; None after it

    def skip(error: DataError) -> None:
        if first is None:
            malformed(error)
            return
        first.append(error)
        if len(first) == _MOST_MALFORMED:
            raise DataError(f"{first[0]}; nor can any of the next {_MOST_MALFORMED - 1} rows be read") from error

    for row, record in _records(file, validator, skip, columns):
        try:
            note = note_from_json(_without_codes(record, columns), validator, file=file, row=row)
        except DataError as error:
            skip(error)
            continue
        for error in first or ():
            malformed(error)
        first = None
        yield row, note
    if first:
        raise DataError(f"{first[0]}; no row of the file can be read") from first[0]


def _records(
    file: InputFile,
    validator: RecordValidator,
    malformed: Callable[[DataError], None] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row, record) of a notes file of any format; malformed: as in `read_well_formed_notes`, else rows are strict."""
    file_format = _format(file.name)
    if file_format is None:
        raise DataError(f"{file}: a notes file must end in .jsonl, .csv, .tsv (each also .gz) or .parquet")
    if not file.exists():
        raise missing_file(file, "notes file")
    if file_format == "parquet":
        records = _parquet_records(file)
    elif file_format == "json":
        records = json_records(file, validator, malformed)
    else:
        records = _table_records(file, validator, malformed, columns)
    return _renamed_records(records, columns, file, malformed) if columns else records


def _renamed_records(
    records: Iterable[tuple[int, dict[str, Any]]],
    columns: Mapping[str, str],
    file: InputFile,
    malformed: Callable[[DataError], None] | None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records with columns under the names of fields; what else has the name of such a field is left out.

    DataError if a table, or all lines of JSON, lack one of the columns. A line without that of id or text is malformed.
    """
    is_json, row = _format(file.name) == "json", 0
    left_out, unseen = {*columns, *columns.values()}, dict.fromkeys(columns.values())
    required = [columns[name] for name in FIELDS[:2] if name in columns]
    for row, record in records:
        unseen = {column: None for column in unseen if column not in record}
        if missing := [column for column in (required if is_json else unseen) if column not in record]:
            wrong = _missing_columns(file, row if is_json else 0, missing)
            if malformed is None or not is_json:
                raise wrong
            malformed(wrong)
            continue
        kept = {name: value for name, value in record.items() if name not in left_out}
        yield row, kept | {name: record[column] for name, column in columns.items() if column in record}
    if row and unseen:
        raise _missing_columns(file, 0, unseen)


def _missing_columns(file: InputFile, row: int, missing: Iterable[str]) -> DataError:
    return DataError(f"{location(file, row)}: missing column {', '.join(missing)}, which --column names")


def _without_codes(record: Mapping[str, Any], columns: Mapping[str, str] | None) -> dict[str, Any]:
    """The record without codes and evidence, also those in columns of one code system."""
    left_out = {"codes", "evidence", *(name for name in SYSTEMS if name in (columns or ()))}
    return {name: value for name, value in record.items() if name not in left_out}


def read_notes_files(
    sources: Sequence[Source],
    validator: RecordValidator,
    system: str | None = None,
    lang: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[Note]:
    """The notes of several files. `system` and `lang` apply to codes and notes without their own."""
    for source in sources:
        for note in read_notes(source, validator, system=system, columns=columns or {}):
            yield note if note.lang or lang is None else replace(note, lang=lang)


def _codes_of_columns(record: Mapping[str, Any], of_system: Mapping[str, Any], file: Source, row: int) -> list[Any]:
    """The codes of the field codes, then those of the fields for one system."""
    codes = list(_list(record, "codes", file, row))
    for name in of_system:
        pairs = (_code_pair(item, name, file, row) for item in _list(of_system, name, file, row))
        codes += [{"system": system, "code": code} for system, code in pairs]
    return codes


def _column_cautions(file: Source, names: list[str], *, is_table: bool) -> Iterator[str]:
    """What may be wrong with the columns of a file with gold codes: a misspelt name, a table without codes."""
    where, absent = location(file, 0), [name for name in FIELDS if name not in names]
    for name in names:
        if name not in FIELDS and (close := get_close_matches(name.lower(), absent, 1, _CLOSE)):
            absent.remove(close[0])
            yield f"{where}: column {safe_repr(name)} is kept as a further field; did you mean {close[0]}?"
    if is_table and "codes" in absent:
        yield f"{where}: there is no column codes, so its notes have no codes"


def note_from_json(
    record: Mapping[str, Any],
    validator: RecordValidator | None = None,
    *,
    file: Source = "note",
    row: int = 1,
    system: str | None = None,
) -> Note:
    """The note of a record. File and row are shown in messages."""
    validator = validator or RecordValidator(strict=True)
    text = "" if record.get("text", 0) is None else record.get("text")
    if not isinstance(text, str):
        raise DataError(f"{location(file, row)}: text is missing or not a string")
    text = validator.clean_text(text, file, row)
    note_id = _string(record, "id", file, row)
    if note_id is None:
        raise DataError(f"{location(file, row)}: id is missing or empty")
    pairs = [_code_pair(item, system, file, row) for item in _list(record, "codes", file, row)]
    spans = _list(record, "evidence", file, row)
    return Note(
        id=note_id,
        text=text,
        patient=_string(record, "patient", file, row),
        site=_string(record, "site", file, row),
        split=parse_split(record.get("split"), file, row),
        lang=_string(record, "lang", file, row),
        codes=validator.parse_codes(pairs, file, row),
        evidence=evidence_from_json(spans, len(text), validator, file=file, row=row, system=system),
        extra={
            name: readable(value) if isinstance(value, str) else value
            for name, value in record.items()
            if name not in FIELDS
        },
    )


def note_to_json(note: Note) -> dict[str, Any]:
    """The record of a note, without the fields that are None."""
    record = {name: getattr(note, name) for name in FIELDS[:6] if getattr(note, name) is not None}
    record["codes"] = [{"system": system, "code": code} for system, code in note.codes]
    if note.evidence:
        record["evidence"] = [
            {"system": item.code[0], "code": item.code[1], "start": item.start, "end": item.end, **item.extra}
            for item in note.evidence
        ]
    return record | dict(note.extra)


def json_records(
    source: Source, validator: RecordValidator, malformed: Callable[[DataError], None] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row, object) of each line that is not empty. malformed: is called with the error of each line without one."""
    for row, line in enumerate(text_lines(source, validator), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError) as error:
            if row == 1 and str(source).lower().endswith(".gz") and not is_gzip(source):
                raise DataError(f"{source} is not a gzip file, and not lines of JSON") from error
            reason = getattr(error, "msg", "nested too deep, or a number too long")
            wrong = DataError(f"{location(source, row)}: not a line of JSON ({reason})")
            if malformed is None:
                raise wrong from error
            malformed(wrong)
            continue
        if isinstance(record, dict):
            yield row, record
            continue
        wrong = DataError(f"{location(source, row)}: must be a JSON object; got {type(record).__name__}")
        if malformed is None:
            raise wrong
        malformed(wrong)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; of a repeated key, json would take the last value in silence."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise json.JSONDecodeError("a key is given twice", "", 0)
    return record


def _table_records(
    source: Source,
    validator: RecordValidator,
    malformed: Callable[[DataError], None] | None,
    columns: Mapping[str, str] | None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    rows, renamed = table_rows(source, validator, malformed), columns or {}
    _, given = next(rows)
    names = [name if name in renamed.values() or name.lower() not in FIELDS else name.lower() for name in given]
    required, hint = [renamed.get(name, name) for name in FIELDS[:2]], "" if columns is None else _COLUMN_HINT
    check_columns(source, names, required, once=[name for name in names if name], hint=hint)
    for row, fields in rows:
        yield row, dict(zip(names, fields))


def _parquet_records(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    from pyarrow import parquet

    row, given = 0, input_file(source)
    try:
        with given.open() as raw:
            # Arrow seeks to absolute positions, so the file must start at position 0.
            whole = raw if raw.seekable() and raw.tell() == 0 else io.BytesIO(raw.read())
            with parquet.ParquetFile(whole) as file:
                flat = [field.name for field in file.schema_arrow if not pa.types.is_nested(field.type)]
                # Few rows at a time: a small file can unpack to long texts.
                rows, columns = (1, flat) if given.is_limited else (16, None)
                for batch in file.iter_batches(batch_size=rows, columns=columns):
                    if given.is_limited and batch.nbytes > given.longest:
                        raise DataError(f"{location(source, row + 1)}: a row of more than {given.longest >> 20} MB")
                    for record in batch.to_pylist():
                        row += 1
                        yield row, record
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source} cannot be read as Parquet after row {row}") from error


def _string(record: Mapping[str, Any], name: str, file: Source, row: int) -> str | None:
    """The field as a string, None if it is empty. 7 becomes "7", and 7.0 (a column with gaps) also becomes "7"."""
    value = record.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        return readable(value.strip()) or None
    if value is None or value != value:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DataError(f"{location(file, row)}: {name} must be text or a whole number; got {type(value).__name__}")


def _list(record: Mapping[str, Any], name: str, file: Source, row: int) -> list[Any]:
    """The items of a list field. In a table it is JSON; codes may also be separated by blanks and ; , | /."""
    value = record.get(name)
    if value is None or value == "" or value != value:
        return []
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{location(file, row)}: {name} is not a JSON list") from error
        elif name == "codes" or name in SYSTEMS:
            return value.translate(_CODE_SEPARATORS).split()
    if not isinstance(value, list):
        raise DataError(f"{location(file, row)}: {name} must be a list; got {type(value).__name__}")
    return value


def _code_pair(item: Any, default_system: str | None, file: Source, row: int) -> tuple[str, str]:
    """(system, raw code) of {system, code}, "icd10cm:I10", or "I10" with a default system."""
    if isinstance(item, Mapping):
        code, system = item.get("code"), item.get("system") or default_system
    else:
        before, colon, after = str(item).partition(":")
        code, system = (after, before) if colon else (item, default_system)
    if isinstance(code, int) and not isinstance(code, bool):
        code = str(code)
    if not isinstance(code, str):
        raise DataError(f"{location(file, row)}: a code must be text; got {type(code).__name__}")
    if system is None:
        raise DataError(f"{location(file, row)}: a code names no system; set --system to one of {', '.join(SYSTEMS)}")
    return parse_system(system, file, row), code


def evidence_from_json(
    items: list[Any], length: int, validator: RecordValidator, *, file: Source, row: int, system: str | None = None
) -> tuple[Evidence, ...]:
    """The evidence within a text of that length. Keys other than system, code, start and end go to `extra`."""
    evidence = []
    for item in items:
        if not isinstance(item, Mapping):
            raise DataError(f"{location(file, row)}: evidence must be objects; got {type(item).__name__}")
        item_system, raw = _code_pair(item, system, file, row)
        start, end = item.get("start"), item.get("end")
        if not (type(start) is int and type(end) is int and 0 <= start < end <= length):  # no bool
            validator.count_issue("bad_evidence", file, row)
            continue
        code = validator.parse_evidence_code(raw, item_system, file, row)
        if code is not None:
            extra = {key: value for key, value in item.items() if key not in ("system", "code", "start", "end")}
            evidence.append(Evidence(code, start, end, extra))
    return tuple(evidence)
