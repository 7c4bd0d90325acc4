import codecs
import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import DataError
from nosology.corpora import text_files
from nosology.corpora.text_files import columns, decode, note_text, table_rows, text_lines
from nosology.corpora.validation import RecordValidator


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=6))
def test_any_bytes_become_text_with_their_line_ends(tmp_path_factory, parts):
    raw = b"\r\n".join(parts)
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(b"x" + raw)
    read = list(text_lines(path, RecordValidator()))
    assert "".join(read) == "".join(decode(line + b"\n")[0] for line in (b"x" + raw).split(b"\n"))[:-1]
    assert all(line.endswith("\n") for line in read[:-1])


def test_lines_do_not_depend_on_blocks(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes("\n".join(["ñandú"] * 40).encode() + "\nñ\nlast".encode("cp1252"))
    whole_validator, blocks_validator = RecordValidator(), RecordValidator()
    lines = list(text_lines(path, whole_validator))
    monkeypatch.setattr(text_files, "_BLOCK", 7)
    assert list(text_lines(path, blocks_validator)) == lines
    assert blocks_validator.issues == whole_validator.issues == {"encoding": {"count": 1, "first": ["a.txt line 41"]}}


def test_gzip_is_detected_by_content(tmp_path):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"a\n1\n"))
    (tmp_path / "b.csv.gz").write_bytes(b"a\n1\n")
    for name in ("a.csv", "b.csv.gz"):
        assert list(table_rows(tmp_path / name, RecordValidator())) == [(1, ["a"]), (2, ["1"])]


def test_columns_in_any_order_and_case_with_quoted_line_ends(tmp_path):
    (tmp_path / "a.csv").write_bytes(
        b'TEXT,"Hadm_ID",x\r\n"one\r\n""two"", \r three\x00",7,\r\n\r\n"long","8"\r\nb,9,\r\n'
    )
    validator = RecordValidator()
    rows = list(columns(tmp_path / "a.csv", validator, ["hadm_id", "text"], ["seq"]))
    assert rows == [(2, ("7", 'one\r\n"two", \r three\x00', "")), (5, ("9", "b", ""))]
    assert validator.issues == {"ragged_row": {"count": 1, "first": ["a.csv row 4"]}}


def test_a_note_of_a_hundred_thousand_words_passes(tmp_path):
    text = "word " * 100_000
    (tmp_path / "a.csv").write_text(f'id,text\n1,"{text}"\n')
    assert [fields[1] for _, fields in table_rows(tmp_path / "a.csv", RecordValidator())][1] == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; it must have a header row"),
        (b"\xff\xfei\x00d\x00", "is UTF-16; save it as UTF-8"),
        (b'a,b\n1,"secret\n2,3\n', r"a\.csv row 2: not a well-formed row"),
        (b'a,b\n1,2\n1,"secret" 2\n', r"a\.csv row 3: not a well-formed row"),
    ],
)
def test_invalid_tables_raise_data_error(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(table_rows(tmp_path / "a.csv", RecordValidator()))
    assert "secret" not in str(caught.value)


def test_a_quote_that_never_closes_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_LONGEST", 1000)
    (tmp_path / "a.csv").write_text('a\n"' + "secret\n" * 1000)
    with pytest.raises(DataError, match=r"a\.csv row 2: a row of more than 0 MB"):
        list(table_rows(tmp_path / "a.csv", RecordValidator()))


def test_a_file_without_line_feeds_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_BLOCK", 100)
    monkeypatch.setattr(text_files, "_LONGEST", 1000)
    (tmp_path / "a.csv").write_text("id\n" + "secret\r" * 1000)
    with pytest.raises(DataError, match=r"a\.csv line 2: a line of more than"):
        list(text_lines(tmp_path / "a.csv", RecordValidator()))


def test_a_line_that_is_not_utf8_is_counted_by_its_line_not_its_row(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"two\nlines"\n2,caf\xe9\n')
    validator = RecordValidator()
    assert [row for row, _ in table_rows(tmp_path / "a.csv", validator)] == [1, 2, 3]
    assert validator.issues["encoding"]["first"] == ["a.csv line 4"]


NOTE = "Fiebre y neumonía. Temperature 39 °C.\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_note_text_reads_the_encodings_of_text_files(encoding):
    assert note_text(NOTE.encode(encoding), "note.txt") == NOTE
    marked = codecs.BOM_UTF16_BE + NOTE.encode("utf-16-be")
    assert note_text(marked, "note.txt") == NOTE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"%PDF-1.7 ...", "a PDF document"),
        (b"PK\x03\x04 word/document.xml", "a ZIP archive or an Office document"),
        (rb"{\rtf1\ansi Pneumonia}", "an RTF document"),
        (b"\n {\\rtf1\\ansi Pneumonia}", "an RTF document"),
        (codecs.BOM_UTF8 + b"{\\rtf1\\ansi Pneumonia}", "an RTF document"),
        (gzip.compress(b"Pneumonia", mtime=0), "a gzip archive"),
        (NOTE.encode("utf-16-le"), "control characters"),
        (bytes(range(256)) * 20, "control characters"),
        (codecs.BOM_UTF16_LE + b"odd", "starts with a byte-order mark"),
    ],
)
def test_note_text_refuses_what_is_not_text(content, message):
    with pytest.raises(DataError, match=f"^note.txt is .*{message}") as caught:
        note_text(content, "note.txt")
    assert "neum" not in str(caught.value) and caught.value.__cause__ is None


def test_note_text_accepts_a_few_control_characters_and_an_empty_note():
    assert note_text(b"page one\x0cpage two\x1c" + b"x" * 200, "note.txt").startswith("page one")
    assert note_text(b"", "note.txt") == ""
