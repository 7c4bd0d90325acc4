"""`nosology claim`: notes files, JSON and text output, wrong options."""

from __future__ import annotations

import json

TEXT = "DISCHARGE DIAGNOSES:\n1. Hypertension\n2. CKD stage 4\n3. Chronic diastolic heart failure\n4. No pneumonia"


def test_columns_of_a_notes_file_describe_the_encounter(run, tmp_path):
    notes = tmp_path / "notes.jsonl"
    lines = [{"id": "a", "text": TEXT, "setting": "inpatient"}, {"id": "b", "text": "Gout.", "setting": "outpatient"}]
    notes.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    code, out, _ = run("claim", notes, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(record["id"], record["codes"][0]["code"]) for record in records] == [("a", "I13.0"), ("b", "M10.9")]
    assert [record["codes"][0]["poa"] for record in records] == ["Y", ""]
    code, out, _ = run("claim", notes)
    assert code == 0 and "I13.0" in out and "not I10" in out


def test_wrong_options_are_refused_before_a_note_is_read(run, tmp_path):
    for option, value, message in (
        ("--setting", "home", "setting must be one of inpatient, outpatient, emergency"),
        ("--sex", "X", "sex must be F or M"),
        ("--date", "tomorrow", "tomorrow"),
        ("--system", "icd11", "--system must be one of"),
    ):
        code, out, err = run("claim", tmp_path / "missing.txt", option, value)
        assert code == 1 and message in err and "missing" not in err and out == ""
    assert run("claim", tmp_path / "missing.txt")[0] == 1
