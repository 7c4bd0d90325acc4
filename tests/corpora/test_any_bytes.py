"""Readers of damaged files return valid notes or raise DataError without note text; they never crash."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import SYSTEMS, DataError
from nosology.corpora.cmc2007 import read_cmc2007
from nosology.corpora.codiesp import read_codiesp
from nosology.corpora.mimic import read_mimic3, read_mimic4, read_mimic4_radiology
from nosology.corpora.notes_file import read_notes_files
from nosology.corpora.validation import RecordValidator

TEXT = "xyzzy plugh"
TABLES = {
    "radiology": f"note_id,subject_id,hadm_id,charttime,text\n1-RR-1,1,5,2150-12-31,{TEXT}\n",
    "discharge": f"note_id,subject_id,hadm_id,charttime,text\n1-DS-1,1,5,2150-12-31,{TEXT}\n",
    "radiology_detail": "note_id,field_name,field_value,field_ordinal\n1-RR-1,exam_name,CT,1\n",
    "diagnoses_icd": "hadm_id,seq_num,icd_code,icd_version,icd9_code\n5,1,I10,10,4019\n",
    "procedures_icd": "hadm_id,seq_num,icd_code,icd_version,icd9_code\n5,1,3893,9,3893\n",
    "patients": "subject_id,gender,anchor_age,anchor_year\n1,F,60,2148\n",
    "admissions": "hadm_id,admittime,admission_type\n5,2150-12-30,URGENT\n",
    "noteevents": f"subject_id,hadm_id,category,text,description,chartdate\n1,5,Discharge summary,{TEXT},Report,2150\n",
}
READERS = {"mimic4": read_mimic4, "mimic4-radiology": read_mimic4_radiology, "mimic3": read_mimic3}
NOTES_FILES = {
    "jsonl": f'{{"id": 1, "text": "{TEXT}", "codes": [{{"system": "icd10cm", "code": "I10"}}]}}\n',
    "csv": f"id,text,codes\n1,{TEXT},icd10cm:I10\n",
}
XML = f'<docs><doc id="1"><texts><text type="IMPRESSION">{TEXT}</text></texts></doc></docs>'
CODIESP = {
    "text_files/S-1.txt": f"señal {TEXT}\r\n",
    "devD.tsv": "S-1\ti10\n",
    "devX.tsv": "S-1\tDIAGNOSTICO\ti10\tword\t0 3;4 5\n",
}


@st.composite
def damaged(draw, content):
    """The bytes of a text with a part replaced, or with other bytes appended."""
    original = content.encode()
    start = draw(st.integers(0, len(original)))
    end = draw(st.integers(start, len(original)))
    pieces = st.sampled_from([b'"', b"\x00", b"\xff\xfe", b"\r", b"\n", b",", b"\t", b"[", b"{", b"NaN", b"\x1f\x8b"])
    return (
        original[:start] + draw(st.binary(max_size=8) | pieces | pieces.map(lambda piece: piece * 50)) + original[end:]
    )


def write(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def check(notes):
    """The notes, if they are valid; [] after a DataError whose message has no note text."""
    try:
        notes = list(notes)
    except DataError as error:
        assert TEXT not in str(error)
        return []
    assert len({note.id for note in notes}) == len(notes)
    for note in notes:
        assert note.id and note.text.strip() and "\x00" not in note.text
        assert {code.system for code in note.codes} <= set(SYSTEMS)
        assert all(0 <= item.start < item.end <= len(note.text) for item in note.evidence)
    return notes


def test_undamaged_files_give_notes(tmp_path):
    write(tmp_path / "mimic", {f"{name}.csv": content for name, content in TABLES.items()})
    write(tmp_path, {f"a.{suffix}": content for suffix, content in NOTES_FILES.items()} | {"a.xml": XML})
    write(tmp_path / "codiesp" / "dev", CODIESP)
    streams = [reader([tmp_path / "mimic"], RecordValidator()) for reader in READERS.values()]
    streams += [read_notes_files([tmp_path / f"a.{suffix}"], RecordValidator()) for suffix in NOTES_FILES]
    streams.append(read_cmc2007([tmp_path / "a.xml"], RecordValidator()))
    streams.append(read_codiesp([tmp_path / "codiesp"], RecordValidator()))
    for notes in streams:
        (note,) = check(notes)
        assert TEXT in note.text


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mimic(tmp_path_factory, kind, data):
    folder = tmp_path_factory.mktemp(kind)
    broken = data.draw(st.sampled_from(sorted(TABLES)))
    write(
        folder, {f"{n}.csv": data.draw(damaged(content)) if n == broken else content for n, content in TABLES.items()}
    )
    check(READERS[kind]([folder], RecordValidator()))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_table(tmp_path_factory, suffix, data):
    folder = tmp_path_factory.mktemp("table")
    write(folder, {f"a.{suffix}": data.draw(damaged(NOTES_FILES["csv" if suffix == "csv" else "jsonl"]))})
    check(read_notes_files([folder / f"a.{suffix}"], RecordValidator(), system="icd10cm"))


@settings(max_examples=60, deadline=None)
@given(content=damaged(XML))
def test_cmc2007(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("cmc")
    write(folder, {"a.xml": content})
    check(read_cmc2007([folder / "a.xml"], RecordValidator()))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_codiesp(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("codiesp")
    write(folder / "dev", {name: data.draw(damaged(content)) for name, content in CODIESP.items()})
    check(read_codiesp([folder], RecordValidator()))
