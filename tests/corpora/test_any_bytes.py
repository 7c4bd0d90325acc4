"""A reader of any bytes returns notes or raises DataError; it never crashes."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import DataError, Note
from nosology.corpora.cmc2007 import read_cmc2007
from nosology.corpora.codiesp import read_codiesp
from nosology.corpora.mimic import read_mimic3, read_mimic4, read_mimic4_radiology
from nosology.corpora.notes_file import read_notes_files
from nosology.corpora.validation import RecordValidator

HEADERS = {
    "radiology": b"note_id,subject_id,hadm_id,charttime,text\n1-RR-1,1,5,2150-12-31,word\n",
    "discharge": b"note_id,subject_id,hadm_id,charttime,text\n1-DS-1,1,5,2150-12-31,word\n",
    "radiology_detail": b"note_id,field_name,field_value,field_ordinal\n1-RR-1,exam_name,CT,1\n",
    "diagnoses_icd": b"hadm_id,seq_num,icd_code,icd_version,icd9_code\n5,1,I10,10,4019\n",
    "procedures_icd": b"hadm_id,seq_num,icd_code,icd_version,icd9_code\n5,1,3893,9,3893\n",
    "patients": b"subject_id,gender,anchor_age,anchor_year\n1,F,60,2148\n",
    "admissions": b"hadm_id,admittime,admission_type\n5,2150-12-30,URGENT\n",
    "noteevents": b"subject_id,hadm_id,category,text,description,chartdate\n1,5,Discharge summary,word,Report,2150\n",
}
READERS = {"mimic4": read_mimic4, "mimic4-radiology": read_mimic4_radiology, "mimic3": read_mimic3}
JSON_LINE = b'{"id": 1, "text": "word", "codes": [{"system": "icd10cm", "code": "I10"}]}\n'
XML = b'<docs><doc id="1"><texts><text type="IMPRESSION">word</text></texts></doc></docs>'


@st.composite
def damaged(draw, whole):
    """The bytes with a part replaced, or with other bytes appended."""
    start = draw(st.integers(0, len(whole)))
    end = draw(st.integers(start, len(whole)))
    pieces = st.sampled_from([b'"', b"\x00", b"\xff\xfe", b"\r", b"\n", b",", b"\t", b"[", b"{", b"NaN", b"\x1f\x8b"])
    return whole[:start] + draw(st.binary(max_size=8) | pieces | pieces.map(lambda piece: piece * 50)) + whole[end:]


def reads_or_refuses(notes):
    with contextlib.suppress(DataError):
        assert all(isinstance(note, Note) for note in notes)


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mimic(tmp_path_factory, kind, data):
    folder = tmp_path_factory.mktemp(kind)
    broken = data.draw(st.sampled_from(sorted(HEADERS)))
    for name, content in HEADERS.items():
        (folder / f"{name}.csv").write_bytes(data.draw(damaged(content)) if name == broken else content)
    reads_or_refuses(READERS[kind]([folder], RecordValidator()))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_table(tmp_path_factory, suffix, data):
    path = tmp_path_factory.mktemp("table") / f"a.{suffix}"
    path.write_bytes(data.draw(damaged(b"id,text,codes\n1,word,icd10cm:I10\n" if suffix == "csv" else JSON_LINE)))
    reads_or_refuses(read_notes_files([path], RecordValidator(), system="icd10cm"))


@settings(max_examples=60, deadline=None)
@given(content=damaged(XML))
def test_cmc2007(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("cmc") / "a.xml"
    path.write_bytes(content)
    reads_or_refuses(read_cmc2007([path], RecordValidator()))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_codiesp(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("codiesp") / "dev"
    (folder / "text_files").mkdir(parents=True)
    (folder / "text_files" / "S-1.txt").write_bytes(data.draw(damaged("señal\r\n".encode())))
    (folder / "devD.tsv").write_bytes(data.draw(damaged(b"S-1\ti10\n")))
    (folder / "devX.tsv").write_bytes(data.draw(damaged(b"S-1\tDIAGNOSTICO\ti10\tword\t0 3;4 5\n")))
    reads_or_refuses(read_codiesp([folder.parent], RecordValidator()))
