"""The files of the simulated hospital, and the corpus prepared from them."""

import csv
import gzip
import json
import os
from functools import partial

import pytest

import nosology.corpora.simulate as simulation
from nosology.core import ConfigError, OutputError
from nosology.corpora.prepare import prepare
from nosology.corpora.simulate import MARKER, simulate, simulate_notes
from nosology.corpora.simulate.hospital import FILES

PATIENTS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("hospital") / "sim"
    simulate(PATIENTS, 11, out)
    return out


def rows(folder, name):
    with gzip.open(folder / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_files_have_the_columns_of_mimic4(folder):
    for name, columns in FILES.items():
        with gzip.open(folder / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
            assert file.readline().strip().split(",") == columns
    about = json.loads((folder / MARKER).read_text())
    assert about["rows"]["hosp/patients"] == PATIENTS
    assert {name: len(rows(folder, name)) for name in FILES} == {n: about["rows"].get(n, 0) for n in FILES}


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_seed_gives_the_same_bytes(folder, tmp_path):
    simulate(PATIENTS, 11, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(folder)


def elsewhere(process, work, *given):
    """The work, which must be done by another process."""
    assert os.getpid() != process
    return work(*given)


def test_several_processes_write_the_same_bytes_in_the_order_of_the_patients(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "PART_PATIENTS", 2)
    simulate(PATIENTS, 11, tmp_path / "one")
    work = simulation._rows_of_patients
    monkeypatch.setattr(simulation, "_rows_of_patients", partial(elsewhere, os.getpid(), work))
    simulate(PATIENTS, 11, tmp_path / "two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert [row["subject_id"] for row in rows(tmp_path / "two", "hosp/patients")] == [
        str(10_000_000 + index) for index in range(PATIENTS)
    ]


def test_larger_hospital_contains_the_patients_of_a_smaller_one(folder, tmp_path):
    simulate(PATIENTS + 5, 11, tmp_path / "more")
    for name in ("note/discharge", "hosp/diagnoses_icd", "note/radiology_detail"):
        few = rows(folder, name)
        assert rows(tmp_path / "more", name)[: len(few)] == few


def test_tables_agree(folder):
    patients = {row["subject_id"]: row for row in rows(folder, "hosp/patients")}
    admissions = {row["hadm_id"]: row for row in rows(folder, "hosp/admissions")}
    titles = {
        (r["icd_code"], r["icd_version"]) for t in ("diagnoses", "procedures") for r in rows(folder, f"hosp/d_icd_{t}")
    }
    known = [(row["icd_code"], row["icd_version"]) in titles for row in rows(folder, "hosp/diagnoses_icd")]
    assert sum(known) > 0.98 * len(known)  # a few codes are in no title table, as in the real one
    for name in ("note/discharge", "note/radiology", "hosp/diagnoses_icd", "hosp/procedures_icd"):
        for row in rows(folder, name):
            assert row["subject_id"] in patients
            assert not row["hadm_id"] or admissions[row["hadm_id"]]["subject_id"] == row["subject_id"]
    for row in admissions.values():
        assert row["admittime"] < row["dischtime"]
        assert (row["hospital_expire_flag"] == "1") == bool(row["deathtime"])
        age = int(patients[row["subject_id"]]["anchor_age"])
        year = int(row["admittime"][:4]) - int(patients[row["subject_id"]]["anchor_year"])
        assert 18 <= age + year <= 105
    details = {row["note_id"] for row in rows(folder, "note/radiology_detail")}
    assert details == {row["note_id"] for row in rows(folder, "note/radiology")}
    assert any(not row["hadm_id"] for row in rows(folder, "note/radiology"))


def test_corpus_of_the_files_equals_the_stream(folder, tmp_path):
    corpus = prepare("mimic4", [folder], tmp_path / "corpus")
    read = {note.id: note for note in corpus.notes()}
    simulated = list(simulate_notes(PATIENTS, 11))
    assert len(read) == len(simulated)
    for note in simulated:
        other = read[note.id]
        assert other.text == note.text
        assert (other.patient, other.site, set(other.codes)) == (note.patient, note.site, set(note.codes))
        spans = {(e.code, e.start, e.end) for e in note.evidence}
        assert {(e.code, e.start, e.end) for e in other.evidence} == spans


def test_invalid_arguments_raise_an_error(tmp_path):
    with pytest.raises(ConfigError, match="layout must be one of mimic4; got mimic3"):
        simulate(1, 0, tmp_path / "x", layout="mimic3")
    for patients in (0, 10**20):
        with pytest.raises(ConfigError, match=f"patients must be from 1 to 100,000,000; got {patients}"):
            simulate(patients, 0, tmp_path / "x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.txt").write_text("precious")
    with pytest.raises(OutputError, match="will not overwrite"):
        simulate(1, 0, tmp_path / "mine")
    assert not (tmp_path / "x").exists()
