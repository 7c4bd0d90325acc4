import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from nosology.core import Code, DataError, Evidence, Note
from nosology.corpora.filters import assign_splits, drop_uncoded, frequent_codes, keep_codes, read_splits

A, B, C = Code("icd10cm", "I10"), Code("icd10cm", "E11.9"), Code("icd10pcs", "02HV33Z")


def test_keep_codes_drops_codes_with_their_evidence_and_notes_without_codes():
    notes = [
        Note("1", "x", codes=(A, B), evidence=(Evidence(A, 0, 1), Evidence(B, 0, 1))),
        Note("2", "x", codes=(B,)),
        Note("3", "x"),
    ]
    record = {}
    filtered = list(keep_codes(notes, {A}.__contains__, record))
    assert [(note.id, note.codes, [item.code for item in note.evidence]) for note in filtered] == [
        ("1", (A,), [A]),
        ("3", (), []),
    ]
    assert record == {"code_occurrences_left_out": 2, "notes_left_out": 1}
    assert [note.id for note in drop_uncoded(filtered, record)] == ["1"]
    assert record["notes_left_out"] == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from([A, B, C]), unique=True), max_size=12), st.integers(1, 6))
def test_frequent_codes_are_counted_by_note(lists, min_count):
    notes = [Note(str(number), "x", codes=tuple(codes)) for number, codes in enumerate(lists)]
    expected = {code for code in (A, B, C) if sum(code in codes for codes in lists) >= min_count}
    assert frequent_codes(notes, min_count) == expected


def test_assign_splits_matches_admission_or_id():
    notes = [
        Note("a", "x", extra={"hadm_id": "1"}),
        Note("a2", "x", extra={"hadm_id": 1}),  # as JSON has it
        Note("a3", "x", extra={"hadm_id": 1.0}),  # as a Parquet column with gaps has it
        Note("b", "x", extra={"hadm_id": ["odd"]}),
        Note("c", "x", split="test", extra={"hadm_id": "9"}),
    ]
    record = {}
    assigned = list(assign_splits(notes, {"1": "dev", "b": "train", "7": "test"}, record))
    assert [(note.id, note.split) for note in assigned] == [("a", "dev"), ("a2", "dev"), ("a3", "dev"), ("b", "train")]
    assert record == {"notes_left_out": 1, "entries_without_note": 1}


EXPECTED = {"101": "train", "102": "dev", "103": "test"}


def test_all_formats_give_the_same_splits(tmp_path):
    table = pa.table({"index": [0, 1, 2], "_id": [101, 102, 103], "split": ["train", "val", "test"]})
    feather.write_feather(table, tmp_path / "a.feather")
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("split,hadm_id\ntrain,101\nvalidation,102.0\ntest,103\n")
    lines = ['{"id": "101", "split": "train"}', '{"split": "valid", "hadm_id": 102}', '{"_id": 103, "split": "test"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    for name in ("a.feather", "a.parquet", "a.csv", "a.jsonl"):
        assert read_splits([tmp_path / name]) == EXPECTED
    for split, number in (("train", 101), ("dev", 102), ("test", 103)):
        (tmp_path / f"{split}_full_hadm_ids.csv").write_text(f"{number}\n")
    assert read_splits(sorted(tmp_path.glob("*_ids.csv"))) == EXPECTED


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "id,fold\n1,train\n",
            "missing column split; the columns are id, fold",
        ),
        ("a.csv", "subject,split\n1,train\n", r"a\.csv row 1: missing a column of ids, named _id, .* or id"),
        ("a.csv", "id,split\n1,train\n1,test\n", r"a\.csv row 3: an id must be in one split"),
        ("a.csv", "id,split\n1,\n", r"a\.csv row 2: an id must be in one split"),
        ("a.csv", "id,split\n1,fold1\n", "split must be one of train, dev, test; got 'fold1'"),
        ("a.csv", "id,split\n", "no id in the split file"),
        ("ids.csv", "101\n102\n", "the name of a list of ids must start with train, dev, test"),
        ("a.feather", "no feather", "cannot be read as feather"),
    ],
)
def test_invalid_files_raise_data_error(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_splits([tmp_path / name])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such split file"):
        read_splits([tmp_path / "none.csv"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "not a line of JSON"),
        ("[1]", "must be a JSON object"),
        ('{"id": 1}', "must have split and one of _id"),
        ('{"split": "test"}', "must have split and one of _id"),
    ],
)
def test_invalid_json_line_is_an_error_with_its_row(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "split": "train"}\n' + line)
    with pytest.raises(DataError, match=rf"a.jsonl row 2: {message}"):
        read_splits([tmp_path / "a.jsonl"])
