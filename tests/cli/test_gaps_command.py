"""`nosology gaps`: the files of the report, who can read them, resuming, rows that cannot be used, refused inputs."""

from __future__ import annotations

import csv
import json

import pytest

from nosology.claims import gap_records
from nosology.claims.claim import build_claim
from nosology.core.files import exclusive_output
from nosology.models.siblings.sibling_chooser import SiblingChooser

TEXT = "DISCHARGE DIAGNOSES:\n1. Pneumonia\n2. Heart failure <b>, continue furosemide\n"
WEIGHTS = (
    "TABLE 5: MS-DRGs FY 2026 Final Rule,,,,,,,,\nMS-DRG,Post-Acute,Special Pay,MDC,TYPE,MS-DRG Title,Weights,"
    "Geometric mean LOS,Arithmetic mean LOS\n193,Yes,No,04,MED,PNEUMONIA W MCC,1.3,4,5\n"
    "194,Yes,No,04,MED,PNEUMONIA W CC,0.8,3,4\n195,Yes,No,04,MED,PNEUMONIA WO,0.6,2,3\n"
)


def write_inputs(folder):
    notes, weights = folder / "notes.jsonl", folder / "table5.csv"
    stay = {"setting": "inpatient", "sex": "F", "age": 78, "date": "2026-02-01"}
    rows = [
        {"id": "a", "text": TEXT, "specialty": "Medicine", **stay},
        {"id": "b", "text": TEXT.replace("Heart", "Chronic systolic heart"), "service": "Surgery", **stay},
        {"id": "c", "text": "Assessment: asthma, refill albuterol.", "setting": "outpatient"},
    ]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    weights.write_text(WEIGHTS, encoding="utf-8")
    return notes, weights


def test_the_report_ranks_gaps_and_only_its_owner_can_read_it(run, tmp_path):
    notes, weights = write_inputs(tmp_path)
    out = tmp_path / "report"
    code, printed, _ = run("gaps", "--notes", notes, "--out", out, "--drg-weights", weights)
    assert code == 0 and "3 encounters" in printed
    assert out.stat().st_mode & 0o777 == 0o700
    with (out / "ranked.csv").open(encoding="utf-8", newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["subject"], first["specialty"]) == ("query-heart-failure-type", "Medicine")
    assert (first["encounters"], first["drg_can_change"]) == ("1", "1")
    # From DRG 195 (0.6) to 194 (0.8) or 193 (1.3).
    assert float(first["weight_high"]) == 0.7 and 0.2 < float(first["weight_likely"]) < 0.7
    with (out / "encounters.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["id"], row["subject"]): row for row in csv.DictReader(file)}
    row = rows["a", "query-heart-failure-type"]
    assert row["evidence"] == TEXT[int(row["start"]) : int(row["end"])] == "Heart failure"
    assert ("b", "query-heart-failure-type") not in rows
    summary = json.loads((out / "gaps.json").read_text("utf-8"))
    assert summary["specialties"]["Surgery"]["encounters"] == 1 and "not stated" in summary["specialties"]
    assert "furosemide" not in (out / "gaps.json").read_text("utf-8")
    page = (out / "index.html").read_text("utf-8")
    assert "without its type" in page and "<script" not in page and "furosemide" not in page
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run("gaps", "--notes", notes, "--out", out, "--drg-weights", weights)[0] == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_refused_inputs_show_no_text(run, tmp_path):
    notes, _ = write_inputs(tmp_path)
    assert run("gaps", "--notes", tmp_path / "none.csv", "--out", tmp_path / "out")[0] == 1
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine", encoding="utf-8")
    code, _, err = run("gaps", "--notes", notes, "--out", taken)
    assert code == 1 and "will not write to" in err


def report_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_wrong_fields_and_repeated_ids_are_counted(run, tmp_path):
    notes, _ = write_inputs(tmp_path)
    rows = [json.loads(line) for line in notes.read_text("utf-8").splitlines()]
    wrong = {"id": "d", "text": "Secret asthma.", "date": "2026-02-31"}
    notes.write_text(
        "\n".join(map(json.dumps, [wrong, *rows, {"id": "a", "text": "Secret anemia."}])), encoding="utf-8"
    )
    out = tmp_path / "out"
    code, printed, err = run("gaps", "--notes", notes, "--out", out)
    assert code == 1 and "3 encounters" in printed
    assert "1 encounters could not be used" in err and "1 rows with the id of an earlier row" in err
    records = [json.loads(line) for line in (out / "encounters.jsonl").read_text("utf-8").splitlines()]
    assert [record["id"] for record in records] == ["d", "a", "b", "c"]
    assert "notes.jsonl row 1: date must be" in records[0]["error"] and "Secret" not in str(records) + err
    summary = json.loads((out / "gaps.json").read_text("utf-8"))
    assert (summary["encounters"], summary["not_used"], summary["repeated_ids"]) == (3, 1, 1)


def test_a_stopped_run_continues_and_two_processes_give_the_same_report(run, tmp_path):
    notes, weights = write_inputs(tmp_path)
    rows = [json.loads(line) for line in notes.read_text("utf-8").splitlines()]
    many = [row | {"id": f"{row['id']}{number}"} for number in range(7) for row in rows]
    notes.write_text("\n".join(map(json.dumps, many)), encoding="utf-8")
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("gaps", "--notes", notes, "--out", one, "--workers", 1)[0] == 0
    whole = report_of(one)
    lines = whole["encounters.jsonl"].splitlines(keepends=True)
    assert len(lines) == 21
    assert run("gaps", "--notes", notes, "--out", two, "--workers", 2)[0] == 0
    assert report_of(two) == whole
    marked = lines[0].replace(b'"Medicine"', b'"marked"')
    (two / "encounters.jsonl").write_bytes(marked + b"".join(lines[1:5]) + lines[5][:9])
    assert run("gaps", "--notes", notes, "--out", two, "--workers", 2)[0] == 0
    assert (two / "encounters.jsonl").read_bytes() == marked + b"".join(lines[1:])  # the first was not read again
    assert b"marked" in (two / "ranked.csv").read_bytes()
    code, _, err = run("gaps", "--notes", notes, "--out", two, "--drg-weights", weights)
    assert code == 1 and "other files or with other settings" in err


def test_a_second_run_into_the_folder_is_refused(run, tmp_path):
    notes, _ = write_inputs(tmp_path)
    with exclusive_output(tmp_path / "report"):
        code, _, error = run("gaps", "--notes", notes, "--out", tmp_path / "report")
    assert code == 1 and "another process" in error and not (tmp_path / "report").exists()


@pytest.mark.parametrize("line", ["[]", '{"x": 1}', '{"id": "z"}', "7", "[" * 5000])
def test_a_damaged_record_is_no_traceback(run, tmp_path, line):
    notes, _ = write_inputs(tmp_path)
    out = tmp_path / "report"
    assert run("gaps", "--notes", notes, "--out", out)[0] == 0
    with (out / "encounters.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    code, _, error = run("gaps", "--notes", notes, "--out", out)
    assert code == 1 and "is damaged; give another folder" in error and "Traceback" not in error


def test_the_claims_use_the_verifier_of_the_coder(run, tmp_path, monkeypatch):
    used = []

    def noted(*given, **options):
        used.append(options["chooser"])
        return build_claim(*given, **options)

    monkeypatch.setattr(gap_records, "build_claim", noted)
    notes, _ = write_inputs(tmp_path)
    assert run("gaps", "--notes", notes, "--out", tmp_path / "out", "--workers", 1)[0] == 0
    assert len(used) == 3 and all(isinstance(chooser, SiblingChooser) for chooser in used)


def test_a_specialty_may_have_a_lone_surrogate(run, tmp_path):
    notes, _ = write_inputs(tmp_path)
    notes.write_text(notes.read_text("utf-8").replace('"Medicine"', '"Medi\\ud800cine"'), encoding="utf-8")
    code, printed, _ = run("gaps", "--notes", notes, "--out", tmp_path / "out")
    assert code == 0 and "3 encounters" in printed
    assert "Medi?cine" in (tmp_path / "out" / "ranked.csv").read_text("utf-8")


def test_notes_that_cannot_be_read_are_named_and_the_others_have_their_gaps(run, tmp_path):
    notes, _ = write_inputs(tmp_path)
    page = json.dumps({"id": "h", "text": "<html><body>SECRETNAME has gout</body></html>"})
    notes.write_text("\n".join([page, '{"id": "SECRETNAME', notes.read_text("utf-8")]), encoding="utf-8")
    out = tmp_path / "out"
    code, printed, err = run("gaps", "--notes", notes, "--out", out)
    assert code == 1 and "3 encounters" in printed and "SECRETNAME" not in printed + err
    assert "caution: h cannot be used: notes.jsonl row 1: the note is HTML or XML" in err
    assert "caution: notes.jsonl row 2: not a line of JSON" in err and "caution: 1 malformed rows were left out" in err
    summary = json.loads((out / "gaps.json").read_text("utf-8"))
    assert (summary["encounters"], summary["not_used"], summary["malformed_rows"]) == (3, 1, 1)
    assert "1 malformed rows" in (out / "index.html").read_text("utf-8")
    assert run("gaps", "--notes", notes, "--out", out)[0] == 1  # all encounters are done


def test_a_file_without_notes_is_named(run, tmp_path):
    (tmp_path / "notes.csv").write_text("id,text\n", encoding="utf-8")
    code, printed, err = run("gaps", "--notes", tmp_path / "notes.csv", "--out", tmp_path / "out")
    assert code == 0 and "0 encounters" in printed and err == f"caution: {tmp_path / 'notes.csv'} has no note\n"
