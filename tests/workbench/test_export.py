"""Notes in and encounters out: files, FHIR, CSV, JSON."""

import base64
import csv
import io
import json

import pytest
from fhir.resources.R4B.bundle import Bundle

from nosology.core import DataError, Note
from nosology.workbench.cases import add_notes, decision_history, load_case, record_decision
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.export import to_csv, to_fhir, to_json
from nosology.workbench.uploads import read_upload


@pytest.fixture
def coded(engine, people, note_id):
    """A finished note with a diagnosis present on admission, another, and a procedure."""
    acts = [
        ("add", {"code": "icd10cm:I50.9"}),
        ("add", {"code": "icd10cm:E11.9", "start": 3, "end": 9}),
        ("add", {"code": "icd10pcs:0DTJ4ZZ"}),
        ("poa", {"code": "icd10cm:I50.9", "poa": "Y"}),
        ("finish", {}),
    ]
    for version, (action, details) in enumerate(acts):
        record_decision(engine, note_id, action, details, user=people["ann"], version=version)
    with read_transaction(engine) as connection:
        return load_case(connection, note_id), decision_history(connection, note_id)


def test_fhir_is_a_bundle_that_the_models_accept(coded):
    value = to_fhir(*coded)
    Bundle.model_validate(value)
    kinds = [entry["resource"]["resourceType"] for entry in value["entry"]]
    assert kinds == ["Condition", "Condition", "Procedure", "Claim", "Provenance"]
    claim, provenance = (entry["resource"] for entry in value["entry"][3:])
    assert claim["status"] == "active"
    assert claim["diagnosis"][0]["type"][0]["coding"][0]["code"] == "principal"
    assert claim["diagnosis"][0]["onAdmission"]["coding"][0]["code"] == "Y"
    assert claim["diagnosis"][0]["diagnosisReference"]["reference"] == value["entry"][0]["fullUrl"]
    assert provenance["agent"][0]["who"]["display"] == "ann"
    assert "heart failure and type 2" not in json.dumps(value)  # no text of the note


def test_json_has_the_whole_history_and_no_text(coded):
    value = to_json(*coded)
    assert [item["code"] for item in value["codes"]] == ["I50.9", "E11.9", "0DTJ4ZZ"]
    assert value["codes"][1]["evidence"] == [{"start": 3, "end": 9}]
    assert [row["action"] for row in value["history"]] == ["add", "add", "add", "poa", "finish"]
    assert "Known congestive" not in json.dumps(value)


def test_csv_has_a_row_a_code_and_no_formula(engine, people):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("=cmd()", "x")], None)
    record_decision(engine, 1, "add", {"code": "icd10cm:I10"}, user=people["ann"], version=0)
    with read_transaction(engine) as connection:
        rows = list(csv.DictReader(io.StringIO(to_csv(load_case(connection, 1)))))
    assert [(row["note"], row["code"], row["principal"]) for row in rows] == [("'=cmd()", "I10", "True")]


def document(**changes):
    value = {
        "resourceType": "DocumentReference",
        "id": "d1",
        "status": "current",
        "subject": {"reference": "Patient/p7"},
        "context": {"period": {"end": "2024-05-02T10:00:00Z"}},
        "content": [
            {"attachment": {"contentType": "text/plain", "data": base64.b64encode(b"Heart failure.").decode()}}
        ],
    }
    return value | changes


def test_a_document_reference_with_its_patient():
    patient = {"resourceType": "Patient", "id": "p7", "gender": "female", "birthDate": "1950-05-03"}
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": r} for r in (patient, document())]}
    (note,) = read_upload("bundle.json", json.dumps(bundle).encode())
    assert (note.id, note.text, note.patient) == ("d1", "Heart failure.", "p7")
    assert note.extra == {"date": "2024-05-02", "sex": "F", "age": 73}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"resourceType": "Bundle", "type": "collection"}, "expected a DocumentReference"),
        (document(content=[{"attachment": {"url": "http://elsewhere/x"}}]), "addresses are not followed"),
        (document(content=[{"attachment": {"contentType": "text/plain", "data": "???"}}]), "not"),
        (document(status=None), "not a DocumentReference"),
        ({"resourceType": "Patient", "id": "x"}, "expected a DocumentReference"),
    ],
)
def test_other_resources_are_answered(value, sentence):
    with pytest.raises(DataError, match=sentence):
        read_upload("x.json", json.dumps(value).encode())


def test_text_files_and_notes_files():
    (note,) = read_upload("C:\\notes\\visit 1.txt", "Fieber \xfc\x00ber Nacht".encode("cp1252"))
    assert (note.id, note.text) == ("visit 1", "Fieber ü ber Nacht")
    lines = b'{"id": 1, "text": "a", "sex": "male", "age": "44", "date": "2024-01-31T08:00"}\n{"id": 2, "text": "b"}\n'
    first, second = read_upload("notes.jsonl", lines)
    assert first.extra == {"date": "2024-01-31", "sex": "M", "age": 44} and second.extra == {}
    (row,) = read_upload("notes.csv", b"id,text,kind\n7,hello,Inpatient\n")
    assert row.extra == {"kind": "inpatient"}
    value = {
        "id": 3,
        "text": "c",
        "modality": "CT",
        "gender": "F",
        "age": 200,
        "far": 10**400,
        "long": "x" * 201,
        "n": [1],
    }
    (with_columns,) = read_upload("notes.jsonl", json.dumps(value).encode())
    assert with_columns.extra == {"modality": "CT", "gender": "F", "sex": "F"}


def test_a_resource_a_line_as_bulk_exports_are():
    lines = [document(), document(id="d2"), {"resourceType": "Patient", "id": "p7", "gender": "male"}]
    raw = "\n".join(map(json.dumps, lines)).encode()
    assert [(note.id, note.extra["sex"]) for note in read_upload("x.ndjson", raw)] == [("d1", "M"), ("d2", "M")]
    with pytest.raises(DataError, match=r"x.ndjson row 2 is not JSON"):
        read_upload("x.ndjson", raw.partition(b"\n")[0] + b"\n{")


@pytest.mark.parametrize("first", [b"%PDF-1.7", b"PK\x03\x04", b"{\\rtf1", "\ufeffhello".encode("utf-16")])
def test_files_of_other_programs_are_no_notes(first):
    with pytest.raises(DataError, match="not text; save it as plain text"):
        read_upload("letter.txt", first + b"secret")


def test_files_that_are_none_are_answered_without_their_text():
    for name, raw in (("a.txt", b"  "), ("a.jsonl", b"secret words"), ("a.json", b'{"resourceType": secret')):
        with pytest.raises(DataError) as caught:
            read_upload(name, raw)
        assert "secret" not in str(caught.value)
