"""`nosology gaps`: the files of the report, who can read them, and refused inputs."""

from __future__ import annotations

import csv
import json

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
    assert code == 1 and "will not overwrite" in err
    notes.write_text(json.dumps({"id": "a", "text": "Secret asthma.", "setting": "home"}), encoding="utf-8")
    code, _, err = run("gaps", "--notes", notes, "--out", tmp_path / "out")
    assert code == 1 and "note 1: setting must be one of" in err and "Secret" not in err
