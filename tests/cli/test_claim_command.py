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
        ("--setting", "home", "setting must be one of inpatient, outpatient, emergency; got 'home'"),
        ("--sex", "X", "sex must be F or M; got 'X'"),
        ("--date", "2025-13-40", "date must be YYYY-MM-DD; got '2025-13-40'"),
        ("--age", "nan", "age must be between 0 and 130 years; got nan\n"),
        ("--system", "icd11", "--system must be one of"),
    ):
        code, out, err = run("claim", tmp_path / "missing.txt", option, value)
        assert code == 1 and message in err and "missing" not in err and out == ""
    assert run("claim", tmp_path / "missing.txt")[0] == 1


def test_a_note_with_a_wrong_field_is_named_and_the_others_have_their_claims(run, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    reversed_stay = {"admitted": "2025-11-08", "discharged": "2025-11-03"}
    rows = [{"id": "a", "text": "SECRETNAME has gout.", **reversed_stay}, {"id": "b", "text": "Gout."}]
    first.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    second.write_text(
        "\n".join(map(json.dumps, [rows[0] | {"id": "c"}, {"id": "d", "text": "Asthma."}])), encoding="utf-8"
    )
    code, out, err = run("claim", first, second, "--json", "--setting", "outpatient")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and [record["id"] for record in records] == ["a", "b", "c", "d"]
    assert [record.get("error") for record in records] == ["discharged must not be before admitted", None] * 2
    assert [records[place]["codes"][0]["code"] for place in (1, 3)] == ["M10.9", "J45.909"]
    assert f"caution: {first}: note a has no claim: discharged must not be before admitted" in err
    assert f"caution: {second}: note c has no claim" in err and "caution: 2 notes could not be used" in err
    assert "SECRETNAME" not in out + err
    code, out, err = run("claim", first)
    assert code == 1 and out.startswith("b: 1 code") and "caution: 1 note could not be used" in err


def test_notes_that_are_no_text_have_no_claim(run, tmp_path):
    rows = [{"id": "a", "text": "<html><body>SECRETNAME</body></html>"}, {"id": "b", "text": "Gout."}]
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code, out, err = run("claim", tmp_path / "notes.jsonl")
    assert code == 1 and out.startswith("b: 1 code") and "caution: 1 note could not be used" in err
    assert "notes.jsonl: note a cannot be used: the note is HTML or XML" in err and "SECRETNAME" not in err
