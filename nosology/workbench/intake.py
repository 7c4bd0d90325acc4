"""Notes from outside: text files, notes files (JSON lines, CSV, Parquet), FHIR DocumentReference, also in Bundles."""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path, PurePath
from typing import Any

from nosology.core import DataError, Note
from nosology.corpora.intake import Intake
from nosology.corpora.lines import decode
from nosology.corpora.notes_file import is_notes_file, read_notes

LONGEST = 4_000_000  # characters of a note
KNOWN = ("date", "sex", "age", "kind", "died", "title")  # of an encounter; what else a note has, coders may read
_SEX = {"f": "F", "female": "F", "m": "M", "male": "M"}


def notes_of(name: str, raw: bytes) -> list[Note]:
    """The notes of an uploaded file; DataError names the file and row and never shows text."""
    name = PurePath(name.replace("\\", "/")).name or "note.txt"
    if not raw.strip():
        raise DataError(f"{name} is empty")
    if what := _no_text(raw):
        raise DataError(f"{name} is {what}, not text; save it as plain text in UTF-8")
    if is_fhir(name, raw):
        found = list(fhir_notes(_resources_of(name, raw), name))
    elif is_notes_file(name):
        found = _from_notes_file(name, raw)
    else:
        found = [Note(PurePath(name).stem, Intake().text(decode(raw.removeprefix(b"\xef\xbb\xbf"))[0], name, 1))]
    for row, note in enumerate(found, 1):
        if len(note.text) > LONGEST:
            raise DataError(f"{name} row {row}: a note may have {LONGEST:,} characters; got {len(note.text):,}")
    return [with_encounter(note) for note in found]


def _from_notes_file(name: str, raw: bytes) -> list[Note]:
    """Codes that a notes file may hold are left unread: here people give them."""
    with tempfile.TemporaryDirectory() as folder:  # readers of corpora work on files
        path = Path(folder) / name
        path.write_bytes(raw)
        return list(read_notes(path, Intake(), coded=False))


def with_encounter(note: Note) -> Note:
    """The note with what `extra` says of the encounter in the form that checks read, and its other plain columns."""
    extra = {str(key).lower(): value for key, value in note.extra.items()}
    encounter = {str(k): v for k, v in note.extra.items() if str(k).lower() not in KNOWN and _is_plain(v)}
    if (day := _day(extra.get("date") or extra.get("encounter_date"))) is not None:
        encounter["date"] = day
    if sex := _SEX.get(str(extra.get("sex") or extra.get("gender") or "").strip().lower()):
        encounter["sex"] = sex
    age = extra.get("age")
    if isinstance(age, str) and age.strip().isdigit():
        age = int(age)
    if isinstance(age, int | float) and not isinstance(age, bool) and 0 <= age <= 130:
        encounter["age"] = age
    if str(extra.get("kind", "")).lower() in ("inpatient", "outpatient"):
        encounter["kind"] = str(extra["kind"]).lower()
    if extra.get("died") in (True, 1, "1", "true"):
        encounter["died"] = True
    if isinstance(extra.get("title"), str):
        encounter["title"] = extra["title"][:200]
    return Note(note.id, note.text, note.patient, note.site, None, note.lang, extra=encounter)


def columns_of(encounter: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside a note's text, for a coder that reads columns; gender is a column of many, sex of few."""
    return ({"gender": encounter["sex"]} if "sex" in encounter else {}) | dict(encounter)


def _is_plain(value: Any) -> bool:
    """Whether a value is a short text, or a number that every store takes."""
    return len(value) <= 200 if isinstance(value, str) else isinstance(value, int | float) and abs(value) < 1e15


def _day(value: Any) -> str | None:
    try:
        return date.fromisoformat(str(value)[:10]).isoformat()
    except ValueError:
        return None


def _no_text(raw: bytes) -> str:
    """What a file is that is no text, by its first bytes; empty if it may be text."""
    kinds = {b"%PDF": "a PDF", b"PK\x03\x04": "a zip or office file", b"\xd0\xcf\x11\xe0": "an office file"}
    kinds |= {b"{\\rtf": "RTF", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
    return next((what for first, what in kinds.items() if raw.startswith(first)), "")


def is_fhir(name: str, raw: bytes) -> bool:
    """Whether a file holds FHIR resources, as one JSON value or one a line."""
    first = raw.lstrip().partition(b"\n")[0]
    whole = name.lower().endswith(".json") and b'"resourceType"' in raw
    return raw.lstrip()[:1] == b"{" and (whole or (_is_lines(name) and b'"resourceType"' in first))


def _is_lines(name: str) -> bool:
    return name.lower().endswith((".ndjson", ".jsonl"))


def _resources_of(name: str, raw: bytes) -> Any:
    """The JSON value of a file; of one with a resource a line, as bulk exports are, a Bundle of them."""
    if not _is_lines(name):
        return _json(name, raw)
    lines = [_json(f"{name} row {row}", line) for row, line in enumerate(raw.splitlines(), 1) if line.strip()]
    return {"resourceType": "Bundle", "entry": [{"resource": line} for line in lines]}


def _json(name: str, raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON") from error


def fhir_notes(value: Any, name: str) -> Iterator[Note]:
    """A note for each DocumentReference with text in it; patients of the same Bundle give sex and age."""
    resources = _resources(value, name)
    patients = {f"Patient/{item['id']}": item for item in resources if _kind(item) == "Patient" and "id" in item}
    documents = [item for item in resources if _kind(item) == "DocumentReference"]
    if not documents:
        raise DataError(f"{name}: expected a DocumentReference, or a Bundle with one; there is none")
    for row, item in enumerate(documents, 1):
        yield _document(item, patients, name, row)


def _kind(item: Any) -> Any:
    return item.get("resourceType") if isinstance(item, dict) else None


def _resources(value: Any, name: str) -> list[Any]:
    if _kind(value) == "Bundle":
        entries = value.get("entry") or []
        if not isinstance(entries, list):
            raise DataError(f"{name}: entry of a Bundle must be a list")
        return [entry.get("resource") for entry in entries if isinstance(entry, dict)]
    return [value]


def _document(item: dict[str, Any], patients: Mapping[str, Any], name: str, row: int) -> Note:
    from fhir.resources.R4B.documentreference import DocumentReference
    from pydantic import ValidationError

    try:
        checked = DocumentReference.model_validate(item)
    except (ValidationError, ValueError) as error:
        raise DataError(f"{name} row {row}: not a DocumentReference of FHIR R4") from error
    text = next((found for content in item["content"] if (found := _text(content, name, row))), None)
    if text is None:
        raise DataError(f"{name} row {row}: no attachment with text in it (addresses are not followed)")
    subject = (item.get("subject") or {}).get("reference")
    patient = patients.get(subject, {})
    extra: dict[str, Any] = {"sex": patient.get("gender"), "date": item.get("date"), "title": item.get("description")}
    period = (item.get("context") or {}).get("period") or {}
    extra["date"] = period.get("end") or period.get("start") or item.get("date")
    born = _day(patient.get("birthDate"))
    if born and (day := _day(extra["date"])):
        first, then = date.fromisoformat(born), date.fromisoformat(day)
        extra["age"] = then.year - first.year - ((then.month, then.day) < (first.month, first.day))
    note_id = checked.id or next((i.get("value") for i in item.get("identifier") or [] if i.get("value")), None)
    if not note_id:
        raise DataError(f"{name} row {row}: a DocumentReference needs an id or an identifier")
    who = subject.removeprefix("Patient/") if isinstance(subject, str) else None
    return Note(str(note_id), text, patient=who, lang=item.get("language"), extra=extra)


def _text(content: Mapping[str, Any], name: str, row: int) -> str | None:
    attachment = content.get("attachment") or {}
    kind = str(attachment.get("contentType", "text/plain"))
    if not attachment.get("data") or not kind.startswith("text/plain"):
        return None
    try:
        raw = base64.b64decode(attachment["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{name} row {row}: the attachment is not base64") from error
    return Intake().text(decode(raw)[0], name, row)
