import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from nosology.core import DataError
from nosology.corpora.split_files import read_splits

EXPECTED = {"101": "train", "102": "dev", "103": "test"}


def test_every_form_says_the_same(tmp_path):
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
        ("ids.csv", "101\n102\n", "must have a name that begins with train, dev, test"),
        ("a.feather", "no feather", "cannot be read as feather"),
    ],
)
def test_bad_files_are_answered_by_a_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_splits([tmp_path / name])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such split file"):
        read_splits([tmp_path / "none.csv"])


@pytest.mark.parametrize("line", ["not json", "[1]", '{"id": 1}', '{"split": "test"}'])
def test_a_wrong_json_line_is_named(tmp_path, line):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "split": "train"}\n' + line)
    with pytest.raises(DataError, match=r"a.jsonl row 2: must hold split and one of _id"):
        read_splits([tmp_path / "a.jsonl"])
