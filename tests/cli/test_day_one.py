"""nosology code day-one and codes add-index as a user types them."""

import json

import pytest

SECRET = "xyzzyplugh"


@pytest.fixture
def note(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text(f"{SECRET}. COPD exacerbation. No pneumonia. Low back pain.")
    return path


def test_a_note_is_coded_without_training(run, note):
    code, out, err = run("code", "day-one", note)
    assert (code, err) == (0, "")
    assert "J44.1" in out and "COPD exacerbation" in out and "M54.50" in out and "J18.9" not in out


def test_release_and_context_can_be_set(run, note):
    code, out, _ = run("code", "day-one", note, "--release", "2019", "--set", "context.negated=keep", "--json")
    accepted = {item["code"] for item in json.loads(out)["codes"] if item["accepted"]}
    assert code == 0 and {"J44.1", "M54.5", "J18.9"} <= accepted


def test_other_code_systems(run, note):
    code, out, _ = run("code", "day-one", note, "--system", "icd9cm")
    assert code == 0 and "491.21" in out and "486" not in out
    note.write_text("Procedure: Laparoscopic appendectomy.")
    code, out, _ = run("code", "day-one", note, "--system", "icd10pcs", "--json")
    assert code == 0 and [item["code"] for item in json.loads(out)["codes"]] == ["0DTJ4ZZ"]


def test_procedures_of_a_claim(run, note):
    note.write_text("Admitted with acute appendicitis.\nProcedure: Laparoscopic appendectomy. Left BKA.")
    code, out, _ = run("claim", note, "--setting", "inpatient")
    assert code == 0 and "procedures:" in out and "0DTJ4ZZ" in out and "ask: BKA" in out
    code, out, _ = run("claim", note, "--system", "icd10pcs", "--json")
    claim = json.loads(out)
    assert code == 0 and [item["code"] for item in claim["codes"]] == ["0DTJ4ZZ"] and claim["procedures"] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "context.negated=perhaps"], "context.negated"),
        (["--set", "context.colour=keep"], "colour"),
        (["--set", "context.negated=learn"], "context.negated"),
        (["--set", "labels.systems=['icd9cm']"], "labels"),
        (["--set", "learn.folds=3"], "learn"),
        (["--set", "decision.threshold=per_code"], "decision.threshold"),
        (["--release", "1999"], "1999"),
        (["--codes", "absent.csv"], "absent.csv"),
    ],
)
def test_invalid_settings_are_refused(run, note, words, sentence):
    code, out, err = run("code", "day-one", note, *words)
    assert code == 1 and out == "" and sentence in err
    assert err.count("\n") == 1 and SECRET not in err and "Traceback" not in err


def test_invalid_index_is_refused(run, note):
    code, _, err = run("codes", "add-index", note)
    assert code == 1 and "must be an order file" in err and SECRET not in err


def test_workers_change_nothing(run, tmp_path):
    texts = [f"Admitted with pneumonia and {name}." for name in ("COPD", "gout", "asthma")] * 10
    notes = tmp_path / "notes.jsonl"
    rows = [json.dumps({"id": f"n{i}", "text": text, "codes": []}) for i, text in enumerate(texts)]
    notes.write_text("\n".join(rows) + "\n")
    results = {workers: run("code", "day-one", notes, "--json", "--workers", workers) for workers in (1, 2)}
    assert results[1][:2] == results[2][:2]
    assert [json.loads(line)["id"] for line in results[2][1].splitlines()] == [f"n{i}" for i in range(30)]
    shown = run("code", "day-one", notes, "--workers", 2)[1]
    assert shown == run("code", "day-one", notes, "--workers", 1)[1]
    assert shown.count("J45.909") == 10


def test_a_wrong_row_is_reported_after_the_notes_before_it(run, tmp_path):
    notes = tmp_path / "notes.jsonl"
    rows = [json.dumps({"id": f"n{i}", "text": "gout", "codes": []}) for i in range(20)]
    notes.write_text("\n".join([*rows, "{"]) + "\n")
    code, out, err = run("code", "day-one", notes, "--workers", 2)
    assert code == 1
    assert out.count("Gout") == 20
    assert "21" in err
