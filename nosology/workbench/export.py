"""A coded encounter for other systems: JSON, CSV, and a FHIR R4 Bundle."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from nosology.claims.assigned_codes import PROCEDURES, AssignedCode
from nosology.codes import describe
from nosology.core import Code, __version__
from nosology.workbench.intake import KNOWN
from nosology.workbench.review import POA
from nosology.workbench.work import Case

FORMATS = {"json": "application/json", "csv": "text/csv; charset=utf-8", "fhir": "application/fhir+json"}
SYSTEM_URLS = {
    "icd10cm": "http://hl7.org/fhir/sid/icd-10-cm",
    "icd10pcs": "http://www.cms.gov/Medicare/Coding/ICD10",
    "icd9cm": "http://hl7.org/fhir/sid/icd-9-cm",
    "icd9proc": "http://hl7.org/fhir/sid/icd-9-cm",
}
COLUMNS = (
    *("note", "patient", "sequence", "system", "code", "description"),
    *("principal", "present_on_admission", "origin", "status"),
)
_POA_URL = "https://www.cms.gov/Medicare/Medicare-Fee-for-Service-Payment/HospitalAcqCond/Coding"
_TERMS = "http://terminology.hl7.org/CodeSystem/"
_LOCAL = "urn:nosology:"


def stamp(seconds: float) -> str:
    """A time as FHIR writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def to_json(case: Case, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The encounter as plain values: codes in order, and everything that happened; no text of the note."""
    note, review = case.note, case.review
    return {
        "note": note["ref"],
        "patient": note["patient"],
        "site": note["site"],
        "encounter": {name: note["encounter"][name] for name in KNOWN if name in note["encounter"]},
        "status": review.status,
        "version": review.version,
        "coder": _coder(case),
        "codes": [_code(item, place, review.principal) for place, item in enumerate(review.chosen, 1)],
        "rejected": [
            {"system": code.system, "code": code.code, "reason": reason} for code, reason in review.rejected.items()
        ],
        "suggestions": [
            {name: item[name] for name in ("system", "code", "description", "probability", "accepted")}
            for item in case.suggestions
        ],
        "history": [
            {
                "version": row["version"],
                "at": stamp(row["at"]),
                "user": row["user"] or "triage",
                "action": row["action"],
                "details": row["details"],
            }
            for row in history
        ],
    }


def _coder(case: Case) -> dict[str, Any] | None:
    coder = case.coder
    if coder is None:
        return None
    names = ("name", "kind", "release", "digest")
    found = {name: coder[f"coder_{name}"] for name in names}
    return found | {"tables": coder["coder_about"].get("tables", {}), "made": stamp(coder["made"])}


def _code(item: AssignedCode, place: int, principal: Code | None) -> dict[str, Any]:
    return {
        "sequence": place,
        "system": item.code.system,
        "code": item.code.code,
        "description": describe(item.code),
        "principal": item.code == principal,
        "present_on_admission": item.poa or None,
        "origin": item.origin,
        "evidence": [{"start": span.start, "end": span.end} for span in item.evidence],
    }


def to_csv(case: Case) -> str:
    """One row a code."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for place, item in enumerate(case.review.chosen, 1):
        row = _code(item, place, case.review.principal)
        values = (case.note["ref"], case.note["patient"] or "", place, row["system"], row["code"], row["description"])
        more = (row["principal"], row["present_on_admission"] or "", row["origin"], case.review.status)
        writer.writerow([_harmless(value) for value in (*values, *more)])
    return out.getvalue()


def _harmless(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def to_fhir(case: Case, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A collection Bundle of FHIR R4 (R4B): Condition or Procedure a code, the Claim, and the Provenance of both.

    It has passed fhir.resources' R4B models. The patient is named by identifier alone.
    """
    from fhir.resources.R4B.bundle import Bundle

    now = stamp(datetime.now(UTC).timestamp())
    subject = {"identifier": {"system": _LOCAL + "patient", "value": case.note["patient"] or case.note["ref"]}}
    chosen = list(case.review.chosen)
    names = {item.code: f"{_LOCAL}{case.note['id']}:{place}" for place, item in enumerate(chosen, 1)}
    resources = [(names[item.code], _resource(item, subject, case, now)) for item in chosen]
    if chosen:
        resources.append((f"{_LOCAL}{case.note['id']}:claim", _claim(chosen, names, subject, case, now)))
        targets = [{"reference": name} for name, _ in resources]
        resources.append((f"{_LOCAL}{case.note['id']}:provenance", _provenance(targets, case, history, now)))
    bundle = {
        "resourceType": "Bundle",
        "type": "collection",
        "timestamp": now,
        "identifier": {"system": _LOCAL + "note", "value": case.note["ref"]},
        "entry": [{"fullUrl": name, "resource": resource} for name, resource in resources] or None,
    }
    checked = Bundle.model_validate({name: value for name, value in bundle.items() if value is not None})
    return checked.model_dump(mode="json", exclude_none=True)


def _coding(code: Code, release: str | None) -> dict[str, Any]:
    coding = {"system": SYSTEM_URLS[code.system], "code": code.code, "display": describe(code) or code.code}
    if release:
        coding["version"] = release
    return {"coding": [coding]}


def _resource(item: AssignedCode, subject: dict, case: Case, now: str) -> dict[str, Any]:
    release = case.coder["coder_about"].get("tables", {}).get(item.code.system) if case.coder else None
    day = case.note["encounter"].get("date")
    if item.code.system in PROCEDURES:
        found = {
            "resourceType": "Procedure",
            "status": "completed",
            "code": _coding(item.code, release),
            "subject": subject,
        }
        return found | ({"performedDateTime": day} if day else {})
    found = {
        "resourceType": "Condition",
        "clinicalStatus": {"coding": [{"system": _TERMS + "condition-clinical", "code": "active"}]},
        "verificationStatus": {"coding": [{"system": _TERMS + "condition-ver-status", "code": "confirmed"}]},
        "category": [{"coding": [{"system": _TERMS + "condition-category", "code": "encounter-diagnosis"}]}],
        "code": _coding(item.code, release),
        "subject": subject,
        "recordedDate": now,
    }
    return found


def _claim(
    chosen: Sequence[AssignedCode], names: Mapping[Code, str], subject: dict, case: Case, now: str
) -> dict[str, Any]:
    diagnoses, procedures = [], []
    for item in chosen:
        reference = {"reference": names[item.code]}
        if item.code.system in PROCEDURES:
            procedures.append({"sequence": len(procedures) + 1, "procedureReference": reference})
            continue
        diagnosis: dict[str, Any] = {"sequence": len(diagnoses) + 1, "diagnosisReference": reference}
        role = "principal" if item.code == case.review.principal else "secondary"
        diagnosis["type"] = [{"coding": [{"system": _TERMS + "ex-diagnosistype", "code": role}]}]
        if item.poa:
            diagnosis["onAdmission"] = {"coding": [{"system": _POA_URL, "code": item.poa, "display": POA[item.poa]}]}
        diagnoses.append(diagnosis)
    claim = {
        "resourceType": "Claim",
        "status": "active" if case.review.status == "done" else "draft",
        "type": {"coding": [{"system": _TERMS + "claim-type", "code": "institutional"}]},
        "use": "claim",
        "patient": subject,
        "created": now,
        "provider": {"display": case.note["site"] or "unknown"},
        "priority": {"coding": [{"system": _TERMS + "processpriority", "code": "normal"}]},
        "insurance": [{"sequence": 1, "focal": True, "coverage": {"display": "unknown"}}],
    }
    return claim | ({"diagnosis": diagnoses} if diagnoses else {}) | ({"procedure": procedures} if procedures else {})


def _provenance(targets: list[dict], case: Case, history: Sequence[Mapping[str, Any]], now: str) -> dict[str, Any]:
    people = list(dict.fromkeys(row["user"] or "triage" for row in history))
    agents = [
        {
            "type": {"coding": [{"system": _TERMS + "provenance-participant-type", "code": "author"}]},
            "who": {"display": name},
        }
        for name in people
    ]
    if case.coder is not None:
        about = f"{case.coder['coder_name']} ({case.coder['coder_kind']}, {case.coder['coder_digest'][:12]})"
        agents.append(
            {
                "type": {"coding": [{"system": _TERMS + "provenance-participant-type", "code": "assembler"}]},
                "who": {"display": f"nosology {__version__}, {about}"},
            }
        )
    return {
        "resourceType": "Provenance",
        "target": targets,
        "recorded": stamp(history[-1]["at"]) if history else now,
        "agent": agents or [{"who": {"display": f"nosology {__version__}"}}],
    }
