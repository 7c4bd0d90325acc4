"""`nosology audit`: the files of the report, who can read them, resuming, and refused inputs."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from nosology.audit.audit_input import read_audit_input, read_bills
from nosology.audit.auditor import RayAuditor, _encounter, _row
from nosology.cli import main
from nosology.core.files import exclusive_output
from tests.audit.interchange import WrittenClaim, write_837
from tests.audit.test_fhir_claims import bundle_of, claim, diagnosis, document

TEXT = "DISCHARGE DIAGNOSES:\n1. Hypertension\n2. CKD stage 4\n3. Chronic diastolic heart failure\n4. No pneumonia"
BILLED = "id,code,order,poa,coder\na,I5032,2,Y,kim\na,J18.9,3,Y,kim\na,I13.0,1,Y,kim\na,N18.4,4,Y,kim\nb,M10.9,1,,lee\n"


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["nosology", "audit", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def inputs(tmp_path):
    notes, billed = tmp_path / "notes.jsonl", tmp_path / "billed.csv"
    rows = [
        {"id": "a", "text": TEXT, "setting": "inpatient", "sex": "F", "age": 70},
        {"id": "b", "text": "Assessment: gout <b>.", "setting": "outpatient"},
        {"id": "c", "text": "Asthma."},
    ]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    billed.write_text(BILLED, encoding="utf-8")
    return notes, billed, tmp_path / "report"


def options(notes, billed, out):
    return "--notes", notes, "--billed", billed, "--out", out


def test_the_report_has_every_finding_in_every_file(run, inputs):
    code, out, err = run(*options(*inputs))
    folder = inputs[2]
    assert code == 0 and "2 encounters" in out and "caution: 1 notes without bill" in err
    assert folder.stat().st_mode & 0o777 == 0o700
    records = [json.loads(line) for line in (folder / "findings.jsonl").read_text("utf-8").splitlines()]
    assert [record["id"] for record in records] == ["a", "b"]
    assert [item["code"] for item in records[0]["billed"]] == ["I13.0", "I50.32", "J18.9", "N18.4"]
    found = [(item["kind"], item["code"]) for record in records for item in record["findings"]]
    assert found == [("unsupported", "J18.9")]
    (row,) = csv.DictReader((folder / "findings.csv").read_text("utf-8").splitlines())
    assert (row["id"], row["coder"], row["rule"], row["evidence"]) == ("a", "kim", "negated", "pneumonia")
    assert TEXT[int(row["start"]) : int(row["end"])] == "pneumonia"
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["kinds"]["unsupported"] == 1 and summary["coders"]["kim"]["unsupported"] == 1
    assert (summary["encounters"], summary["codes"], summary["notes_without_bill"]) == (2, 5, 1)
    page = (folder / "index.html").read_text("utf-8")
    assert "J18.9" in page and "pneumonia" in page and "<script" not in page


def test_a_stopped_audit_continues_and_gives_the_same_report(run, inputs):
    folder = inputs[2]
    assert run(*options(*inputs))[0] == 0
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    lines = whole["findings.jsonl"].splitlines(keepends=True)
    marked = lines[0].replace(b'"coder": "kim"', b'"coder": "old"')
    (folder / "findings.jsonl").write_bytes(marked + lines[1][:20])
    assert run(*options(*inputs))[0] == 0
    assert (folder / "findings.jsonl").read_bytes() == marked + lines[1]  # the first was not audited again
    (folder / "findings.jsonl").write_bytes(lines[0])
    assert run(*options(*inputs))[0] == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    code, _, err = run(*options(*inputs), "--reference", "coder")
    assert code == 1 and "other files or with other settings" in err


@pytest.mark.parametrize("line", ['{"id": "z"}', "[]", "{"])
def test_a_damaged_record_is_a_sentence(run, inputs, line):
    assert run(*options(*inputs))[0] == 0
    with (inputs[2] / "findings.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    code, _, err = run(*options(*inputs))
    assert code == 1 and "is damaged; give another folder" in err


@pytest.fixture
def many(tmp_path):
    """20 encounters; their findings differ."""
    notes, billed = tmp_path / "many.jsonl", tmp_path / "many.csv"
    diseases = ("Hypertension", "No pneumonia", "Gout", "Asthma", "Type 2 diabetes mellitus")
    rows = [
        {"id": f"e{number}", "text": f"Assessment: {diseases[number % 5]}.", "setting": "outpatient"}
        for number in range(20)
    ]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    codes = ("I10", "J18.9", "M10.9")
    lines = [f"e{number},{codes[number % 3]}" for number in range(20)]
    billed.write_text("\n".join(["id,code", *lines]), encoding="utf-8")
    return notes, billed


def test_two_processes_give_the_report_of_one_also_after_a_stop(run, many, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(*options(*many, one), "--workers", 1)[0] == 0
    assert run(*options(*many, two), "--workers", 2)[0] == 0
    whole = {path.name: path.read_bytes() for path in one.iterdir()}
    assert len(whole["findings.jsonl"].splitlines()) == 20
    assert {path.name: path.read_bytes() for path in two.iterdir()} == whole
    (two / "findings.jsonl").write_bytes(b"".join(whole["findings.jsonl"].splitlines(keepends=True)[:3]))
    assert run(*options(*many, two), "--workers", 2)[0] == 0
    assert {path.name: path.read_bytes() for path in two.iterdir()} == whole


@pytest.mark.timeout(600)
def test_ray_gives_the_report_of_one_process(run, many, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(*options(*many, one), "--workers", 1)[0] == 0
    # A separate process: Ray's threads and its log handlers would outlive a test.
    command = [sys.executable, "-m", "nosology", "audit", *map(str, options(*many, two)), "--engine", "ray"]
    ray = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}, timeout=590
    )
    assert ray.returncode == 0 and "20 encounters" in ray.stdout
    assert all(line.startswith("auditing: ") for line in ray.stderr.splitlines())  # nothing of Ray
    whole = {path.name: path.read_bytes() for path in one.iterdir()}
    assert {path.name: path.read_bytes() for path in two.iterdir()} == whole


def test_an_encounter_with_a_wrong_field_is_an_error_in_a_ray_worker(many):
    notes, billed = many
    item = read_audit_input(notes, read_bills(billed)).encounters[0]
    wrong = replace(item, note=replace(item.note, extra={"setting": "home"}))
    worker = RayAuditor({"bundle": "day-one", "reference": "claim", "min_confidence": 0.5, "weights": {}})
    rows = worker({"encounter": [_row(item)["encounter"], _row(wrong)["encounter"]]})
    first, second = map(json.loads, rows["record"])
    assert first["id"] == "e0" and "error" not in first
    assert "findings" not in second and "row 1: setting must be one of" in second["error"]


def test_rows_of_an_encounter_are_joined(run, tmp_path):
    notes, billed, out = tmp_path / "notes.jsonl", tmp_path / "billed.csv", tmp_path / "report"
    rows = [
        {"id": "d1", "encounter": "a", "patient": "p", "text": "History: fever.", "date": "2025-11-01", "sex": "F"},
        {"id": "d2", "text": "Assessment: gout.", "setting": "outpatient"},
        {"id": "d3", "encounter": "a", "patient": "p", "text": "DISCHARGE DIAGNOSES:\nNo pneumonia. Gout."},
    ]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    billed.write_text("id,code\na,J18.9\na,M10.9\nd2,M10.9\n", encoding="utf-8")
    assert run(*options(notes, billed, out))[0] == 0
    first, second = (json.loads(line) for line in (out / "findings.jsonl").read_text("utf-8").splitlines())
    assert (first["id"], second["id"]) == ("a", "d2") and "documents" not in second
    assert [item["id"] for item in first["documents"]] == ["d1", "d3"]
    (span,) = next(item for item in first["findings"] if item["code"] == "J18.9")["evidence"]
    start = span["start"] - first["documents"][1]["start"]
    assert span["text"] == "pneumonia" == rows[2]["text"][start : start + 9]
    (row,) = csv.DictReader((out / "findings.csv").read_text("utf-8").splitlines())
    assert row["document"] == "d3"
    rows[2]["patient"] = "q"
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code, _, err = run(*options(notes, billed, tmp_path / "other"))
    assert code == 1 and "row 1: the documents of this encounter are of several patients" in err


def test_bills_may_be_837_claims_or_fhir(run, tmp_path):
    text = "DISCHARGE DIAGNOSES:\n1. Hypertension\n2. No pneumonia"
    notes, billed, out = tmp_path / "notes.jsonl", tmp_path / "claims.837", tmp_path / "report"
    notes.write_text(json.dumps({"id": "A1", "text": text}), encoding="utf-8")
    billed.write_text(write_837([WrittenClaim("A1", [("I10", "Y"), ("J189", "Y")])]), encoding="ascii")
    assert run(*options(notes, billed, out))[0] == 0
    first = json.loads((out / "findings.jsonl").read_text("utf-8"))
    diagnoses = [diagnosis(1, "I10", poa="Y"), diagnosis(2, "J18.9", poa="Y")]
    patient = {"resourceType": "Patient", "id": "p1", "gender": "female", "birthDate": "1955-03-10"}
    stay = {"resourceType": "Encounter", "id": "A1", "class": {"code": "IMP"}}
    stay |= {"period": {"start": "2025-11-03", "end": "2025-11-08"}}
    resources = [patient, stay, document("d", text, "A1"), claim("k", diagnoses, "A1")]
    bundle = tmp_path / "bundle.json"
    bundle.write_text(json.dumps(bundle_of(resources)), encoding="utf-8")
    assert run("--notes", bundle, "--out", tmp_path / "fhir")[0] == 0
    second = json.loads((tmp_path / "fhir" / "findings.jsonl").read_text("utf-8"))
    assert first["setting"] == second["setting"] == "inpatient" and first["billed"] == second["billed"]
    assert [it["code"] for it in first["findings"] if it["kind"] == "unsupported"] == ["J18.9"]
    assert [it["effect"]["drg"] for it in first["findings"]] == [it["effect"]["drg"] for it in second["findings"]]
    billed.write_text("ISA*SECRETNAME", encoding="ascii")
    code, _, err = run(*options(notes, billed, tmp_path / "third"))
    assert code == 1 and "segment 1 is not valid X12" in err and "SECRETNAME" not in err and "Traceback" not in err


def test_findings_below_the_confidence_are_not_reported(run, inputs):
    assert run(*options(*inputs), "--min-confidence", "0.95")[0] == 0
    summary = json.loads((inputs[2] / "summary.json").read_text("utf-8"))
    assert (summary["encounters"], summary["with_findings"]) == (2, 0)


def test_refused_inputs_show_no_text(run, inputs):
    notes, billed, _ = inputs
    for content, message in (
        ("id,code\na,patient has severe asthma\n", "row 2"),
        ("id,code,poa\na,I10,maybe\n", "poa must be empty or one of Y, N, U, W, 1"),
        ("id,code,order\na,I10,first\n", "order must be a number"),
        ("id,code,order\na,I10,nan\n", "order must be a number"),
        ("id,code,order\na,I10,-inf\n", "order must be a number"),
        ("id,code\na,severe!\n", "row 2: code must be a code of icd10cm or icd10pcs"),
        ("id\na\n", "missing column code"),
        ("id,code\na,428.0\n", "icd10cm"),
    ):
        billed.write_text(content, encoding="utf-8")
        code, _, err = run(*options(*inputs))
        assert code == 1 and message in err and "severe" not in err, err
    billed.write_text(BILLED, encoding="utf-8")
    right = notes.read_text("utf-8")
    notes.write_text(right.replace('"outpatient"', '"home"'), encoding="utf-8")
    code, _, err = run(*options(*inputs))
    assert code == 1 and "caution: 1 encounters could not be audited" in err  # the others are
    summary = json.loads((inputs[2] / "summary.json").read_text("utf-8"))
    assert summary["not_audited"] == 1 and summary["encounters"] >= 1
    assert "row 2: setting must be one of" in (inputs[2] / "findings.jsonl").read_text("utf-8")
    notes.write_text(right, encoding="utf-8")
    inputs[2].rename(inputs[2].with_name("first"))
    notes.write_text("\n".join([notes.read_text("utf-8")] * 2), encoding="utf-8")
    code, _, err = run(*options(*inputs))
    assert code == 1 and "notes.jsonl row 4 has the id of an earlier note" in err and "CKD" not in err


def test_a_folder_with_other_files_is_refused(run, inputs):
    inputs[2].mkdir()
    (inputs[2] / "thesis.txt").write_text("x", encoding="utf-8")
    code, _, err = run(*options(*inputs))
    assert code == 1 and "thesis.txt" in err


def test_a_second_audit_of_the_same_folder_is_refused_while_one_runs(run, inputs):
    with exclusive_output(inputs[2]):
        code, _, err = run(*options(*inputs))
    assert code == 1 and "another process is writing" in err and not inputs[2].exists()
    assert run(*options(*inputs))[0] == 0


def test_a_stay_that_ends_before_it_starts_is_not_audited(run, inputs):
    notes, _, out = inputs
    right = notes.read_text("utf-8")
    stay = '"setting": "inpatient", "admitted": "2025-11-08", "discharged": "2025-11-03"'
    notes.write_text(right.replace('"setting": "inpatient"', stay), encoding="utf-8")
    code, _, err = run(*options(*inputs))
    assert code == 1 and "caution: 1 encounters could not be audited" in err
    assert "row 1: discharged must not be before admitted" in (out / "findings.jsonl").read_text("utf-8")


def test_wrong_fields_show_nothing_of_their_values(run, inputs):
    notes, _, out = inputs
    first, second, third = map(json.loads, notes.read_text("utf-8").splitlines())
    second |= {"id": "b", "role": "severe"}
    rows = [first | {"date": "severe pneumonia"}, second, third]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert run(*options(*inputs))[0] == 1
    errors = [json.loads(line)["error"] for line in (out / "findings.jsonl").read_text("utf-8").splitlines()]
    assert "date must be YYYY-MM-DD" in errors[0] and "role must be one of attending" in errors[1]
    assert not any("severe" in error for error in errors)


def test_an_encounter_of_two_people_has_both_names(run, inputs):
    inputs[1].write_text(BILLED.replace("3,Y,kim", "3,Y,ada"), encoding="utf-8")
    assert run(*options(*inputs))[0] == 0
    summary = json.loads((inputs[2] / "summary.json").read_text("utf-8"))
    assert summary["coders"]["ada, kim"]["encounters"] == 1 and "kim" not in summary["coders"]


def fhir_encounter(name, **stay):
    """A patient, an encounter, its document and its claim; stay: born, start, end, date, and fields of the claim."""
    patient = {"resourceType": "Patient", "id": f"p{name}", "birthDate": stay.pop("born", "1955-03-10")}
    period = {"start": stay.pop("start", "2025-11-03"), "end": stay.pop("end", "2025-11-08")}
    encounter = {"resourceType": "Encounter", "id": name, "class": {"code": "IMP"}, "period": period}
    dated = {"date": stay.pop("date", "2025-11-08T10:00:00Z")}
    text = "DISCHARGE DIAGNOSES: SECRETNAME has hypertension."
    given = document(f"d{name}", text, name, f"p{name}", **dated)
    return [patient, encounter, given, claim(f"k{name}", [diagnosis(1, "I10")], name, f"p{name}", **stay)]


def errors_of(folder):
    records = map(json.loads, (folder / "findings.jsonl").read_text("utf-8").splitlines())
    return {record["id"]: record.get("error", "").rpartition("note ")[2] for record in records}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_wrong_date_of_a_fhir_document_or_claim_refuses_its_encounter_alone(run, tmp_path, processes):
    wrong = {
        "e2": ({"born": "2025-12-01"}, "2: birthDate of the patient is after the date of the document"),
        "e3": ({"start": "2025-02-30"}, "3: the start of the encounter must be a whole day, YYYY-MM-DD"),
        "e4": ({"date": "2025-02-30T10:00:00Z"}, "4: date must be a day or a time of FHIR"),
        "e5": (
            {"billablePeriod": {"start": "2025-11-08", "end": "2025-11-03"}},
            "5: the bill: it ends before it starts",
        ),
        "e6": (
            {"billablePeriod": {"start": "2025-11-31"}},
            "6: the bill: billablePeriod.start must be a day or a time of FHIR",
        ),
    }
    resources = fhir_encounter("e1")
    for name, (stay, _) in wrong.items():
        resources += fhir_encounter(name, **stay)
    bundle, out = tmp_path / "bundle.json", tmp_path / "report"
    bundle.write_text(json.dumps(bundle_of(resources)), encoding="utf-8")
    code, printed, err = run("--notes", bundle, "--out", out, "--workers", processes)
    assert code == 1 and "1 encounters" in printed and "caution: 5 encounters could not be audited" in err
    assert errors_of(out) == {"e1": ""} | {name: reason for name, (_, reason) in wrong.items()}
    assert "SECRETNAME" not in err


def test_one_wrong_document_of_several_refuses_its_encounter(tmp_path):
    further = document("d9", "Admitted.", "e1", "pe1", context={"period": {"start": "2025-02-30"}})
    further["context"]["encounter"] = [{"reference": "Encounter/e1"}]
    bundle = tmp_path / "bundle.json"
    bundle.write_text(json.dumps(bundle_of([*fhir_encounter("e1"), further])), encoding="utf-8")
    (item,) = read_audit_input(bundle, read_bills(bundle, has_notes=True)).encounters
    assert item.refused == "context.period.start must be a day or a time of FHIR" and item.where.endswith("note 2")
    assert _encounter(_row(item)["encounter"]).refused == item.refused


def test_an_837_claim_that_ends_before_it_starts_is_refused_whatever_the_notes_state(run, inputs):
    notes, _, out = inputs
    stay = {"admitted": "2025-11-03", "discharged": "2025-11-08", "refused": "yes"}  # a column of any name is no reason
    rows = [{"id": name, "text": "DISCHARGE DIAGNOSES: Hypertension", **stay} for name in ("a", "b", "c")]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    claims = [WrittenClaim("a", [("I10", "Y")], stay="20251108-20251103"), WrittenClaim("b", [("I10", "Y")])]
    claims.append(WrittenClaim("c", [("I10", "Y")], admitted="20251109"))
    billed = notes.with_name("claims.837")
    billed.write_text(write_837(claims), encoding="ascii")
    code, _, err = run(*options(notes, billed, out))
    assert code == 1 and "caution: 2 encounters could not be audited" in err
    reasons = ["it ends before it starts", "discharged must not be before admitted"]
    assert errors_of(out) == {
        "a": f"notes.jsonl row 1: the bill: {reasons[0]}",
        "b": "",
        "c": f"notes.jsonl row 3: the bill: {reasons[1]}",
    }


def test_an_encounter_id_may_have_a_lone_surrogate(run, inputs):
    notes, billed, out = inputs
    rows = [{"id": name, "text": "Gout.", "encounter": encounter} for name, encounter in (("x", "b"), ("y", "c\ud800"))]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    billed.write_text("id,code\nb,M10.9\nc?,M10.9\n", encoding="utf-8")
    assert run(*options(notes, billed, out))[0] == 0
    assert errors_of(out) == {"b": "", "c?": ""}


def test_notes_that_cannot_be_read_are_named_and_the_others_are_audited(run, inputs):
    notes, _, out = inputs
    rows = notes.read_text("utf-8").splitlines()
    page = json.dumps({"id": "a2", "encounter": "a", "text": "<html><body>SECRETNAME has gout</body></html>"})
    notes.write_text("\n".join([page, '{"id": "SECRETNAME', *rows]), encoding="utf-8")
    for _ in range(2):  # the second time, both are done
        code, printed, err = run(*options(*inputs))
        assert code == 1 and "1 encounters" in printed and "SECRETNAME" not in printed + err
        assert "caution: notes.jsonl row 2: not a line of JSON" in err and "caution: 1 malformed rows" in err
        assert "caution: 1 encounters could not be audited" in err
    reason = "notes.jsonl row 1: the note is HTML or XML, not plain text; save it as plain text in UTF-8"
    records = {
        record["id"]: record for record in map(json.loads, (out / "findings.jsonl").read_text("utf-8").splitlines())
    }
    assert records["a"]["error"] == reason and "findings" in records["b"]
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert (summary["not_audited"], summary["malformed_rows"]) == (1, 1)
    notes.write_text("SECRETNAME\n" * 3, encoding="utf-8")
    code, _, err = run(*options(notes, inputs[1], out.with_name("second")))
    assert (
        code == 1
        and err == "nosology: notes.jsonl row 1: not a line of JSON (Expecting value); no row of the file can be read\n"
    )
