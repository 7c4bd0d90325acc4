"""Exports: a coded encounter as JSON, CSV or FHIR R4 Bundle, and reviewed notes as a training corpus."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi.responses import Response
from sqlalchemy import Engine, RowMapping, select

from nosology.claims.checks import PROCEDURES, AssignedCode
from nosology.claims.encounter import coding_day
from nosology.claims.encounter_values import DISPOSITIONS, iso_date
from nosology.claims.fhir_documents import DISPOSITION_CODES
from nosology.codes import describe, release_on
from nosology.core import Code, CodeError, Evidence, Note, __version__
from nosology.core.files import escape_formula
from nosology.text.borders import join_documents
from nosology.workbench.audit_log import log_command_reads
from nosology.workbench.blind_access import open_originals
from nosology.workbench.cases import Case, load_case
from nosology.workbench.conversation import Conversation
from nosology.workbench.database import read_transaction
from nosology.workbench.documents import next_start
from nosology.workbench.encounter_data import parse_disposition
from nosology.workbench.review import POA, NotFound
from nosology.workbench.store_tables import notes

SYSTEM_URLS = {
    "icd10cm": "http://hl7.org/fhir/sid/icd-10-cm",
    "icd10pcs": "http://www.cms.gov/Medicare/Coding/ICD10",
    "icd9cm": "http://hl7.org/fhir/sid/icd-9-cm",
    "icd9proc": "http://hl7.org/fhir/sid/icd-9-cm",
}
CSV_COLUMNS = (
    *("note", "patient", "sequence", "system", "code", "description"),
    *("principal", "present_on_admission", "origin", "status"),
)
_POA_URL = "https://www.cms.gov/Medicare/Medicare-Fee-for-Service-Payment/HospitalAcqCond/Coding"
_UB04_URL = "https://www.nubc.org/CodeSystem/PatDischargeStatus"
_TERMINOLOGY = "http://terminology.hl7.org/CodeSystem/"
_LOCAL = "urn:nosology:"
EXPORTED_FIELDS = (  # of the encounter; all other columns are only for the coder
    *("date", "sex", "born", "age", "admitted", "discharged"),
    *("disposition", "setting", "kind", "payer", "died", "title"),
)
FORMATS = {  # (media type, suffix of the file name)
    "json": ("application/json", "json"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "fhir": ("application/fhir+json", "fhir.json"),
}


def export_case(
    case: Case, history: Sequence[RowMapping], form: str, conversation: Conversation | None = None
) -> Response:
    """The encounter as a file to download, in a format of FORMATS; NotFound for any other format."""
    if form not in FORMATS:
        raise NotFound(f"format must be one of {', '.join(FORMATS)}")
    if form == "csv":
        body = to_csv(case)
    else:
        value = to_fhir(case, history) if form == "fhir" else to_json(case, history, conversation)
        body = json.dumps(value, ensure_ascii=False, indent=2)
    media_type, suffix = FORMATS[form]
    disposition = {"content-disposition": f'attachment; filename="note-{case.note["id"]}.{suffix}"'}
    return Response(body, media_type=media_type, headers=disposition)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _user_name(row: RowMapping) -> str:
    return row["user"] or "triage"


def to_json(case: Case, history: Sequence[RowMapping], conversation: Conversation | None = None) -> dict[str, Any]:
    """The encounter with codes in order, all decisions, queries and comments; without the text of the note."""
    note, review = case.note, case.review
    return {
        "note": note["ref"],
        "patient": note["patient"],
        "site": note["site"],
        "encounter": {name: note["encounter"][name] for name in EXPORTED_FIELDS if name in note["encounter"]},
        "documents": [
            {"id": it.ref, "version": it.version, "kind": it.kind, "title": it.title, "date": it.date}
            | {"start": it.start, "end": it.end, "state": it.state}
            for it in case.documents
        ],
        "status": review.status,
        "version": review.version,
        "coder": _coder(case),
        "codes": _codes(case),
        "rejected": [
            {"system": code.system, "code": code.code, "reason": reason} for code, reason in review.rejected.items()
        ],
        "suggestions": [
            {name: getattr(item, name) for name in ("system", "code", "description", "probability", "accepted")}
            for item in case.suggestions
        ],
        "history": [
            {
                "version": row["version"],
                "at": _timestamp(row["at"]),
                "user": _user_name(row),
                "action": row["action"],
                "details": row["details"],
            }
            for row in history
        ],
        **(_conversation(conversation) if conversation else {}),
    }


def _conversation(conversation: Conversation) -> dict[str, Any]:
    return {
        "queries": [
            {
                "asked": _timestamp(query.asked),
                "asked_by": query.author,
                "asked_of": query.addressee,
                "question": query.question,
                "answers_offered": list(query.choices),
                "code": query.code,
                "passage": None if query.start is None else {"start": query.start, "end": query.end},
                "state": query.state,
                "closed": None if query.closed is None else _timestamp(query.closed),
                "closed_by": query.closed_by,
                "physician": query.physician,
                "answer": query.answer,
                "answer_text": query.text,
            }
            for query in conversation.queries
        ],
        "comments": [
            {"at": _timestamp(comment.at), "user": comment.author, "code": comment.code, "text": comment.text}
            for comment in conversation.comments
        ],
    }


def _coder(case: Case) -> dict[str, Any] | None:
    coder = case.coder
    if coder is None:
        return None
    values = {name: coder[f"coder_{name}"] for name in ("name", "kind", "release", "digest")}
    return values | {"tables": _tables(case), "made": _timestamp(coder["made"])}


def _tables(case: Case) -> Mapping[str, str]:
    """The release of each code system that the coder used."""
    return case.coder["coder_about"].get("tables", {}) if case.coder else {}


def _codes(case: Case) -> list[dict[str, Any]]:
    return [
        {
            "sequence": sequence,
            "system": item.code.system,
            "code": item.code.code,
            "description": describe(item.code),
            "principal": item.code == case.review.principal,
            "present_on_admission": item.poa or None,
            "origin": item.origin,
            "evidence": [span._asdict() | {"document": _document_at(case, span.start)} for span in item.evidence],
        }
        for sequence, item in enumerate(case.review.chosen, 1)
    ]


def _document_at(case: Case, position: int) -> str | None:
    """The id of the document with a character of the encounter's text."""
    return next((it.ref for it in case.documents if it.start <= position < it.end), None)


def to_csv(case: Case) -> str:
    """One row per code."""
    out = io.StringIO()
    csv.writer(out).writerows([CSV_COLUMNS, *csv_rows(case)])
    return out.getvalue()


def csv_rows(case: Case) -> list[list[Any]]:
    """The values of CSV_COLUMNS for each code."""
    shared = {"note": case.note["ref"], "patient": case.note["patient"], "status": case.review.status}
    rows = ([({**row, **shared})[column] for column in CSV_COLUMNS] for row in _codes(case))
    return [["" if value is None else escape_formula(value) for value in row] for row in rows]


def to_fhir(case: Case, history: Sequence[RowMapping]) -> dict[str, Any]:
    """A collection Bundle of FHIR R4 (R4B): the Encounter, one Condition or Procedure per code, Claim and Provenance.

    It is validated by fhir.resources. The patient is named by identifier only.
    """
    from fhir.resources.R4B.bundle import Bundle

    now = _timestamp(datetime.now(UTC).timestamp())
    patient = case.note["patient"]
    named = {"identifier": {"system": _LOCAL + "patient", "value": patient}} if patient else {"display": "unknown"}
    prefix, chosen = f"{_LOCAL}{case.note['id']}:", case.review.chosen
    person = _patient(case)
    subject: dict[str, Any] = named | ({"reference": f"{prefix}patient"} if person and chosen else {})
    urls = {item.code: f"{prefix}{sequence}" for sequence, item in enumerate(chosen, 1)}
    encounter = f"{prefix}encounter"
    resources = {urls[item.code]: _code_resource(item, subject, encounter, case, now) for item in chosen}
    if chosen:
        known = {f"{prefix}patient": person} if person else {}
        resources = known | {encounter: _encounter(case, urls, subject)} | resources
        resources[f"{prefix}claim"] = _claim(case, urls, subject, now)
        resources[f"{prefix}provenance"] = _provenance(list(resources), case, history, now)
    bundle: dict[str, Any] = {
        "resourceType": "Bundle",
        "type": "collection",
        "timestamp": now,
        "identifier": {"system": _LOCAL + "note", "value": case.note["ref"]},
    }
    if resources:
        bundle["entry"] = [{"fullUrl": url, "resource": resource} for url, resource in resources.items()]
    return Bundle.model_validate(bundle).model_dump(mode="json", exclude_none=True)


def _term(system: str, code: str, **more: str) -> dict[str, Any]:
    """A CodeableConcept; a relative system is one of terminology.hl7.org."""
    return {"coding": [{"system": system if ":" in system else _TERMINOLOGY + system, "code": code, **more}]}


def _release(code: Code, case: Case) -> str | None:
    """The release of a code system on the day of the encounter, or the one that the coder used."""
    try:
        return release_on(coding_day(case.note["encounter"]), code.system)
    except CodeError:
        return _tables(case).get(code.system)


def _patient(case: Case) -> dict[str, Any]:
    """The Patient with sex and birth date; {} if neither is known."""
    about, patient = case.note["encounter"], case.note["patient"]
    known = {"gender": {"F": "female", "M": "male"}.get(about.get("sex", "")), "birthDate": iso_date(about.get("born"))}
    fields = {name: value for name, value in known.items() if value}
    identifier = {"identifier": [{"system": _LOCAL + "patient", "value": patient}]} if patient else {}
    return {"resourceType": "Patient"} | identifier | fields if fields else {}


def _disposition(status: str) -> dict[str, Any]:
    """The dischargeDisposition: the code of UB-04, and the code of FHIR that means the same if there is one."""
    coding = [{"system": _UB04_URL, "code": status, "display": DISPOSITIONS[status]}]
    same = next((code for code, other in DISPOSITION_CODES.items() if other == status), None)
    if same:
        coding.append({"system": _TERMINOLOGY + "discharge-disposition", "code": same})
    return {"dischargeDisposition": {"coding": coding}}


def _encounter(case: Case, urls: Mapping[Code, str], subject: dict[str, Any]) -> dict[str, Any]:
    """The Encounter, with its diagnoses in billing order."""
    about = case.note["encounter"]
    classes = {"inpatient": "IMP", "outpatient": "AMB", "emergency": "EMER"}
    found = classes.get(about.get("setting")) or classes.get(about.get("kind"))
    code, system = (found, "v3-ActCode") if found else ("UNK", "v3-NullFlavor")
    diagnoses = [item.code for item in case.review.chosen if item.code.system not in PROCEDURES]
    days = {"start": iso_date(about.get("admitted")), "end": iso_date(about.get("discharged") or about.get("date"))}
    left = parse_disposition(about.get("disposition"))
    period = {name: day for name, day in days.items() if day}
    return (
        {
            "resourceType": "Encounter",
            "identifier": [{"system": _LOCAL + "note", "value": case.note["ref"]}],
            "status": "finished",
            "class": {"system": _TERMINOLOGY + system, "code": code},
            "subject": subject,
        }
        | ({"period": period} if period else {})
        | ({"hospitalization": _disposition(left)} if left else {})
        | (
            {
                "diagnosis": [
                    {"condition": {"reference": urls[code]}, "rank": rank} for rank, code in enumerate(diagnoses, 1)
                ]
            }
            if diagnoses
            else {}
        )
    )


def _code_resource(item: AssignedCode, subject: dict[str, Any], encounter: str, case: Case, now: str) -> dict[str, Any]:
    """A Condition, or a Procedure."""
    code, release = item.code, _release(item.code, case)
    version = {"version": release} if release else {}
    concept = _term(SYSTEM_URLS[code.system], code.code, display=describe(code) or code.code, **version)
    if code.system in PROCEDURES:
        day = case.note["encounter"].get("date")
        procedure = {"resourceType": "Procedure", "status": "completed", "code": concept, "subject": subject}
        procedure["encounter"] = {"reference": encounter}
        return procedure | ({"performedDateTime": day} if day else {})
    return {
        "resourceType": "Condition",
        "clinicalStatus": _term("condition-clinical", "active"),
        "verificationStatus": _term("condition-ver-status", "confirmed"),
        "category": [_term("condition-category", "encounter-diagnosis")],
        "code": concept,
        "subject": subject,
        "encounter": {"reference": encounter},
        "recordedDate": now,
    }


def _claim(case: Case, urls: Mapping[Code, str], subject: dict[str, Any], now: str) -> dict[str, Any]:
    diagnoses: list[dict[str, Any]] = []
    procedures: list[dict[str, Any]] = []
    for item in case.review.chosen:
        reference = {"reference": urls[item.code]}
        if item.code.system in PROCEDURES:
            procedures.append({"sequence": len(procedures) + 1, "procedureReference": reference})
            continue
        diagnosis: dict[str, Any] = {"sequence": len(diagnoses) + 1, "diagnosisReference": reference}
        if item.code == case.review.principal:  # the value set has no word for a secondary diagnosis
            diagnosis["type"] = [_term("ex-diagnosistype", "principal")]
        if item.poa:
            diagnosis["onAdmission"] = _term(_POA_URL, item.poa, display=POA[item.poa])
        diagnoses.append(diagnosis)
    payer = case.note["encounter"].get("payer")
    claim = {
        "resourceType": "Claim",
        "status": "active" if case.review.status == "done" else "draft",
        "type": _term("claim-type", "institutional"),
        "use": "claim",
        "patient": subject,
        "created": now,
        "provider": {"display": case.note["site"] or "unknown"},
        "priority": _term("processpriority", "normal"),
        "insurance": [{"sequence": 1, "focal": True, "coverage": {"display": payer or "unknown"}}],
    }
    return claim | ({"diagnosis": diagnoses} if diagnoses else {}) | ({"procedure": procedures} if procedures else {})


def _provenance(targets: Sequence[str], case: Case, history: Sequence[RowMapping], now: str) -> dict[str, Any]:
    agents = dict.fromkeys(map(_user_name, history), "author")
    if case.coder is not None:
        about = f"{case.coder['coder_name']} ({case.coder['coder_kind']}, {case.coder['coder_digest'][:12]})"
        agents[f"nosology {__version__}, {about}"] = "assembler"
    return {
        "resourceType": "Provenance",
        "target": [{"reference": url} for url in targets],
        "recorded": _timestamp(history[-1]["at"]) if history else now,
        "agent": [
            {"type": _term("provenance-participant-type", role), "who": {"display": name}}
            for name, role in agents.items()
        ]
        or [{"who": {"display": f"nosology {__version__}"}}],
    }


def _current_text(case: Case) -> tuple[str, Callable[[int], int | None]]:
    """The text of the current documents, and how far each of its characters was moved; None: it is gone."""
    moves, texts, length = [], [], 0
    for it in case.current:
        moves.append((it.start, it.end, it.start - length))
        texts.append(case.note["text"][it.start : it.end])
        length = next_start(join_documents(texts))
    return join_documents(texts), lambda at: next((by for start, end, by in moves if start <= at < end), None)


def reviewed_notes(engine: Engine) -> Iterator[Note]:
    """Every finished note with its final codes and the evidence that people marked; each read is logged.

    Notes that only the triage rule accepted are left out: a coder must not be trained on its own output. So are notes
    whose double coding is not closed, and the copies.
    """
    final = (notes.c.status == "done", notes.c.double_of.is_(None), notes.c.id.not_in(open_originals()))
    with read_transaction(engine) as connection:
        ids = list(connection.scalars(select(notes.c.id).where(*final).order_by(notes.c.id)))
    log_command_reads(engine, "corpus", ids)
    for note_id in ids:
        with read_transaction(engine) as connection:
            case = load_case(connection, note_id)
        row, review = case.note, case.review
        text, moved = _current_text(case)
        yield Note(
            row["ref"],
            text,
            patient=row["patient"],
            site=row["site"],
            lang=row["lang"],
            codes=review.codes,
            evidence=tuple(
                Evidence(item.code, span.start - by, span.end - by)
                for item in review.chosen
                for span in item.evidence
                if (by := moved(span.start)) is not None
            ),
            extra={**row["encounter"], "review_version": review.version},
        )
