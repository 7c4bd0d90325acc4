"""FHIR bundles: documents are joined with the claim of their encounter or patient; codes, order and indicators."""

from __future__ import annotations

import base64
import json

import pytest

from nosology.audit.audit_input import read_audit_input, read_bills
from nosology.audit.billed_codes import REVERSED
from nosology.core import ConfigError, DataError

CM, PCS = "http://hl7.org/fhir/sid/icd-10-cm", "http://www.cms.gov/Medicare/Coding/ICD10"


def document(name, text, encounter=None, patient="p1", **extra):
    attachment = {"contentType": "text/plain", "data": base64.b64encode(text.encode()).decode()}
    context = {"context": {"encounter": [{"reference": f"Encounter/{encounter}"}]}} if encounter else {}
    return {
        "resourceType": "DocumentReference",
        "id": name,
        "status": "current",
        "subject": {"reference": f"Patient/{patient}"},
        "content": [{"attachment": attachment}],
        **context,
        **extra,
    }


def coded(system, code):
    return {"coding": [{"system": "http://snomed.info/sct", "code": "1"}, {"system": system, "code": code}]}


def diagnosis(sequence, code, kind=None, poa=None):
    entry = {"sequence": sequence, "diagnosisCodeableConcept": coded(CM, code)}
    entry |= {"type": [{"coding": [{"code": kind}]}]} if kind else {}
    return entry | ({"onAdmission": {"coding": [{"code": poa}]}} if poa else {})


def claim(name, diagnoses, encounter=None, patient="p1", kind="institutional", **extra):
    item = {"sequence": 1, "productOrService": {"text": "room"}}
    item |= {"encounter": [{"reference": f"Encounter/{encounter}"}]} if encounter else {}
    return {
        "resourceType": "Claim",
        "id": name,
        "status": "active",
        "use": "claim",
        "type": {"coding": [{"code": kind}]},
        "patient": {"reference": f"Patient/{patient}"},
        "created": "2025-11-09",
        "provider": {"display": "hospital"},
        "priority": {"coding": [{"code": "normal"}]},
        "insurance": [{"sequence": 1, "focal": True, "coverage": {"display": "payer"}}],
        "billablePeriod": {"start": "2025-11-03", "end": "2025-11-08"},
        "item": [item],
        "diagnosis": diagnoses,
        **extra,
    }


PATIENT = {"resourceType": "Patient", "id": "p1", "gender": "female", "birthDate": "1955-03-10"}
STAY = {
    "resourceType": "Encounter",
    "id": "e1",
    "status": "finished",
    "class": {"code": "IMP"},
    "period": {"start": "2025-11-03", "end": "2025-11-08"},
}
CONDITION = {"resourceType": "Condition", "id": "c1", "code": coded(CM, "N18.4")}
CLAIM = claim(
    "k1",
    [
        diagnosis(1, "J18.9", poa="y"),
        diagnosis(3, "R06.00", "admitting"),
        diagnosis(2, "I13.0", "principal", "Y"),
        {"sequence": 4, "diagnosisReference": {"reference": "Condition/c1"}},
    ],
    "e1",
    procedure=[
        {"sequence": 1, "procedureCodeableConcept": coded("http://www.ama-assn.org/go/cpt", "99213")},
        {"sequence": 2, "procedureCodeableConcept": coded(PCS, "02HV33Z")},
    ],
)
RESOURCES = [
    PATIENT,
    STAY,
    CONDITION,
    document("d1", "Admitted with dyspnea.", "e1"),
    document("d2", "Office visit: gout.", patient="p2"),
    document("d3", "DISCHARGE DIAGNOSES: No pneumonia. Hypertension.", "e1"),
    document("d4", "Wrong patient.", "e1", status="entered-in-error"),
    CLAIM,
    claim("k2", [diagnosis(1, "M10.9")], patient="p2", kind="professional"),
    claim("k3", [diagnosis(1, "I10")], "e1", kind="professional"),
    claim("k4", [diagnosis(1, "I10")], "e9", status="cancelled"),
]


def bundle_of(resources):
    entries = [{"fullUrl": f"http://x/{it['resourceType']}/{it['id']}", "resource": it} for it in resources]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}


def write_bundle(folder, resources):
    path = folder / "bundle.json"
    path.write_text(json.dumps(bundle_of(resources), indent=1), encoding="utf-8")
    return path


def write_lines(folder, resources):
    path = folder / "resources.ndjson"
    path.write_text("\n".join(map(json.dumps, resources)) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("write", [write_bundle, write_lines])
def test_documents_are_joined_with_the_claim_of_encounter_or_patient(tmp_path, write):
    path = write(tmp_path, RESOURCES)
    bills = read_bills(path, has_notes=True)
    given = read_audit_input(path, bills)
    stay, visit = given.encounters
    assert (stay.note.id, visit.note.id) == ("e1", "Patient/p2")
    assert [name for name, _ in stay.documents] == ["d1", "d3"] and visit.documents == ()
    assert "Wrong patient" not in stay.note.text and stay.note.text.index("DISCHARGE") == stay.documents[1][1]
    codes = [(it.code.code, it.poa) for it in stay.bill.codes]
    assert codes == [("I13.0", "Y"), ("J18.9", "Y"), ("N18.4", ""), ("02HV33Z", "")]
    assert [it.code.code for it in visit.bill.codes] == ["M10.9"]
    stated = {name: stay.note.extra[name] for name in ("sex", "age", "setting", "admitted", "discharged")}
    assert stated == {
        "sex": "female",
        "age": 70,
        "setting": "inpatient",
        "admitted": "2025-11-03",
        "discharged": "2025-11-08",
    }
    assert given.counts["further_bills_of_an_encounter"] == 1  # k3, of the physician
    assert visit.bill.stated == {"date": "2025-11-08"}


def test_claims_may_be_in_a_file_of_their_own(tmp_path):
    notes = write_bundle(tmp_path, RESOURCES[:7])
    bills = read_bills(write_lines(tmp_path, [PATIENT, STAY, CONDITION, *RESOURCES[7:]]))
    assert [it.note.id for it in read_audit_input(notes, bills).encounters] == ["e1", "Patient/p2"]
    with pytest.raises(DataError, match="there is no Claim in it; give --billed"):
        read_bills(notes, has_notes=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (claim("k", [diagnosis(1, "SECRETNAME")], "e1"), "Claim 1: diagnosis 1 has no valid code of icd10cm"),
        (claim("k", [{"sequence": 1, "diagnosisCodeableConcept": {"text": "SECRETNAME"}}]), "has no ICD-10-CM code"),
        (claim("k", [diagnosis(1, "I10", poa="SECRETNAME")]), "onAdmission must be one of Y, N, U, W, 1"),
        (claim("k", [diagnosis(1, "I10")], created="SECRETNAME"), "Claim 1: not a Claim of FHIR R4"),
        ({"text": "SECRETNAME"}, "resource 2 is not a FHIR resource in JSON"),
    ],
)
def test_wrong_claims_are_refused_without_their_content(tmp_path, changed, message):
    path = write_lines(tmp_path, [PATIENT, changed])
    with pytest.raises(DataError) as caught:
        read_bills(path)
    assert message in str(caught.value) and "SECRETNAME" not in str(caught.value)


def test_a_notes_file_needs_a_file_of_bills(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text(json.dumps({"id": "a", "text": "Gout."}), encoding="utf-8")
    with pytest.raises(ConfigError, match="--billed is missing"):
        read_bills(path, has_notes=True)


def test_a_document_without_text_is_counted_and_the_others_are_read(tmp_path):
    scan = document("d9", "", "e1")
    scan["content"] = [{"attachment": {"contentType": "application/pdf", "data": "JVBERi0="}}]
    path = write_bundle(tmp_path, [*RESOURCES, scan])
    given = read_audit_input(path, read_bills(path, has_notes=True))
    assert given.counts["documents_without_text"] == 1
    assert [name for name, _ in given.encounters[0].documents] == ["d1", "d3"]


@pytest.mark.parametrize("write", [write_bundle, write_lines])
def test_a_file_that_is_cut_off_is_called_damaged(tmp_path, write):
    path = write(tmp_path, RESOURCES)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"the file may be cut off|is not a FHIR resource in JSON") as caught:
        read_bills(path, has_notes=True)
    assert "pneumonia" not in str(caught.value)


def test_a_byte_order_mark_does_not_matter(tmp_path):
    for write in (write_bundle, write_lines):
        path = write(tmp_path, RESOURCES)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert list(read_bills(path, has_notes=True).by_id) == ["e1", "Patient/p2"]


def test_a_bill_that_ends_before_it_starts_is_refused_with_its_encounter(tmp_path):
    wrong = claim("k", [diagnosis(1, "I10")], "e1", billablePeriod={"start": "2025-11-08", "end": "2025-11-03"})
    bills = read_bills(write_lines(tmp_path, [PATIENT, STAY, wrong]))
    assert bills.by_id["e1"].refused == REVERSED
