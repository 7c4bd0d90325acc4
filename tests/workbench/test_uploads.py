"""Uploads: text files, notes files, FHIR resources."""

import base64
import gzip
import io
import json
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from nosology.claims.fhir_documents import html_text
from nosology.core import DataError, Note
from nosology.workbench import uploads
from nosology.workbench.uploads import normalize_encounter, read_upload


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
    assert note.extra == {"date": "2024-05-02", "sex": "F", "age": 73, "born": "1950-05-03"}


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


def test_patients_and_encounters_of_a_bundle_are_found_by_their_full_url():
    patient = {
        "resourceType": "Patient",
        "gender": "male",
        "birthDate": "1950-05-03",
        "identifier": [{"value": "MRN9"}],
    }
    stay = {
        "resourceType": "Encounter",
        "status": "finished",
        "class": {"code": "IMP"},
        "period": {"end": "2023-01-09"},
    }
    note = document(
        subject={"reference": "urn:uuid:1"},
        context={"encounter": [{"reference": "urn:uuid:2"}]},
        date="2023-02-01T00:00:00Z",
    )
    entries = [("urn:uuid:0", note), ("urn:uuid:1", patient), ("urn:uuid:2", stay)]
    bundle = {"resourceType": "Bundle", "entry": [{"fullUrl": url, "resource": item} for url, item in entries]}
    (read,) = read_upload("bundle.json", json.dumps(bundle).encode())
    assert read.patient == "MRN9"
    person = {"sex": "M", "age": 72, "born": "1950-05-03"}
    stay_fields = {"date": "2023-01-09", "discharged": "2023-01-09", "setting": "inpatient", "kind": "inpatient"}
    of_document = {"encounter": "urn:uuid:2", "document_date": "2023-02-01"}
    assert read.extra == person | stay_fields | of_document


def test_the_text_of_an_html_attachment_is_read():
    page = "<head><style>b{}</style></head><h1>Plan</h1><p>Heart&nbsp;failure <b>worse</b>.</p><script>x</script>"
    attachment = {"contentType": "text/html", "data": base64.b64encode(page.encode()).decode()}
    (note,) = read_upload("x.json", json.dumps(document(content=[{"attachment": attachment}])).encode())
    assert note.text.split("\n") == ["Plan", "Heart failure worse."]


def test_words_of_html_stay_apart_and_nothing_is_left_out():
    page = "<html><head><meta name=x><p><b>Heart</b> failure and<i> no</i> fever</p><pre>a  1\n b</pre>Übel<td>1<td>2"
    assert html_text(page).split("\n") == ["Heart failure and no fever", "a  1", "b", "Übel\t1\t2"]
    attachment = {"contentType": "text/html", "data": base64.b64encode("<p>Übel".encode("latin-1")).decode()}
    (note,) = read_upload("x.json", json.dumps(document(content=[{"attachment": attachment}])).encode())
    assert note.text == "Übel"


def test_a_patient_within_the_document():
    patient = {"resourceType": "Patient", "id": "p", "gender": "female", "birthDate": "1950-05-05"}
    item = document(contained=[patient], subject={"reference": "#p"})
    (note,) = read_upload("x.json", json.dumps(item).encode())
    assert (note.patient, note.extra["sex"], note.extra["age"]) == (None, "F", 73)
    patient["identifier"] = [{"value": "MRN3"}]
    assert read_upload("x.json", json.dumps(item).encode())[0].patient == "MRN3"
    patient["birthDate"] = "2025-06-01"
    with pytest.raises(DataError, match="birthDate of the patient is after the date"):
        read_upload("x.json", json.dumps(item).encode())


def test_dates_that_are_none_are_refused_and_parts_of_one_give_no_age():
    patient = {"resourceType": "Patient", "id": "p7", "birthDate": "1950-05-33"}
    bundle = {"resourceType": "Bundle", "entry": [{"resource": item} for item in (patient, document())]}
    with pytest.raises(DataError, match="birthDate of the patient must be a whole day"):
        read_upload("bundle.json", json.dumps(bundle).encode())
    patient["birthDate"] = "1950"
    (note,) = read_upload("bundle.json", json.dumps(bundle).encode())
    assert "age" not in note.extra


@pytest.mark.parametrize("column", ["date", "admitted", "discharged"])
def test_a_day_of_a_notes_file_that_is_none_is_refused(column):
    with pytest.raises(DataError, match=f"notes.csv row 1: {column} must be a day, YYYY-MM-DD"):
        read_upload("notes.csv", f"id,text,{column}\n7,hello,03/11/2025\n".encode())
    assert read_upload("notes.csv", f"id,text,{column}\n7,hello,\n".encode())[0].extra.get(column, "") == ""


def test_two_documents_of_a_bundle_with_one_id_or_one_address():
    twice = [{"fullUrl": "urn:uuid:1", "resource": document(id=name)} for name in ("d1", "d2")]
    bundle = {"resourceType": "Bundle", "entry": twice}
    assert [note.id for note in read_upload("b.json", json.dumps(bundle).encode())] == ["d1", "d2"]
    bundle["entry"][1]["resource"]["id"] = "d1"
    with pytest.raises(DataError, match=r"b\.json row 2: the DocumentReference has the id of an earlier one"):
        read_upload("b.json", json.dumps(bundle).encode())


def test_an_observation_stay_is_outpatient():
    stay = {"resourceType": "Encounter", "id": "e1", "status": "finished", "class": {"code": "OBSENC"}}
    item = document(context={"encounter": [{"reference": "Encounter/e1"}]})
    bundle = {"resourceType": "Bundle", "entry": [{"resource": resource} for resource in (stay, item)]}
    (note,) = read_upload("b.json", json.dumps(bundle).encode())
    assert note.extra["kind"] == "outpatient"


def test_an_id_with_a_nul_is_refused():
    with pytest.raises(DataError, match="id must not contain the character NUL"):
        normalize_encounter(Note("a\x00b", "text"))


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


@pytest.mark.parametrize("first", [b"%PDF-1.7", b"PK\x03\x04", b"{\\rtf1", b"\x1f\x8b"])
def test_binary_formats_are_refused(first):
    with pytest.raises(DataError, match="not text; save it as plain text"):
        read_upload("letter.txt", first + b"secret")


def unpacks_to(megabytes: int, start: bytes, line: bytes) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(start)
        for _ in range(megabytes):
            file.write(line * ((1 << 20) // len(line)))
    return packed.getvalue()


def parquet(texts: list[str]) -> bytes:
    raw = io.BytesIO()
    pq.write_table(pa.table({"id": list(map(str, range(len(texts)))), "text": texts}), raw, compression="zstd")
    return raw.getvalue()


def test_files_that_are_too_large_when_unpacked_are_refused(monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UNPACKED_BYTES", 3 << 20)
    monkeypatch.setattr(uploads, "MAX_NOTES_OF_FILE", 50)
    for name, raw in (
        ("lines.jsonl.gz", unpacks_to(4, b"", b"\n")),
        ("rows.csv.gz", unpacks_to(4, b"id,text\n", b"1,abc\n")),
        ("texts.parquet", parquet(["a" * 1_000_000] * 4)),
        ("many.csv", b"id,text\n" + b"".join(b"%d,abc\n" % number for number in range(51))),
    ):
        with pytest.raises(DataError, match=f"{name} has more than 50 notes or 3 MB when unpacked"):
            read_upload(name, raw)
    assert len(read_upload("texts.parquet", parquet(["a" * 1_000_000] * 3))) == 3


def test_a_file_that_unpacks_to_many_times_its_size_is_refused():
    for name, raw in (
        ("rows.csv.gz", unpacks_to(20, b"id,text\n", b"1,abc\n")),
        ("lines.jsonl.gz", unpacks_to(20, b"", b'{"id": 1, "text": "a"}\n')),
    ):
        with pytest.raises(DataError, match=f"{name} unpacks to more than 100 times its size"):
            read_upload(name, raw)


ROW = """b'{"id":%d,"text":"a","x":[' % n + b'[],' * 2_000_000 + b'0]}' + bytes([10])"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("fields.csv.gz", "b'id,text' + bytes([10]) + b'ab,' * 40_000_000"),
        ("long.jsonl.gz", """b'{"x":[' + b'[],' * 40_000_000"""),
        ("rows.jsonl.gz", f"b''.join({ROW} for n in range(10))"),
    ],
    ids=["fields", "long", "rows"],
)
def test_memory_is_bounded_whatever_a_file_unpacks_to(name, content):
    """In 1 GB of address space the file is refused. Noise at its end keeps the ratio low."""
    program = f"""
import gzip, os, resource
from nosology.core import DataError
from nosology.workbench.uploads import read_upload
raw = gzip.compress({content}, compresslevel=1) + gzip.compress(os.urandom(2 << 20))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    print(len(read_upload({name!r}, raw)), "notes")
except DataError as error:
    print("refused:", error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250)
    assert run.returncode == 0 and run.stdout.startswith("refused:"), run.stderr[-500:]


@pytest.mark.parametrize("rows", [1, 20])
def test_nested_values_and_long_rows_of_parquet_are_not_read(rows):
    raw = io.BytesIO()
    nested = pa.array([[0] * 3_000_000] * rows, pa.list_(pa.int8()))
    names = [str(number) for number in range(rows)]
    pq.write_table(pa.table({"id": names, "text": ["a"] * rows, "x": nested}), raw, compression="zstd")
    assert [note.extra for note in read_upload("a.parquet", raw.getvalue())] == [{}] * rows
    long = parquet(["a" * (17 << 20)])
    with pytest.raises(DataError, match="row 1: a row of more than 16 MB"):
        read_upload("a.parquet", long)


@pytest.mark.parametrize("name", [f"{'n' * 400}.txt", f"{'n' * 400}.csv"])
def test_a_long_file_name_is_refused(name):
    with pytest.raises(DataError, match="name of a file may have 200 characters; got 404"):
        read_upload(name, b"id,text\n1,a")


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        ("a.csv", b"id,text\n1,abc\n1,def\n", "row 3: found notes with the id of an earlier note"),
        ("a.jsonl", b'{"id": 1, "text": "abc"}\n{"id": 2, "text": " "}\n', "row 2: found notes without a word"),
        ("a.csv.gz", gzip.compress(b"id,text\n", mtime=0), "has no notes"),
        ("a.csv", b"id,text\n" + b"x" * 201 + b",abc\n", "row 1: id may have 200 characters; got 201"),
        ("a.csv", b"id,text,lang\n1,abc," + b"x" * 21 + b"\n", "row 1: lang may have 20 characters; got 21"),
    ],
    ids=["twice", "empty", "none", "id", "lang"],
)
def test_no_note_of_a_file_is_left_out(name, raw, sentence):
    with pytest.raises(DataError, match=sentence):
        read_upload(name, raw)


def test_errors_of_invalid_files_show_no_text():
    for name, raw in (("a.txt", b"  "), ("a.jsonl", b"secret words"), ("a.json", b'{"resourceType": secret')):
        with pytest.raises(DataError) as caught:
            read_upload(name, raw)
        assert "secret" not in str(caught.value)


def test_a_row_that_is_no_text_is_refused():
    raw = b"id,text\n7,hello\n8,{\\rtf1 secret}\n"
    with pytest.raises(DataError, match=r"notes\.csv row 3: .*not plain text") as caught:
        read_upload("notes.csv", raw)
    assert "secret" not in str(caught.value)
