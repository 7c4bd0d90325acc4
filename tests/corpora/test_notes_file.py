import gzip
import io
import json
import os
import tempfile

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from nosology.core import Code, DataError, Evidence, Note
from nosology.corpora.notes_file import note_from_json, note_to_json, read_notes, read_well_formed_notes
from nosology.corpora.plain_text import count_controls
from nosology.corpora.text_files import InputFile
from nosology.corpora.validation import RecordValidator

NOTE = {
    "id": 7,
    "text": "Heart failure.\r\nNo fever.",
    "patient": 12,
    "site": "north",
    "split": "val",
    "lang": "en",
    "codes": [{"system": "icd10cm", "code": "i509"}, {"system": "icd9proc", "code": "39.95"}],
    "evidence": [{"system": "icd10cm", "code": "I50.9", "start": 0, "end": 13, "coder": "x"}],
    "ward": {"floor": 3},
}


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_every_field_is_read_and_unknown_ones_are_kept(tmp_path):
    (note,) = read_notes(lines(tmp_path / "a.jsonl", NOTE))
    assert note == Note(
        id="7",
        text="Heart failure.\r\nNo fever.",
        patient="12",
        site="north",
        split="dev",
        lang="en",
        codes=(Code("icd10cm", "I50.9"), Code("icd9proc", "39.95")),
        evidence=(Evidence(Code("icd10cm", "I50.9"), 0, 13, {"coder": "x"}),),
        extra={"ward": {"floor": 3}},
    )


@settings(max_examples=50, deadline=None)
@given(
    text=st.text(),
    extra=st.dictionaries(
        st.text(min_size=1).filter(lambda key: key not in note_to_json(Note("a", ""))), st.integers()
    ),
)
def test_json_round_trip(text, extra):
    assume(not count_controls(text))  # binary data, which keeps its zeros
    note = note_from_json({"id": "a", "text": text, **extra}, RecordValidator())
    assert note.text == text.replace("\x00", " ")
    assert note_from_json(json.loads(json.dumps(note_to_json(note)))) == note


def test_csv_parquet_and_gzip_give_the_notes_of_json(tmp_path):
    (expected,) = read_notes(lines(tmp_path / "a.jsonl", NOTE))
    columns = {key: json.dumps(value) if key in ("codes", "evidence") else value for key, value in NOTE.items()}
    columns["ward"] = "3"
    quoted = ",".join('"' + str(value).replace('"', '""') + '"' for value in columns.values())
    header = ",".join(name.upper() if name != "ward" else name for name in columns)
    (tmp_path / "a.csv").write_bytes(f"{header}\r\n{quoted}\r\n".encode())
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    parquet.write_table(pa.Table.from_pylist([NOTE]), tmp_path / "a.parquet")
    (packed,) = read_notes(tmp_path / "a.jsonl.gz")
    (stored,) = read_notes(tmp_path / "a.parquet")
    (tabular,) = read_notes(tmp_path / "a.csv")
    assert packed == stored == expected
    assert tabular.extra == {"ward": "3"}
    assert note_to_json(tabular) | {"ward": 0} == note_to_json(expected) | {"ward": 0}


@pytest.mark.parametrize(
    "cell", ["I10; E11.9", "I10 E11.9", "icd10cm:I10,icd10cm:E119", "I10|E11.9/I10", '["I10", "E11.9"]']
)
def test_codes_of_a_csv_cell(tmp_path, cell):
    (tmp_path / "a.csv").write_text('id;text;codes\n1;word;"{}"\n'.format(cell.replace('"', '""')))
    (note,) = read_notes(tmp_path / "a.csv", system="icd10cm")
    assert note.codes == (Code("icd10cm", "I10"), Code("icd10cm", "E11.9"))


def test_nul_bytes_and_lone_surrogates_keep_offsets(tmp_path):
    validator = RecordValidator()
    note = {"id": 1, "text": "a\x00b\ud800c", "evidence": [{"system": "icd10cm", "code": "I10", "start": 4, "end": 5}]}
    (read,) = read_notes(lines(tmp_path / "a.jsonl", note), validator)
    assert read.text == "a b\ufffdc"
    assert read.text[read.evidence[0].start] == "c"
    assert validator.issues == {"bad_characters": {"count": 1, "first": ["a.jsonl row 1"]}}


def test_lines_that_are_not_utf8_are_windows_1252(tmp_path):
    validator = RecordValidator()
    (tmp_path / "a.jsonl").write_bytes(
        '\ufeff{"id": 1, "text": "señal"}\n'.encode() + '{"id": 2, "text": "señal €"}\n'.encode("cp1252")
    )
    assert [note.text for note in read_notes(tmp_path / "a.jsonl", validator)] == ["señal", "señal €"]
    assert validator.issues == {"encoding": {"count": 1, "first": ["a.jsonl line 2"]}}


def test_unicode_line_separators_do_not_end_a_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert [note.text for note in read_notes(tmp_path / "a.jsonl")] == ["a\u2028b\x85c"]


def test_issues_are_counted_with_file_and_row(tmp_path):
    validator = RecordValidator(check_codes=True)
    path = lines(
        tmp_path / "a.jsonl",
        {"id": 1, "text": "word", "codes": [{"system": "icd10cm", "code": code} for code in ("I10", "I10.", "???")]},
        {"id": 2, "text": " \n"},
        {"id": 1, "text": "other"},
        {"id": 3, "text": "word", "codes": [{"system": "icd10cm", "code": "Z99.77"}]},
        {"id": 4, "text": "word", "evidence": [{"system": "icd10cm", "code": "I10", "start": 2, "end": 5}]},
    )
    notes = list(read_notes(path, validator))
    assert [note.id for note in notes] == ["1", "3", "4"]
    assert notes[0].codes == (Code("icd10cm", "I10"),)
    assert notes[1].codes == (Code("icd10cm", "Z99.77"),)
    assert {kind: issue["first"] for kind, issue in validator.issues.items()} == {
        "malformed_code": ["a.jsonl row 1"],
        "repeated_code": ["a.jsonl row 1"],
        "empty_note": ["a.jsonl row 2"],
        "duplicate_id": ["a.jsonl row 3"],
        "unknown_code": ["a.jsonl row 4"],
        "bad_evidence": ["a.jsonl row 5"],
    }


def test_without_a_validator_every_note_is_returned_in_order(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"id": 1, "text": ""}, {"id": 1, "text": "word"}, {"id": 2, "text": None})
    assert [(note.id, note.text) for note in read_notes(path)] == [("1", ""), ("1", "word"), ("2", "")]


def test_a_repeated_key_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "secret", "text": "cough"}')
    with pytest.raises(DataError, match=r"a\.jsonl row 1: not a line of JSON \(a key is given twice\)"):
        list(read_notes(tmp_path / "a.jsonl"))


def test_coded_false_ignores_codes(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"id": 1, "text": "word", "codes": ["???"], "evidence": 3, "ward": 2})
    assert list(read_notes(path, coded=False)) == [Note("1", "word", extra={"ward": 2})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "text": "secret"\n', "row 1: not a line of JSON"),
        ("[" * 100_000 + "\n", "row 1: not a line of JSON"),
        ("9" * 5000 + "\n", "row 1: not a line of JSON (nested too deep, or a number too long)"),
        ("[1]\n", "row 1: must be a JSON object"),
        ('\n{"text": "secret"}\n', "row 2: id is missing"),
        ('{"id": 1}\n', "row 1: text is missing"),
        ('{"id": 1, "text": ["secret"]}\n', "row 1: text is missing or not a string"),
        ('{"id": 1, "text": 0}\n', "row 1: text is missing or not a string"),
        ('{"id": [1], "text": "secret"}\n', "row 1: id must be text"),
        ('{"id": 1, "text": "secret", "split": "holdout"}\n', "split must be one of train, dev, test; got 'holdout'"),
        (
            '{"id": 1, "text": "x", "split": "a secret"}\n',
            "split must be one of train, dev, test; got a value of type str",
        ),
        ('{"id": 1, "text": "secret", "codes": 3}\n', "codes must be a list"),
        ('{"id": 1, "text": "secret", "codes": ["I10"]}\n', "names no system; set --system"),
        ('{"id": 1, "text": "secret", "codes": ["icd11:I10"]}\n', "system must be one of icd9cm"),
        ('{"id": 1, "text": "secret", "codes": [{"system": "icd10cm"}]}\n', "a code must be text"),
        ('{"id": 1, "text": "secret", "codes": ["icd10cm:???"]}\n', "row 1: found codes that cannot be codes"),
        ('{"id": 1, "text": "secret", "evidence": [1]}\n', "evidence must be objects"),
    ],
)
def test_invalid_json_lines_raise_data_error_without_text(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"a\.jsonl ") as caught:
        list(read_notes(tmp_path / "a.jsonl"))
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_invalid_files_raise_data_error(tmp_path):
    with pytest.raises(DataError, match="no such notes file"):
        list(read_notes(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"must end in \.jsonl"):
        list(read_notes(tmp_path / "notes.docx"))
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(read_notes(tmp_path / "a.parquet"))
    (tmp_path / "a.csv").write_text("name,text\n1,word\n")
    with pytest.raises(DataError, match=r"a\.csv row 1: missing column id; the columns are name, text"):
        list(read_notes(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("7,The patient is a secret,I10\n")
    with pytest.raises(DataError, match=r"a\.csv row 1: missing column id, text in the header$"):
        list(read_notes(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("id,text,Text\n1,word,other\n")
    with pytest.raises(DataError, match=r"a\.csv row 1: column 'text' must exist once; got it 2 times"):
        list(read_notes(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("id,text,ward,ward,,\n1,word,a,b,,\n")
    with pytest.raises(DataError, match="column 'ward' must exist once"):
        list(read_notes(tmp_path / "a.csv"))
    lines(tmp_path / "b.jsonl", *[NOTE] * 1000)
    (tmp_path / "none.jsonl.gz").write_bytes(b"\x00\x01 neither")
    with pytest.raises(DataError, match=r"none\.jsonl\.gz is not a gzip file"):
        list(read_notes(tmp_path / "none.jsonl.gz"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "b.jsonl").read_bytes())[:-20])
    with pytest.raises(DataError, match="not a complete gzip file"):
        list(read_notes(tmp_path / "b.jsonl.gz"))


WHOLE_FILES = {
    "text": ("notes.jsonl", "The patient is a secret.\n" * 3, r"row 1: not a line of JSON .*; no row of the file"),
    "a long text": ("notes.jsonl", "secret\n" * 1000, r"row 1: not a line of JSON .*; nor can any of the next 99 rows"),
    "a JSON list": ("notes.json", '[\n{"id": "1",\n"text": "secret"}\n]', r"row 1: not a line of JSON .*; no row"),
    "no header": ("notes.csv", "7,secret\n", "row 1: missing column id, text in the header"),
    # Lines of the text could pass for rows.
    "an open quote": ("notes.csv", 'id,text\n1,"word" more\n2,secret\n', "row 2: not a well-formed row"),
}


@pytest.mark.parametrize("case", WHOLE_FILES)
def test_a_file_that_is_malformed_as_a_whole_is_one_error(tmp_path, case):
    name, content, message = WHOLE_FILES[case]
    (tmp_path / name).write_text(content)
    malformed = []
    with pytest.raises(DataError, match=message) as raised:
        list(read_well_formed_notes(tmp_path / name, malformed.append))
    assert not malformed and "secret" not in str(raised.value)


def test_malformed_rows_are_left_out(tmp_path):
    (tmp_path / "notes.csv").write_text("id,text,codes\n1,word,x y z\n2,secret\n,secret,\n3,word,\n")
    malformed = []
    found = list(read_well_formed_notes(tmp_path / "notes.csv", malformed.append))
    assert [(row, note.id, note.codes) for row, note in found] == [(2, "1", ()), (5, "3", ())]
    assert [str(error) for error in malformed] == [
        "notes.csv row 3: must have 3 fields, as the header; got 2 fields",
        "notes.csv row 4: id is missing or empty",
    ]


def stream_content(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist([NOTE, NOTE | {"id": 8}]), path)
    elif suffix == ".csv":
        path.write_text("id,text,codes\n7,Heart failure.,icd10cm:I50.9\n8,Cough.,\n")
    else:
        lines(path, NOTE, NOTE | {"id": 8})
    content = path.read_bytes()
    return gzip.compress(content) if suffix.endswith(".gz") else content


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".parquet"])
def test_streams_and_bytes_give_the_notes_of_the_file(tmp_path, suffix):
    content = stream_content(tmp_path, suffix)
    path = tmp_path / f"notes{suffix}"
    path.write_bytes(content)
    expected = list(read_notes(path))
    assert len(expected) == 2
    assert list(read_notes(InputFile(content, f"notes{suffix}"))) == expected
    stream = io.BytesIO(b"before" + content)
    stream.seek(6)
    file = InputFile(stream, f"notes{suffix}")
    assert list(read_notes(file)) == list(read_notes(file)) == expected, "a seekable stream is read twice"
    assert not stream.closed
    with path.open("rb") as opened:
        assert list(read_notes(InputFile(opened))) == expected, "an open file has a name"
        assert not opened.closed
    with tempfile.SpooledTemporaryFile() as upload:
        upload.write(content)
        upload.seek(0)
        assert list(read_notes(InputFile(upload, f"notes{suffix}"))) == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_stream_without_seek_is_read(tmp_path, suffix):
    content = stream_content(tmp_path, suffix)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(content)
    with os.fdopen(reader, "rb") as pipe:
        assert [note.id for note in read_notes(InputFile(pipe, f"notes{suffix}"))] == ["7", "8"]


def test_messages_name_the_stream():
    with pytest.raises(DataError, match=r"^upload\.csv row 1: missing column id, text in the header$"):
        list(read_notes(InputFile(b"a,b\n1,2\n", "upload.csv")))
    with pytest.raises(DataError, match=r"^upload\.docx: a notes file must end in"):
        list(read_notes(InputFile(b"", "upload.docx")))


@pytest.mark.parametrize(("start", "end"), [(False, True), (0, True), (0.0, 2.0), ("0", "2")])
def test_evidence_offsets_must_be_integers(tmp_path, start, end):
    span = {"system": "icd10cm", "code": "I10", "start": start, "end": end}
    path = lines(tmp_path / "a.jsonl", {"id": 1, "text": "word", "codes": ["I10"], "evidence": [span]})
    validator = RecordValidator()
    (note,) = read_notes(path, validator, system="icd10cm")
    assert note.evidence == () and validator.issues["bad_evidence"]["count"] == 1


def test_fields_in_columns_of_other_names(tmp_path):
    rows = [{"id": 1, "enc": "a", "Note": "Fever.", "dx": ["R50.9"], "sex": "F"}]
    (tmp_path / "a.csv").write_text("id;enc;Note;dx;sex\n1;a;Fever.;R509;F\n")
    lines(tmp_path / "a.jsonl", *rows)
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    columns = {"id": "enc", "text": "Note", "codes": "dx"}
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        (note,) = read_notes(tmp_path / name, system="icd10cm", columns=columns)
        assert (note.id, note.text, note.codes, note.extra) == (
            "a",
            "Fever.",
            (Code("icd10cm", "R50.9"),),
            {"sex": "F"},
        )
        with pytest.raises(DataError, match="missing column ward"):
            list(read_notes(tmp_path / name, system="icd10cm", columns=columns | {"site": "ward"}))


def test_a_column_may_have_the_name_of_a_field_in_other_case(tmp_path):
    (tmp_path / "a.csv").write_text("ID,Text,Codes,Site,site\n1,Fever.,I10,W1,x\n")
    (note,) = read_notes(tmp_path / "a.csv", columns={"icd10cm": "Codes", "site": "Site", "patient": "ID", "id": "ID"})
    assert (note.id, note.patient, note.site, note.codes) == ("1", "1", "W1", (Code("icd10cm", "I10"),))


def test_lines_of_json_may_lack_a_column_and_are_malformed_without_that_of_the_text(tmp_path):
    columns, malformed = {"text": "note", "site": "ward"}, []
    lines(tmp_path / "a.jsonl", {"id": "1"}, {"id": "2", "note": "Fever."}, {"id": "3", "note": "Pain.", "ward": "W"})
    found = [note for _, note in read_well_formed_notes(tmp_path / "a.jsonl", malformed.append, columns)]
    assert [(note.id, note.site) for note in found] == [("2", None), ("3", "W")]
    assert [str(error) for error in malformed] == ["a.jsonl row 1: missing column note, which --column names"]
    with pytest.raises(DataError, match=r"a\.jsonl row 1: missing column note, which --column names"):
        list(read_notes(tmp_path / "a.jsonl", columns=columns))


def test_columns_of_diagnoses_and_procedures(tmp_path):
    (tmp_path / "a.csv").write_text("id;text;dx;px\n1;Fever.;I10/E119;0DTJ4ZZ\n2;Cough.;;\n")
    columns = {"icd10cm": "dx", "icd10pcs": "px"}
    validator = RecordValidator()
    one, two = read_notes(tmp_path / "a.csv", validator, columns=columns)
    assert one.codes == (Code("icd10cm", "I10"), Code("icd10cm", "E11.9"), Code("icd10pcs", "0DTJ4ZZ"))
    assert two.codes == () and one.extra == {} and validator.cautions == []
    assert [note.codes for note in read_notes(tmp_path / "a.csv", coded=False, columns=columns)] == [(), ()]


def test_a_message_about_a_missing_column_says_how_to_name_it_where_one_can(tmp_path):
    (tmp_path / "a.csv").write_text("encounter_id,note\n1,Fever.\n")
    with pytest.raises(DataError, match=r"missing column id, text in the header; --column id=NAME"):
        list(read_notes(tmp_path / "a.csv", columns={}))
    with pytest.raises(DataError, match=r"missing column id, text in the header$"):
        list(read_notes(tmp_path / "a.csv"))
