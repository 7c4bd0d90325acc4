"""Notes from uploads: text files, notes files (JSON lines, CSV, Parquet), FHIR DocumentReference resources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from nosology.claims.encounter import ROLES, SETTINGS
from nosology.claims.encounter_values import iso_date
from nosology.claims.fhir_documents import read_fhir
from nosology.core import DataError, Note
from nosology.corpora.notes_file import is_notes_file, read_notes
from nosology.corpora.text_files import InputFile, note_text, open_bytes
from nosology.corpora.validation import RecordValidator
from nosology.workbench.encounter_data import complete_encounter, parse_disposition, parse_sex

MAX_NOTE_LENGTH = 4_000_000  # characters
MAX_NOTES_OF_FILE, MAX_UNPACKED_BYTES = 200_000, 256 << 20  # of a file
MAX_RATIO, FREE_BYTES = 100, 8 << 20  # of unpacked to packed bytes, for a file that unpacks to more than FREE_BYTES
MAX_ROW_BYTES, MAX_COLUMNS = 16 << 20, 200  # of a notes file; a note of 4 million characters has at most 16 MB
MAX_NAME_LENGTH = 200
_MAX_LENGTHS = {"text": MAX_NOTE_LENGTH, "id": 200, "patient": 200, "site": 200, "lang": 20}  # of the database
_NUMBER = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,4})?")
_OTHER_NAMES = {  # of columns
    "encounter": ("encounter", "encounter_id", "visit", "visit_id", "hadm_id"),
    "document": ("document", "document_type", "note_type"),
    "document_date": ("document_date", "note_date", "charttime", "chartdate"),
    "born": ("born", "birth_date", "birthdate", "date_of_birth", "dob"),
    "admitted": ("admitted", "admission", "admission_date", "admit_date", "admittime"),
    "discharged": ("discharged", "discharge_date", "dischtime"),
    "disposition": ("disposition", "discharge_disposition", "discharge_status"),
    "payer": ("payer", "insurance"),
}
_DAYS = ("document_date", "born", "admitted", "discharged")


def read_upload(name: str, raw: bytes) -> list[Note]:
    """The notes of an uploaded file; DataError names the file and row and never shows text.

    No note is left out: a file with an empty note or an id that it has twice is refused.
    """
    name = PurePath(name.replace("\\", "/")).name or "note.txt"
    if len(name) > MAX_NAME_LENGTH:
        raise DataError(f"the name of a file may have {MAX_NAME_LENGTH} characters; got {len(name):,}")
    if raw.isspace() or not raw:
        raise DataError(f"{name} is empty")
    if _is_fhir(name, raw):
        notes = read_documents(_fhir_json(name, raw), name)
    elif is_notes_file(name):
        notes = list(_limited(InputFile(raw, name, longest=MAX_ROW_BYTES), len(raw)))
    else:
        text = RecordValidator().clean_text(note_text(raw, name), name, 1)
        notes = [normalize_encounter(Note(PurePath(name).stem, text), name)]
    if not notes:
        raise DataError(f"{name} has no notes")
    return notes


def read_documents(value: Any, name: str) -> list[Note]:
    """The notes of a FHIR resource or Bundle; DataError if two have the same id."""
    notes = [normalize_encounter(note, f"{name} row {row}") for row, note in enumerate(read_fhir(value, name), 1)]
    seen: set[str] = set()
    for row, note in enumerate(notes, 1):
        if note.id in seen:
            raise DataError(f"{name} row {row}: the DocumentReference has the id of an earlier one")
        seen.add(note.id)
    return notes


def _limited(file: InputFile, packed: int) -> Iterator[Note]:
    """The notes of a notes file; DataError if it is too large when unpacked. A small file can unpack to terabytes.

    packed: the size of the file. Memory is bounded by the limits of a row, of its columns and of all notes together.
    """
    limits = f"{MAX_NOTES_OF_FILE:,} notes or {MAX_UNPACKED_BYTES >> 20} MB when unpacked"
    too_large = DataError(f"{file} has more than {limits}; import fewer notes at a time")
    size = 0
    if file.name.lower().endswith(".parquet"):
        if _parquet_bytes(file) > MAX_UNPACKED_BYTES:
            raise too_large
    else:
        with open_bytes(file) as unpacked:
            while block := unpacked.read(1 << 20):
                if (size := size + len(block)) > MAX_UNPACKED_BYTES:
                    raise too_large
                if size > FREE_BYTES and size > MAX_RATIO * packed:
                    raise DataError(f"{file} unpacks to more than {MAX_RATIO} times its size; it is no file of notes")
    size = 0
    # Codes in the file are ignored: reviewers assign them.
    for count, note in enumerate(read_notes(file, RecordValidator(strict=True), coded=False), 1):
        if len(note.extra) > MAX_COLUMNS:
            raise DataError(f"{file} row {count}: a note may have {MAX_COLUMNS} columns; got {len(note.extra):,}")
        size += len(note.text) + sum(len(value) for value in note.extra.values() if isinstance(value, str))
        if count > MAX_NOTES_OF_FILE or size > MAX_UNPACKED_BYTES:
            raise too_large
        yield normalize_encounter(note, f"{file} row {count}")


def _parquet_bytes(file: InputFile) -> int:
    """The size of all columns when unpacked, as the file states it; 0 if it is no Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with file.open() as raw, parquet.ParquetFile(raw) as table:
            groups = range(table.metadata.num_row_groups)
            return sum(table.metadata.row_group(number).total_byte_size for number in groups)
    except (pa.ArrowException, OSError):
        return 0  # the reader says what is wrong


def normalize_encounter(note: Note, where: str = "the note") -> Note:
    """The note with `extra` in the form that the checks read; other columns stay if they are short or numbers.

    DataError if a field is too long or a day is none; where: of the note, for its message.
    """
    for name, limit in _MAX_LENGTHS.items():
        value = getattr(note, name) or ""
        if len(value) > limit:
            raise DataError(f"{where}: {name} may have {limit:,} characters; got {len(value):,}")
        if name != "text" and "\x00" in value:  # PostgreSQL cannot store it, SQLite finds it no more
            raise DataError(f"{where}: {name} must not contain the character NUL")
    extra = {str(key).lower(): value for key, value in note.extra.items()}
    parsed = ("date", "sex", "age", "kind", "died", "title")
    encounter = {str(k): v for k, v in note.extra.items() if str(k).lower() not in parsed and _is_plain(v)}
    encounter |= _named_fields(extra)
    for name in ("date", "encounter_date", "admitted", "discharged"):
        if (given := str(extra.get(name) or "").strip()) and iso_date(given) is None:
            raise DataError(f"{where}: {name} must be a day, YYYY-MM-DD")
    if (day := iso_date(extra.get("date") or extra.get("encounter_date"))) is not None:
        encounter["date"] = day
    if sex := parse_sex(extra.get("sex") or extra.get("gender")):
        encounter["sex"] = sex
    age = extra.get("age")
    if isinstance(age, str) and _NUMBER.fullmatch(age.strip()):
        age = float(age) if "." in age else int(age)
    if isinstance(age, int | float) and not isinstance(age, bool) and 0 <= age <= 130:
        encounter["age"] = age
    if (kind := _kind(extra)) is not None:
        encounter["kind"] = kind
    if extra.get("died") in (True, 1, "1", "true"):
        encounter["died"] = True
    if isinstance(extra.get("title"), str):
        encounter["title"] = extra["title"][:200]
    if extra.get("withdrawn") is True:
        encounter["withdrawn"] = True
    return Note(note.id, note.text, note.patient, note.site, None, note.lang, extra=encounter)


def _named_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a document and its encounter by any of their usual names; values that cannot be read are left out."""
    found: dict[str, Any] = {}
    for name, names in _OTHER_NAMES.items():
        value = next((extra[other] for other in names if extra.get(other) not in (None, "")), None)
        if name in _DAYS:
            value = iso_date(value)
        elif name == "disposition":
            value = parse_disposition(value)
        elif value is not None:
            number = isinstance(value, float) and value.is_integer()  # a column of whole numbers with gaps
            value = str(int(value) if number else value).strip()[:200]
        if value:
            found[name] = value
    return found


def coder_columns(encounter: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a note for a coder that reads columns; sex is also given under its other usual name, gender."""
    encounter = complete_encounter(encounter)
    return ({"gender": encounter["sex"]} if "sex" in encounter else {}) | dict(encounter)


def claim_fields(encounter: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a note's encounter for its claim; values that the claim does not know are left out."""
    given = {str(name).lower(): value for name, value in encounter.items()}
    fields = {name: given[name] for name in ("sex", "age") if name in given}
    for name, allowed in (("setting", SETTINGS), ("role", ROLES)):
        if (value := str(given.get(name, "")).strip().lower()) in allowed:
            fields[name] = value
    if "setting" not in fields and "kind" in given:
        fields["setting"] = given["kind"]
    days = {name: iso_date(given.get(name)) for name in ("date", "admitted", "discharged")}
    if left := parse_disposition(given.get("disposition")):
        fields["disposition"] = left
    return fields | {name: day for name, day in days.items() if day}


def _kind(extra: Mapping[str, Any]) -> str | None:
    """inpatient or outpatient by the column kind, or else by the column setting; None if neither says it."""
    kind, setting = (str(extra.get(name, "")).strip().lower() for name in ("kind", "setting"))
    if kind in ("inpatient", "outpatient"):
        return kind
    return None if setting not in SETTINGS else "inpatient" if setting == "inpatient" else "outpatient"


def _is_plain(value: Any) -> bool:
    """Whether a value is a short text, or a number that every database stores."""
    return len(value) <= 200 if isinstance(value, str) else isinstance(value, int | float) and abs(value) < 1e15


def _is_json_lines(name: str) -> bool:
    return name.lower().endswith((".ndjson", ".jsonl"))


def _is_fhir(name: str, raw: bytes) -> bool:
    """Whether a file contains FHIR resources, as one JSON value or one per line."""
    content = raw.lstrip()
    first_line = content.partition(b"\n")[0]
    is_json = name.lower().endswith(".json") and b'"resourceType"' in raw
    return content[:1] == b"{" and (is_json or (_is_json_lines(name) and b'"resourceType"' in first_line))


def _fhir_json(name: str, raw: bytes) -> Any:
    """The JSON value of a file; a file with one resource per line (bulk export) becomes a Bundle."""
    if not _is_json_lines(name):
        return _load_json(name, raw)
    lines = [_load_json(f"{name} row {row}", line) for row, line in enumerate(raw.splitlines(), 1) if line.strip()]
    return {"resourceType": "Bundle", "entry": [{"resource": line} for line in lines]}


def _load_json(name: str, raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON") from error
