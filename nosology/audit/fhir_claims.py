"""Bills and documents of FHIR R4: Claim and DocumentReference in a Bundle, or one resource per line (NDJSON)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nosology.audit.billed_codes import POA, REVERSED, Bill, Bills, in_order
from nosology.audit.finding import BilledCode
from nosology.claims.encounter_values import iso_date
from nosology.claims.fhir_documents import (
    bundle_resources,
    read_fhir,
    referenced,
    resource_id,
    resource_type,
    wrong_dates,
)
from nosology.codes.spelling import parse
from nosology.core import Code, CodeError, ConfigError, DataError, Note
from nosology.corpora.text_files import decode, decode_marked, open_bytes

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
_HEAD = 10_000  # characters at the start of a file in which a FHIR resource has its type
_SYSTEMS = {
    "http://hl7.org/fhir/sid/icd-10-cm": "icd10cm",
    "urn:oid:2.16.840.1.113883.6.90": "icd10cm",
    "http://www.cms.gov/Medicare/Coding/ICD10": "icd10pcs",
    "http://hl7.org/fhir/sid/icd-10-pcs": "icd10pcs",
    "urn:oid:2.16.840.1.113883.6.4": "icd10pcs",
}
_DATES = ("billablePeriod.start", "billablePeriod.end")  # of a Claim


def read_fhir_file(path: Path) -> dict[str, Any] | None:
    """The resources of a FHIR file as one Bundle; None if the file is none. DataError names the line."""
    if not path.name.lower().endswith(_SUFFIXES) or not path.is_file():
        return None
    with open_bytes(path) as file:
        first = file.readline()
        if isinstance(value := _json(first), dict) and "resourceType" not in value:
            return None
        content = decode_marked(first + file.read(), path)
    if isinstance(value, dict):
        resources = [_json(line) for line in filter(None, map(str.strip, content.split("\n")))]
    else:  # not an object on one line: perhaps one on several
        resources = [_whole(content, path)]
        if resource_type(resources[0]) is None:
            return None
    entries: list[Any] = []
    for number, value in enumerate(resources, 1):
        if resource_type(value) is None:
            raise DataError(f"{path}: resource {number} is not a FHIR resource in JSON")
        entries += (value.get("entry") or []) if value["resourceType"] == "Bundle" else [{"resource": value}]
    return {"resourceType": "Bundle", "entry": entries}


def _json(raw: bytes | str) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return json.loads(raw if isinstance(raw, str) else decode(raw)[0].removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None


def _whole(content: str, path: Path) -> Any:
    """The value of a JSON file; None if it is none and has no FHIR resource. DataError for a damaged FHIR file."""
    try:
        return json.loads(content)
    except RecursionError:
        return None
    except json.JSONDecodeError as error:  # not chained: it has the content
        if '"resourceType"' not in content[:_HEAD]:
            return None
        where = f"line {error.lineno}, column {error.colno}"
    raise DataError(f"{path} is damaged: its JSON is wrong or incomplete at {where}; the file may be cut off")


def read_fhir_notes(bundle: Mapping[str, Any], name: str, billed: Collection[str]) -> Iterator[Note]:
    """One note per document that is not withdrawn; its column encounter is the id of its bill, if there is one.

    billed: ids of bills. A document whose encounter has no bill belongs to the claim of its patient that names no
    encounter. The text of a document that has none, such as a PDF, is empty.
    """
    _check_packages()
    for note in read_fhir(bundle, name, lenient=True):
        if note.extra.get("withdrawn"):
            continue
        encounter, patient = str(note.extra.get("encounter") or ""), f"Patient/{note.patient}"
        if encounter not in billed and patient in billed:
            encounter = patient
        yield replace(note, extra={**note.extra, "encounter": encounter})


def read_fhir_claims(bundle: Mapping[str, Any], name: str) -> Bills:
    """The bill of each encounter; DataError names the Claim and shows nothing of it.

    The id is that of the Encounter of an item; without one, Patient/ and the id of the patient. Claims that are not
    active, or are preauthorizations, are left out. Of several claims of an encounter an institutional one counts, else
    the first.
    """
    _check_packages()
    from fhir.resources.R4B.claim import Claim

    resources = bundle_resources(bundle, name)
    bills: dict[str, Bill] = {}
    institutional: set[str] = set()
    claims = [item for item in resources.values() if resource_type(item) == "Claim"]
    if not claims:
        raise DataError(f"{name}: there is no Claim in it; give --billed")
    count = 0
    for row, item in enumerate(claims, 1):
        where = f"{name}: Claim {row}"
        wrong = wrong_dates(Claim, item, _DATES, where)
        if item["status"] != "active" or item["use"] != "claim":
            continue
        count += 1
        key = _encounter_id(item, resources, where)
        is_institutional = any(it.get("code") == "institutional" for it in item["type"].get("coding") or [])
        if key not in bills or (is_institutional and key not in institutional):
            bill = _bill(item, resources, where)
            bills[key] = replace(bill, refused=wrong) if wrong else bill
        institutional |= {key} if is_institutional else set()
    return Bills(bills, {"further_bills_of_an_encounter": count - len(bills)})


def _check_packages() -> None:
    try:
        import fhir.resources  # noqa: F401
    except ImportError as error:
        raise ConfigError("FHIR files need their own packages: pip install 'nosology[audit]'") from error


def _encounter_id(item: Mapping[str, Any], resources: Mapping[str, Any], where: str) -> str:
    found = dict.fromkeys(
        resource_id(*referenced(it, "Encounter", resources))
        for line in item.get("item") or []
        for it in line.get("encounter") or []
    )
    ids = [it for it in found if it]
    if len(ids) > 1:
        raise DataError(f"{where}: its items are of {len(ids)} encounters; one claim must be of one encounter")
    patient = resource_id(*referenced(item.get("patient"), "Patient", resources))
    if not ids and not patient:
        raise DataError(f"{where}: neither its items nor its patient have a reference")
    return ids[0] if ids else f"Patient/{patient}"


def _bill(item: Mapping[str, Any], resources: Mapping[str, Any], where: str) -> Bill:
    codes: list[tuple[float, BilledCode]] = []
    for place, entry in enumerate(item.get("diagnosis") or [], 1):
        kinds = {it.get("code") for kind in entry.get("type") or [] for it in kind.get("coding") or []}
        if kinds == {"admitting"}:
            continue
        code = _code(_concept(entry, "diagnosis", "Condition", resources), "icd10cm", f"{where}: diagnosis {place}")
        if code is None:
            raise DataError(f"{where}: diagnosis {place} has no ICD-10-CM code")
        order = 0.0 if "principal" in kinds else float(entry["sequence"])
        codes.append((order, BilledCode(code, _poa(entry, f"{where}: diagnosis {place}"))))
    last = max((order for order, _ in codes), default=0.0)
    for place, entry in enumerate(item.get("procedure") or [], 1):
        concept = _concept(entry, "procedure", "Procedure", resources)
        code = _code(concept, "icd10pcs", f"{where}: procedure {place}")
        if code is not None:  # CPT and HCPCS are not audited
            codes.append((last + entry["sequence"], BilledCode(code)))
    period = item.get("billablePeriod") or {}
    first, last = (iso_date(period.get(name)) for name in ("start", "end"))
    refused = REVERSED if first and last and last < first else ""
    return Bill(in_order(codes), stated={"date": last or first} if last or first else {}, refused=refused)


def _concept(entry: Mapping[str, Any], name: str, kind: str, resources: Mapping[str, Any]) -> Mapping[str, Any]:
    """The CodeableConcept of a diagnosis or procedure: its own, or that of the resource that it names."""
    own = entry.get(f"{name}CodeableConcept")
    if own is None:
        own = referenced(entry.get(f"{name}Reference"), kind, resources)[1].get("code")
    return own if isinstance(own, dict) else {}


def _code(concept: Mapping[str, Any], system: str, where: str) -> Code | None:
    """The code of a system in a CodeableConcept; None if it has none."""
    codings = [it for it in concept.get("coding") or [] if isinstance(it, dict)]
    value = next((it.get("code") for it in codings if _SYSTEMS.get(str(it.get("system"))) == system), None)
    if not value:
        return None
    try:
        return parse(str(value), system).code
    except CodeError:  # its message shows the value
        raise DataError(f"{where} has no valid code of {system}") from None


def _poa(entry: Mapping[str, Any], where: str) -> str:
    codings = (entry.get("onAdmission") or {}).get("coding") or []
    poa = str(next((it.get("code") for it in codings if it.get("code")), "")).upper()
    if poa not in POA:
        raise DataError(f"{where}: onAdmission must be one of {', '.join(POA[1:])}")
    return poa
