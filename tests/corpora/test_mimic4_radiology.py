import pytest

from nosology.core import Code
from nosology.corpora import mimic4_radiology
from nosology.corpora.intake import Intake
from nosology.corpora.mimic4_radiology import age, modality

TABLES = {
    "radiology": "note_id,subject_id,hadm_id,charttime,text\n1-RR-1,1,5,2150-12-31 10:00:00,No acute process.\n"
    "1-RR-2,1,,2150-01-01 10:00:00,Outpatient.\n2-RR-1,2,6,2160-01-01 10:00:00,Fracture.\n",
    "radiology_detail": "note_id,subject_id,field_name,field_value,field_ordinal\n"
    "1-RR-1,1,exam_name,MRI HEAD,2\n1-RR-1,1,exam_name,CT HEAD W/O CONTRAST,1\n1-RR-1,1,cpt_code,70450,1\n",
    "diagnoses_icd": "subject_id,hadm_id,seq_num,icd_code,icd_version\n1,5,1,I10,10\n",
    "procedures_icd": "subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version\n",
    "patients": "subject_id,gender,anchor_age,anchor_year\n1,F,60,2148\n",
    "admissions": "subject_id,hadm_id,admittime,admission_type\n1,5,2150-12-30 08:00:00,URGENT\n",
}


def write(folder, names):
    for name in names:
        (folder / f"{name}.csv").write_text(TABLES[name])
    return folder


def test_reports_carry_exam_and_patient(tmp_path):
    intake = Intake()
    first, second = mimic4_radiology.read([write(tmp_path, TABLES)], intake)
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
    assert intake.troubles == {"no_admission": {"count": 1, "first": ["radiology.csv row 3"]}}


def test_tables_that_may_be_missing(tmp_path):
    first, _ = mimic4_radiology.read([write(tmp_path, ["radiology", "diagnoses_icd", "procedures_icd"])], Intake())
    assert first.extra["exam_name"] is first.extra["admission_type"] is None


def test_age_without_an_admission_table_is_of_the_note(tmp_path):
    names = ["radiology", "diagnoses_icd", "procedures_icd", "patients"]
    first, _ = mimic4_radiology.read([write(tmp_path, names)], Intake())
    assert first.extra["age"] == 62
    assert age("", "2100", "2100-01-01") is None


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
    assert modality(exam) == expected
