from nosology.core import Code
from nosology.corpora import mimic3
from nosology.corpora.intake import Intake

NOTES = (
    '"ROW_ID","SUBJECT_ID","HADM_ID","CHARTDATE","CHARTTIME","CATEGORY","DESCRIPTION","ISERROR","TEXT"\n'
    '1,7,100,2150-01-09,,"Discharge summary","Addendum",,"added later"\n'
    '2,8,200.0,2150-01-01,,"Discharge summary","Report",,"second ""patient"""\n'
    '3,7,100,2150-01-08,,"Nursing","Report",,"not this"\n'
    '4,7,100,2150-01-07,,"Discharge summary ","Report",,"report\r\nof stay"\n'
    '5,9,,2150-01-07,,"Discharge summary","Report",,"no admission"\n'
    '6,7,100,2150-01-08,,"Discharge summary","Addendum",,"added first"\n'
)
DIAGNOSES = '"ROW_ID","SUBJECT_ID","HADM_ID","SEQ_NUM","ICD9_CODE"\n1,7,100,2,"4019"\n2,7,100,1,"0389"\n3,7,100,,""\n'
PROCEDURES = '"ROW_ID","SUBJECT_ID","HADM_ID","SEQ_NUM","ICD9_CODE"\n1,7,100,1,"3893"\n'


def test_rows_of_an_admission_are_joined_report_first(tmp_path):
    for name, content in (("NOTEEVENTS", NOTES), ("DIAGNOSES_ICD", DIAGNOSES), ("PROCEDURES_ICD", PROCEDURES)):
        (tmp_path / f"{name}.csv").write_bytes(content.encode())
    intake = Intake()
    first, second = mimic3.read([tmp_path], intake)
    assert (first.id, first.patient) == ("100", "7")
    assert first.text == "report\r\nof stay\nadded first\nadded later"
    assert first.codes == (Code("icd9cm", "038.9"), Code("icd9cm", "401.9"), Code("icd9proc", "38.93"))
    assert first.extra == {"hadm_id": "100", "parts": 3}
    assert (second.id, second.text, second.codes) == ("200", 'second "patient"', ())
    assert "repaired_code" not in intake.troubles
    assert intake.troubles["empty_code"]["first"] == ["DIAGNOSES_ICD.csv row 4"]
    assert intake.troubles["no_admission"]["first"] == ["NOTEEVENTS.csv row 6"]


def test_leading_zeros_that_were_lost_are_restored_and_counted(tmp_path):
    for name, content in (
        ("NOTEEVENTS", NOTES),
        ("DIAGNOSES_ICD", DIAGNOSES.replace("0389", "38.9")),
        ("PROCEDURES_ICD", PROCEDURES),
    ):
        (tmp_path / f"{name}.csv").write_bytes(content.encode())
    intake = Intake()
    first, _ = mimic3.read([tmp_path], intake)
    assert first.codes[0] == Code("icd9cm", "038.9")
    assert intake.troubles["repaired_code"] == {"count": 1, "first": ["DIAGNOSES_ICD.csv row 3"]}
