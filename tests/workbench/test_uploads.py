"""Uploads: text files, notes files, FHIR resources."""

import base64
import json

import pytest

from nosology.core import DataError
from nosology.workbench.uploads import read_upload


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
def test_invalid_fhir_resources_are_refused(value, sentence):
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


def test_bulk_export_has_one_resource_per_line():
    lines = [document(), document(id="d2"), {"resourceType": "Patient", "id": "p7", "gender": "male"}]
    raw = "\n".join(map(json.dumps, lines)).encode()
    assert [(note.id, note.extra["sex"]) for note in read_upload("x.ndjson", raw)] == [("d1", "M"), ("d2", "M")]
    with pytest.raises(DataError, match=r"x.ndjson row 2 is not JSON"):
        read_upload("x.ndjson", raw.partition(b"\n")[0] + b"\n{")


@pytest.mark.parametrize("first", [b"%PDF-1.7", b"PK\x03\x04", b"{\\rtf1", "\ufeffhello".encode("utf-16")])
def test_binary_formats_are_refused(first):
    with pytest.raises(DataError, match="not text; save it as plain text"):
        read_upload("letter.txt", first + b"secret")


def test_errors_of_invalid_files_show_no_text():
    for name, raw in (("a.txt", b"  "), ("a.jsonl", b"secret words"), ("a.json", b'{"resourceType": secret')):
        with pytest.raises(DataError) as caught:
            read_upload(name, raw)
        assert "secret" not in str(caught.value)
