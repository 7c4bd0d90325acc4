import gzip

import pytest

from nosology.core import Code, DataError
from nosology.corpora import mimic4
from nosology.corpora.intake import Intake

DISCHARGE = (
    "note_id,subject_id,hadm_id,note_type,note_seq,charttime,storetime,text\n"
    '10-DS-1,10,20,DS,1,2150-01-02 00:00:00,,"Name: ___\n\nHe said ""no"".\n"\n'
    "11-DS-1,11,21,DS,1,2150-01-03 00:00:00,,Asthma\n"
    "12-DS-1,12,,DS,1,2150-01-03 00:00:00,,No admission\n"
    "11-DS-2,11,22,DS,2,2150-01-03 00:00:00,,Uncoded\n"
)
DIAGNOSES = (
    "subject_id,hadm_id,seq_num,icd_code,icd_version\n"
    "10,20,2,I10  ,10\n10,20,1,I509,10\n11,21,1,0389 ,9\n11,21,2,0389,9\n11,21,3,???,10\n"
    "11,21,4,I10,11\n10,20,3,,10\n99,99,1,I10,10\n"
)
PROCEDURES = "icd_version,icd_code,chartdate,seq_num,hadm_id,subject_id\n10,02HV33Z,,1,20,10\n9,0066,,1,21,11\n"


def write(folder, discharge=DISCHARGE, diagnoses=DIAGNOSES, procedures=PROCEDURES):
    for name, content in (
        ("note/discharge", discharge),
        ("hosp/diagnoses_icd", diagnoses),
        ("hosp/procedures_icd", procedures),
    ):
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content.encode()))
    return folder


def test_notes_get_the_codes_of_their_admission_in_order(tmp_path):
    intake = Intake()
    notes = list(mimic4.read([write(tmp_path)], intake))
    assert [(note.id, note.patient, note.extra["hadm_id"]) for note in notes] == [
        ("10-DS-1", "10", "20"),
        ("11-DS-1", "11", "21"),
        ("11-DS-2", "11", "22"),
    ]
    assert notes[0].text == 'Name: ___\n\nHe said "no".\n'
    assert notes[0].extra["charttime"] == "2150-01-02 00:00:00"
    assert notes[0].codes == (Code("icd10cm", "I50.9"), Code("icd10cm", "I10"), Code("icd10pcs", "02HV33Z"))
    assert notes[1].codes == (Code("icd9cm", "038.9"), Code("icd9proc", "00.66"))
    assert notes[2].codes == ()
    assert {kind: found["first"] for kind, found in intake.troubles.items()} == {
        "malformed_code": ["diagnoses_icd.csv.gz row 6", "diagnoses_icd.csv.gz row 7"],
        "empty_code": ["diagnoses_icd.csv.gz row 8"],
        "no_admission": ["discharge.csv.gz row 4"],
        "codes_without_note": ["discharge.csv.gz"],
        "repeated_code": ["discharge.csv.gz"],
    }
    assert intake.troubles["codes_without_note"]["count"] == 1


def test_files_plain_or_gzipped_in_any_case_and_place(tmp_path):
    expected = list(mimic4.read([write(tmp_path)], Intake()))
    other = tmp_path / "other"
    other.mkdir()
    (other / "DISCHARGE.CSV").write_text(DISCHARGE.replace("note_id,subject_id,hadm_id", "NOTE_ID,SUBJECT_ID,HADM_ID"))
    paths = [other / "DISCHARGE.CSV", tmp_path / "hosp"]
    assert list(mimic4.read(paths, Intake())) == expected
    (tmp_path / "note" / "discharge.csv").write_text(DISCHARGE)
    assert list(mimic4.read([tmp_path / "note", tmp_path / "hosp"], Intake())) == expected
    with pytest.raises(DataError, match="found several tables discharge"):
        list(mimic4.read([tmp_path], Intake()))


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        list(mimic4.read([tmp_path / "none"], Intake()))
    with pytest.raises(DataError, match=r"found no discharge\.csv or discharge\.csv\.gz"):
        list(mimic4.read([tmp_path], Intake()))
    write(tmp_path, diagnoses="hadm_id,code,icd_version\n")
    with pytest.raises(DataError, match=r"diagnoses_icd\.csv\.gz row 1: missing column icd_code"):
        list(mimic4.read([tmp_path], Intake()))
    write(tmp_path, diagnoses="hadm_id,icd_code\n")
    with pytest.raises(DataError, match="missing column icd_version"):
        list(mimic4.read([tmp_path], Intake()))


def test_strict_stops_at_a_code_that_would_be_lost(tmp_path):
    with pytest.raises(DataError, match=r"diagnoses_icd\.csv\.gz row 6: found codes that cannot be codes"):
        list(mimic4.read([write(tmp_path)], Intake(strict=True)))
