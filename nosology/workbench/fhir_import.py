"""Notes of FHIR R4 DocumentReference resources, with fields of the Patient and the Encounter beside them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from datetime import date
from html.parser import HTMLParser
from typing import Any

from nosology.core import DataError, Note
from nosology.corpora.text_files import decode, note_text
from nosology.corpora.validation import RecordValidator

_SETTINGS = {  # codes of Encounter.class (v3-ActCode); observation is outpatient care (guideline IV.A.2)
    **dict.fromkeys(("IMP", "ACUTE", "NONAC", "SS"), "inpatient"),
    **dict.fromkeys(("AMB", "HH", "VR", "FLD", "EMER", "OBSENC", "PRENC"), "outpatient"),
}
_BLOCKS = {
    "p",
    "pre",
    "div",
    "br",
    "tr",
    "li",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "table",
    "section",
    "ul",
    "ol",
    "hr",
}
_HIDDEN = {"script", "style", "title", "template"}


def read_fhir(value: Any, name: str) -> Iterator[Note]:
    """One note per DocumentReference with text, plain or HTML; DataError says in which row something is wrong."""
    resources = _bundle_resources(value, name)
    documents = [item for item in resources.values() if _type(item) == "DocumentReference"]
    if not documents:
        raise DataError(f"{name}: expected a DocumentReference, or a Bundle with one; there is none")
    for row, item in enumerate(documents, 1):
        yield _document_note(item, resources, f"{name} row {row}")


def _type(item: Any) -> Any:
    return item.get("resourceType") if isinstance(item, dict) else None


def _bundle_resources(value: Any, name: str) -> dict[str, Any]:
    """The resources by the references that can name them: fullUrl, and type with id."""
    if _type(value) != "Bundle":
        return {"": value}
    entries = value.get("entry") or []
    if not isinstance(entries, list):
        raise DataError(f"{name}: entry of a Bundle must be a list")
    found: dict[str, Any] = {}
    for number, entry in enumerate(item for item in entries if isinstance(item, dict)):
        resource, url = entry.get("resource"), str(entry.get("fullUrl") or number)
        found[f"{url} {number}" if url in found else url] = resource  # none is left out
        if isinstance(resource, dict) and _type(resource) in ("Patient", "Encounter") and resource.get("id"):
            found[f"{_type(resource)}/{resource['id']}"] = resource
    return found


def _referenced(reference: Any, kind: str, resources: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The text of a reference and the resource of a kind that it names; {} if the Bundle does not have it."""
    text = str((reference or {}).get("reference") or "") if isinstance(reference, dict) else ""
    text = text.partition("/_history/")[0]
    local = "/".join(text.rsplit("/", 2)[-2:])  # of an absolute address
    found = resources.get(text) or resources.get(local)
    return text, found if isinstance(found, dict) and _type(found) == kind else {}


def _document_note(item: dict[str, Any], resources: Mapping[str, Any], where: str) -> Note:
    from fhir.resources.R4B.documentreference import DocumentReference
    from pydantic import ValidationError

    try:
        checked = DocumentReference.model_validate(item)
    except (ValidationError, ValueError) as error:
        raise DataError(f"{where}: not a DocumentReference of FHIR R4") from error
    text = next((text for content in item["content"] if (text := _attachment_text(content, where))), None)
    if text is None:
        raise DataError(f"{where}: no attachment with text or HTML in it (addresses are not followed)")
    contained = {f"#{it.get('id')}": it for it in item.get("contained") or [] if isinstance(it, dict)}
    context, resources = item.get("context") or {}, {**resources, **contained}
    subject, patient = _referenced(item.get("subject"), "Patient", resources)
    _, encounter = _referenced(next(iter(context.get("encounter") or []), None), "Encounter", resources)
    note_id = checked.id or next((i.get("value") for i in item.get("identifier") or [] if i.get("value")), None)
    if not note_id:
        raise DataError(f"{where}: a DocumentReference needs an id or an identifier")
    extra = _encounter_fields(item, context, patient, encounter, where)
    return Note(str(note_id), text, patient=_patient_id(subject, patient), lang=item.get("language"), extra=extra)


def _patient_id(subject: str, patient: Mapping[str, Any]) -> str | None:
    """The id of a patient: that of the resource, else its first identifier, else the reference.

    The id of a resource within the document, such as "#p", is no name of a person: other documents have it, too.
    """
    identifiers = [it.get("value") for it in patient.get("identifier") or [] if isinstance(it, dict)]
    named = next(filter(None, identifiers), None)
    if subject.startswith("#"):
        return str(named) if named else None
    named = patient.get("id") or named
    return str(named) if named else subject.removeprefix("Patient/") or None


def _encounter_fields(
    item: Mapping[str, Any],
    context: Mapping[str, Any],
    patient: Mapping[str, Any],
    encounter: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    """sex, date, age, kind and title; the date is the end of the stay, or else of the document."""
    period = context.get("period") or encounter.get("period")
    period = period if isinstance(period, dict) else {}
    day = _date(period.get("end") or period.get("start") or item.get("date"), "date", where)
    extra: dict[str, Any] = {"sex": patient.get("gender"), "date": day, "title": item.get("description")}
    born = str(patient.get("birthDate") or "")
    if born and day and len(born) >= 10:  # a year or month alone gives no exact age
        birthday = _date(born, "birthDate of the patient", where) or ""
        if birthday > day:
            raise DataError(f"{where}: birthDate of the patient is after the date of the document")
        extra["age"] = int(day[:4]) - int(birthday[:4]) - (day[5:] < birthday[5:])
    kind = (encounter.get("class") or {}).get("code") if isinstance(encounter.get("class"), dict) else None
    if kind in _SETTINGS:
        extra["kind"] = _SETTINGS[kind]
    return extra


def iso_date(value: Any) -> str | None:
    """The day at the start of a text, YYYY-MM-DD; None if there is none."""
    try:
        return date.fromisoformat(str(value)[:10]).isoformat()
    except ValueError:
        return None


def _date(value: Any, what: str, where: str) -> str | None:
    """The day of a FHIR date or time; None if there is none; DataError if it is none or only a part of one."""
    if not value:
        return None
    day = iso_date(value)
    if day is None:
        raise DataError(f"{where}: {what} must be a whole day, YYYY-MM-DD")
    return day


def _attachment_text(content: Mapping[str, Any], where: str) -> str | None:
    attachment = content.get("attachment") or {}
    kind = str(attachment.get("contentType", "text/plain")).lower()
    if not attachment.get("data") or not kind.startswith(("text/plain", "text/html", "application/xhtml+xml")):
        return None
    try:
        raw = base64.b64decode(attachment["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{where}: the attachment is not base64") from error
    if not kind.startswith("text/plain"):
        raw = html_text(decode(raw)[0]).encode()
    name, _, row = where.rpartition(" row ")
    return RecordValidator().clean_text(note_text(raw, where), name, int(row))


class _TextOfHtml(HTMLParser):
    """Collects the text of a page, with a line break at each block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that starts."""
        self._hidden += tag in _HIDDEN
        self._preformatted += tag == "pre"
        self.parts += ["\n"] if tag in _BLOCKS else ["\t"] if tag in ("td", "th") else []

    def handle_endtag(self, tag: str) -> None:
        """A tag that ends."""
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        self.parts += ["\n"] if tag in _BLOCKS else []

    def handle_data(self, data: str) -> None:
        """Text between tags."""
        if not self._hidden:
            self.parts.append(data if self._preformatted else re.sub(r"\s+", " ", data))


def html_text(page: str) -> str:
    """The text of an HTML page: a line per block, without scripts and styles."""
    parser = _TextOfHtml()
    parser.feed(page)
    parser.close()
    lines = (line.strip(" ") for line in "".join(parser.parts).replace("\r\n", "\n").split("\n"))
    return "\n".join(line for line in lines if line)
