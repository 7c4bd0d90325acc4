import gzip
import json

import pytest

from nosology.core import Code, DataError, Evidence
from nosology.corpora.mimic import (
    GoldEvidence,
    age_at_admission,
    modality_of,
    read_mimic3,
    read_mimic4,
    read_mimic4_radiology,
)
from nosology.corpora.validation import RecordValidator

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
    validator = RecordValidator()
    notes = list(read_mimic4([write(tmp_path)], validator))
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
    assert {kind: issue["first"] for kind, issue in validator.issues.items()} == {
        "malformed_code": ["diagnoses_icd.csv.gz row 6", "diagnoses_icd.csv.gz row 7"],
        "empty_code": ["diagnoses_icd.csv.gz row 8"],
        "no_admission": ["discharge.csv.gz row 4"],
        "codes_without_note": ["discharge.csv.gz"],
        "repeated_code": ["discharge.csv.gz"],
    }
    assert validator.issues["codes_without_note"]["count"] == 1


def test_files_plain_or_gzipped_in_any_case_and_place(tmp_path):
    expected = list(read_mimic4([write(tmp_path)], RecordValidator()))
    other = tmp_path / "other"
    other.mkdir()
    (other / "DISCHARGE.CSV").write_text(DISCHARGE.replace("note_id,subject_id,hadm_id", "NOTE_ID,SUBJECT_ID,HADM_ID"))
    paths = [other / "DISCHARGE.CSV", tmp_path / "hosp"]
    assert list(read_mimic4(paths, RecordValidator())) == expected
    (tmp_path / "note" / "discharge.csv").write_text(DISCHARGE)
    assert list(read_mimic4([tmp_path / "note", tmp_path / "hosp"], RecordValidator())) == expected
    with pytest.raises(DataError, match="found several tables discharge"):
        list(read_mimic4([tmp_path], RecordValidator()))


def test_missing_tables_and_columns_are_named(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        list(read_mimic4([tmp_path / "none"], RecordValidator()))
    with pytest.raises(DataError, match=r"found no discharge\.csv or discharge\.csv\.gz"):
        list(read_mimic4([tmp_path], RecordValidator()))
    write(tmp_path, diagnoses="hadm_id,code,icd_version\n")
    with pytest.raises(DataError, match=r"diagnoses_icd\.csv\.gz row 1: missing column icd_code"):
        list(read_mimic4([tmp_path], RecordValidator()))
    write(tmp_path, diagnoses="hadm_id,icd_code\n")
    with pytest.raises(DataError, match="missing column icd_version"):
        list(read_mimic4([tmp_path], RecordValidator()))


def test_strict_raises_for_a_malformed_code(tmp_path):
    with pytest.raises(DataError, match=r"diagnoses_icd\.csv\.gz row 6: found codes that cannot be codes"):
        list(read_mimic4([write(tmp_path)], RecordValidator(strict=True)))


RADIOLOGY_TABLES = {
    "radiology": "note_id,subject_id,hadm_id,charttime,text\n1-RR-1,1,5,2150-12-31 10:00:00,No acute process.\n"
    "1-RR-2,1,,2150-01-01 10:00:00,Outpatient.\n2-RR-1,2,6,2160-01-01 10:00:00,Fracture.\n",
    "radiology_detail": "note_id,subject_id,field_name,field_value,field_ordinal\n"
    "1-RR-1,1,exam_name,MRI HEAD,2\n1-RR-1,1,exam_name,CT HEAD W/O CONTRAST,1\n1-RR-1,1,cpt_code,70450,1\n",
    "diagnoses_icd": "subject_id,hadm_id,seq_num,icd_code,icd_version\n1,5,1,I10,10\n",
    "procedures_icd": "subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version\n",
    "patients": "subject_id,gender,anchor_age,anchor_year\n1,F,60,2148\n",
    "admissions": "subject_id,hadm_id,admittime,admission_type\n1,5,2150-12-30 08:00:00,URGENT\n",
}


def write_radiology(folder, names):
    for name in names:
        (folder / f"{name}.csv").write_text(RADIOLOGY_TABLES[name])
    return folder


def test_reports_carry_exam_and_patient(tmp_path):
    validator = RecordValidator()
    first, second = read_mimic4_radiology([write_radiology(tmp_path, RADIOLOGY_TABLES)], validator)
    assert (first.id, first.patient, first.text, first.codes) == (
        "1-RR-1",
        "1",
        "No acute process.",
        (Code("icd10cm", "I10"),),
    )
    assert first.extra == {
        "hadm_id": "5",
        "charttime": "2150-12-31 10:00:00",
        "exam_name": "CT HEAD W/O CONTRAST; MRI HEAD",
        "modality": "CT",
        "age": 62,
        "gender": "F",
        "admission_type": "URGENT",
    }
    assert second.codes == ()
    assert second.extra["age"] is second.extra["gender"] is second.extra["modality"] is None
    assert validator.issues == {"no_admission": {"count": 1, "first": ["radiology.csv row 3"]}}


def test_optional_tables(tmp_path):
    first, _ = read_mimic4_radiology(
        [write_radiology(tmp_path, ["radiology", "diagnoses_icd", "procedures_icd"])], RecordValidator()
    )
    assert first.extra["exam_name"] is first.extra["admission_type"] is None


def test_age_without_an_admission_table_is_of_the_note(tmp_path):
    names = ["radiology", "diagnoses_icd", "procedures_icd", "patients"]
    first, _ = read_mimic4_radiology([write_radiology(tmp_path, names)], RecordValidator())
    assert first.extra["age"] == 62
    assert age_at_admission("", "2100", "2100-01-01") is None


@pytest.mark.parametrize(
    ("exam", "expected"),
    [
        ("CHEST (PORTABLE AP)", "XR"),
        ("CT ABD & PELVIS WITH CONTRAST", "CT"),
        ("CTA CHEST", "CT"),
        ("MRI BRAIN", "MR"),
        ("LIVER OR GALLBLADDER US", "US"),
        ("BILAT LOWER EXT VEINS", "US"),
        ("BILATERAL MAMMOGRAM", "MG"),
        ("FDG TUMOR IMAGING (PET-CT)", "PET"),
        ("VIDEO OROPHARYNGEAL SWALLOW", "RF"),
        ("SOMETHING ELSE", None),
        (None, None),
    ],
)
def test_modality(exam, expected):
    assert modality_of(exam) == expected


MIMIC3_NOTES = (
    '"ROW_ID","SUBJECT_ID","HADM_ID","CHARTDATE","CHARTTIME","CATEGORY","DESCRIPTION","ISERROR","TEXT"\n'
    '1,7,100,2150-01-09,,"Discharge summary","Addendum",,"added later"\n'
    '2,8,200.0,2150-01-01,,"Discharge summary","Report",,"second ""patient"""\n'
    '3,7,100,2150-01-08,,"Nursing","Report",,"not this"\n'
    '4,7,100,2150-01-07,,"Discharge summary ","Report",,"report\r\nof stay"\n'
    '5,9,,2150-01-07,,"Discharge summary","Report",,"no admission"\n'
    '6,7,100,2150-01-08,,"Discharge summary","Addendum",,"added first"\n'
)
MIMIC3_DIAGNOSES = (
    '"ROW_ID","SUBJECT_ID","HADM_ID","SEQ_NUM","ICD9_CODE"\n1,7,100,2,"4019"\n2,7,100,1,"0389"\n3,7,100,,""\n'
)
MIMIC3_PROCEDURES = '"ROW_ID","SUBJECT_ID","HADM_ID","SEQ_NUM","ICD9_CODE"\n1,7,100,1,"3893"\n'


def test_rows_of_an_admission_are_joined_report_first(tmp_path):
    for name, content in (
        ("NOTEEVENTS", MIMIC3_NOTES),
        ("DIAGNOSES_ICD", MIMIC3_DIAGNOSES),
        ("PROCEDURES_ICD", MIMIC3_PROCEDURES),
    ):
        (tmp_path / f"{name}.csv").write_bytes(content.encode())
    validator = RecordValidator()
    first, second = read_mimic3([tmp_path], validator)
    assert (first.id, first.patient) == ("100", "7")
    assert first.text == "report\r\nof stay\nadded first\nadded later"
    assert first.codes == (Code("icd9cm", "038.9"), Code("icd9cm", "401.9"), Code("icd9proc", "38.93"))
    assert first.extra == {"hadm_id": "100", "parts": 3}
    assert (second.id, second.text, second.codes) == ("200", 'second "patient"', ())
    assert "repaired_code" not in validator.issues
    assert validator.issues["empty_code"]["first"] == ["DIAGNOSES_ICD.csv row 4"]
    assert validator.issues["no_admission"]["first"] == ["NOTEEVENTS.csv row 6"]


def test_missing_leading_zeros_are_repaired_and_counted(tmp_path):
    for name, content in (
        ("NOTEEVENTS", MIMIC3_NOTES),
        ("DIAGNOSES_ICD", MIMIC3_DIAGNOSES.replace("0389", "38.9")),
        ("PROCEDURES_ICD", MIMIC3_PROCEDURES),
    ):
        (tmp_path / f"{name}.csv").write_bytes(content.encode())
    validator = RecordValidator()
    first, _ = read_mimic3([tmp_path], validator)
    assert first.codes[0] == Code("icd9cm", "038.9")
    assert validator.issues["repaired_code"] == {"count": 1, "first": ["DIAGNOSES_ICD.csv row 3"]}


def line(note_id, start=0):
    return {
        "note_id": note_id,
        "site": "north",
        "evidence": [{"system": "icd10cm", "code": "I10", "start": start, "end": 4, "kind": "named"}],
    }


def test_gold_evidence_is_found_in_any_order_and_not_held_if_in_order(tmp_path):
    (tmp_path / "gold").mkdir()
    records = [line("a"), line("b", start=9), line("c", start=1)]
    (tmp_path / "gold" / "evidence.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    validator = RecordValidator()
    gold = GoldEvidence([tmp_path], validator)
    assert gold.lookup("a", "word") == ("north", (Evidence(Code("icd10cm", "I10"), 0, 4, {"kind": "named"}),))
    assert gold._read_ahead == {}
    assert gold.lookup("c", "word")[1][0].start == 1
    assert gold.lookup("b", "word") == ("north", ())
    assert gold.lookup("d", "word") == (None, ())
    assert validator.issues == {"bad_evidence": {"count": 1, "first": ["evidence.jsonl row 2"]}}


def test_gold_evidence_without_a_file_is_empty(tmp_path):
    assert GoldEvidence([tmp_path], RecordValidator()).lookup("a", "word") == (None, ())


def test_invalid_evidence_line_is_an_error(tmp_path):
    (tmp_path / "evidence.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(DataError, match=r"evidence\.jsonl row 1: note_id must be text"):
        GoldEvidence([tmp_path], RecordValidator()).lookup("a", "word")
