"""Notes of FHIR R4 DocumentReference resources, with fields of the Patient and the Encounter beside them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from nosology.claims.encounter_values import DISPOSITIONS, iso_date, years_between
from nosology.core import DataError, Note
from nosology.corpora.text_files import decode, note_text
from nosology.corpora.validation import RecordValidator, readable

if TYPE_CHECKING:
    from pydantic import BaseModel

_SETTINGS = {  # codes of Encounter.class (v3-ActCode); observation is outpatient care (guideline IV.A.2)
    **dict.fromkeys(("IMP", "ACUTE", "NONAC", "SS"), "inpatient"),
    **dict.fromkeys(("AMB", "HH", "VR", "FLD", "OBSENC", "PRENC"), "outpatient"),
    "EMER": "emergency",
}
_LOINC_KINDS = {  # codes of DocumentReference.type and .category
    **dict.fromkeys(("18842-5", "28655-9"), "discharge"),
    **dict.fromkeys(("34117-2", "47039-3"), "h&p"),
    **dict.fromkeys(("11506-3", "28562-7"), "progress"),
    **dict.fromkeys(("11504-8", "28570-0"), "operative"),
    **dict.fromkeys(("18748-4", "18726-0"), "radiology"),
    **dict.fromkeys(("11526-1", "60567-5"), "pathology"),
    **dict.fromkeys(("11502-2", "26436-6"), "laboratory"),
    "11488-4": "consultation",
    "34111-5": "emergency",
}
DISPOSITION_CODES = {  # of FHIR's code system discharge-disposition, each with a discharge status of UB-04
    "home": "01",
    "alt-home": "01",
    "other-hcf": "70",
    "hosp": "50",
    "long": "04",
    "aadvice": "07",
    "exp": "20",
    "psy": "65",
    "rehab": "62",
    "snf": "03",
    "oth": "70",
}
_REFERENCED = ("Patient", "Encounter", "Condition", "Procedure")  # by documents and claims
_DATES = ("date", "context.period.start", "context.period.end")  # of a DocumentReference
_WITHDRAWN = ("entered-in-error", "superseded")  # values of DocumentReference.status
_BLOCKS = {"p", "pre", "div", "br", "tr", "li", "table", "section", "ul", "ol", "hr"} | {
    f"h{level}" for level in range(1, 7)
}
_HIDDEN = {"script", "style", "title", "template"}


def read_fhir(value: Any, name: str, *, lenient: bool = False) -> Iterator[Note]:
    """One note per DocumentReference with text, plain or HTML; DataError says in which row something is wrong.

    lenient: a document without text, such as a PDF, is a note with an empty text, and one whose dates cannot be used is
    a note with the reason as its column refused; else both are errors.
    """
    resources = bundle_resources(value, name)
    documents = [item for item in resources.values() if resource_type(item) == "DocumentReference"]
    if not documents:
        raise DataError(f"{name}: expected a DocumentReference, or a Bundle with one; there is none")
    for row, item in enumerate(documents, 1):
        note = _document_note(item, resources, f"{name} row {row}", lenient=lenient)
        if not note.text and not note.extra.get("withdrawn") and not lenient:
            raise DataError(f"{name} row {row}: no attachment with text or HTML in it (addresses are not followed)")
        yield note


def resource_type(item: Any) -> Any:
    """The type of a FHIR resource; None if the value is none."""
    return item.get("resourceType") if isinstance(item, dict) else None


def bundle_resources(value: Any, name: str) -> dict[str, Any]:
    """The resources by the references that can name them: fullUrl, and type with id."""
    if resource_type(value) != "Bundle":
        return {"": value}
    entries = value.get("entry") or []
    if not isinstance(entries, list):
        raise DataError(f"{name}: entry of a Bundle must be a list")
    found: dict[str, Any] = {}
    for number, entry in enumerate(item for item in entries if isinstance(item, dict)):
        resource, url = entry.get("resource"), str(entry.get("fullUrl") or number)
        found[f"{url} {number}" if url in found else url] = resource  # none is left out
        if isinstance(resource, dict) and resource_type(resource) in _REFERENCED and resource.get("id"):
            found[f"{resource_type(resource)}/{resource['id']}"] = resource
    return found


def referenced(reference: Any, kind: str, resources: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The text of a reference and the resource of a kind that it names; {} if the Bundle does not have it."""
    text = str((reference or {}).get("reference") or "") if isinstance(reference, dict) else ""
    text = text.partition("/_history/")[0]
    local = "/".join(text.rsplit("/", 2)[-2:])  # of an absolute address
    found = resources.get(text) or resources.get(local)
    return text, found if isinstance(found, dict) and resource_type(found) == kind else {}


def _document_note(item: dict[str, Any], resources: Mapping[str, Any], where: str, *, lenient: bool) -> Note:
    from fhir.resources.R4B.documentreference import DocumentReference

    wrong = wrong_dates(DocumentReference, item, _DATES, where)
    withdrawn = item.get("status") in _WITHDRAWN or item.get("docStatus") == "entered-in-error"
    text = next((text for content in item["content"] if (text := _attachment_text(content, where))), None)
    contained = {f"#{it.get('id')}": it for it in item.get("contained") or [] if isinstance(it, dict)}
    context, resources = item.get("context") or {}, {**resources, **contained} if contained else resources
    subject, patient = referenced(item.get("subject"), "Patient", resources)
    visit, encounter = referenced(next(iter(context.get("encounter") or []), None), "Encounter", resources)
    note_id = item.get("id") or next((i.get("value") for i in item.get("identifier") or [] if i.get("value")), None)
    if not note_id:
        raise DataError(f"{where}: a DocumentReference needs an id or an identifier")
    try:
        extra = {"refused": wrong} if wrong else _encounter_fields(item, context, patient, encounter)
    except DataError as error:
        extra = {"refused": str(error)}
    if "refused" in extra and not lenient:
        raise DataError(f"{where}: {extra['refused']}")
    extra |= {"encounter": resource_id(visit, encounter), "document": _document_kind(item)}
    extra |= {"withdrawn": True} if withdrawn else {}
    subject_id = resource_id(subject, patient)
    return Note(str(note_id), text or "", patient=subject_id, lang=item.get("language"), extra=extra)


def wrong_dates(model: type[BaseModel], item: dict[str, Any], dates: Collection[str], where: str) -> str:
    """Why dates of a resource cannot be used, "" if they can; DataError if anything else in it is wrong.

    dates: the fields of the resource that have them.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(item)
    except ValidationError as error:  # not chained: the message has values
        places = {".".join(map(str, it["loc"])) for it in error.errors(include_input=False, include_context=False)}
    except ValueError:
        places = {""}
    else:
        return ""
    if not places <= set(dates):
        raise DataError(f"{where}: not a {item['resourceType']} of FHIR R4")
    return f"{min(places)} must be a day or a time of FHIR"


def resource_id(reference: str, resource: Mapping[str, Any]) -> str | None:
    """The id of a patient or encounter: that of the resource, else its first identifier, else the reference.

    The id of a resource within the document, such as "#p", is no name: other documents have it, too.
    """
    identifiers = [it.get("value") for it in resource.get("identifier") or [] if isinstance(it, dict)]
    named = next(filter(None, identifiers), None)
    if not reference.startswith("#"):
        named = resource.get("id") or named or reference.removeprefix("Patient/").removeprefix("Encounter/")
    return readable(str(named)) if named else None


def _codes_of(concept: Any) -> list[str]:
    """The codes of a CodeableConcept."""
    codings = concept.get("coding") or [] if isinstance(concept, dict) else []
    return [str(it.get("code")) for it in codings if isinstance(it, dict)]


def _document_kind(item: Mapping[str, Any]) -> str | None:
    """The kind of a document by the LOINC codes of its type and category, or else the words of its type."""
    concepts = [item.get("type"), *(item.get("category") or [])]
    known = (_LOINC_KINDS.get(code) for concept in concepts for code in _codes_of(concept))
    type_ = item.get("type")
    return next(filter(None, known), None) or (type_.get("text") if isinstance(type_, dict) else None)


def _disposition(encounter: Mapping[str, Any]) -> str | None:
    """The discharge status of an Encounter: a code of UB-04, or FHIR's own."""
    hospital = encounter.get("hospitalization")
    codes = _codes_of(hospital.get("dischargeDisposition")) if isinstance(hospital, dict) else []
    exact = (code.zfill(2) for code in codes if code.zfill(2) in DISPOSITIONS)
    return next(exact, None) or next((DISPOSITION_CODES[code] for code in codes if code in DISPOSITION_CODES), None)


def _encounter_fields(
    item: Mapping[str, Any],
    context: Mapping[str, Any],
    patient: Mapping[str, Any],
    encounter: Mapping[str, Any],
) -> dict[str, Any]:
    """sex, birth date, age, stay, disposition, setting, title; the date is the end of the stay, or the document's.

    DataError if one of the dates cannot be used.
    """
    stay, period = encounter.get("period"), context.get("period")
    stay = stay if isinstance(stay, dict) else {}
    period = period if period and isinstance(period, dict) else stay
    day = _date(period.get("end") or period.get("start") or item.get("date"), "date")
    extra: dict[str, Any] = {"sex": patient.get("gender"), "date": day, "title": item.get("description")}
    extra["admitted"] = _date(stay.get("start"), "the start of the encounter")
    extra["discharged"] = _date(stay.get("end"), "the end of the encounter")
    extra["document_date"] = iso_date(item.get("date"))
    extra["disposition"] = _disposition(encounter)
    born = str(patient.get("birthDate") or "")
    if len(born) >= 10:  # a year or month alone gives no exact age
        birthday, came = _date(born, "birthDate of the patient"), extra["admitted"] or day
        if birthday and day and birthday > day:
            raise DataError("birthDate of the patient is after the date of the document")
        extra["born"] = birthday
        extra["age"] = years_between(birthday, came) if birthday and came else None
    kind = (encounter.get("class") or {}).get("code") if isinstance(encounter.get("class"), dict) else None
    if kind in _SETTINGS:
        extra["setting"] = _SETTINGS[kind]
    return {name: value for name, value in extra.items() if value is not None}


def _date(value: Any, what: str) -> str | None:
    """The day of a FHIR date or time; None if there is none; DataError if it is none or only a part of one."""
    if not value:
        return None
    day = iso_date(value)
    if day is None:
        raise DataError(f"{what} must be a whole day, YYYY-MM-DD")
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
