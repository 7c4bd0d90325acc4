from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.codes import describe
from nosology.codes.code_list import read_code_list
from nosology.core import Code, DataError


@pytest.fixture
def listed(tmp_path):
    def read(content: str | bytes):
        path = tmp_path / "my_codes.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_code_list(path)

    return read


def test_codes_are_in_order_with_given_or_looked_up_descriptions(listed):
    codes = listed("code,description,system\nI50.9,,icd10cm\ni21.4,my description,ICD-10-CM\n4280,,icd9cm\n")
    assert codes == [
        (Code("icd10cm", "I50.9"), "Heart failure, unspecified"),
        (Code("icd10cm", "I21.4"), "my description"),
        (Code("icd9cm", "428.0"), describe(Code("icd9cm", "428.0"))),
    ]


def test_only_the_column_code_is_required(listed):
    assert [code for code, _ in listed("code\nI50.9\n0DTJ4ZZ\n\n")] == [
        Code("icd10cm", "I50.9"),
        Code("icd10pcs", "0DTJ4ZZ"),
    ]


def test_other_columns_separators_and_line_ends_are_accepted(listed):
    raw = "\ufeffSystem;Note;CODE\r\nicd10cm;x;E11.9\r\n".encode()
    assert listed(raw) == [(Code("icd10cm", "E11.9"), describe(Code("icd10cm", "E11.9")))]
    assert listed('code\tdescription\nE11.9\t"of ""type"" 2"') == [(Code("icd10cm", "E11.9"), 'of "type" 2')]


def test_an_unknown_code_needs_a_description(listed):
    assert listed("code,description\nI50.77,Heart failure of next year\n") == [
        (Code("icd10cm", "I50.77"), "Heart failure of next year")
    ]
    with pytest.raises(DataError, match=r"my_codes.csv, row 3: I50.77 is in no table of icd10cm and needs a descr"):
        listed("code\nI50.9\nI50.77\n")


def test_codes_of_older_releases_have_descriptions(listed):
    assert listed("code,system\nM54.5,icd10cm\n")[0][1] == "Low back pain"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the first row must name the columns"),
        ("I50.9\nE11.9\n", "the first row must name the columns code, description, system; code is missing"),
        ("code,code\nI50.9,I50.9\n", "must name the column code once"),
        ("code\n", "has no codes below its header"),
        ("code\nI50.9\n\ni509\n", "row 4: I50.9 of icd10cm is already in row 2"),
        ("code,system\nI50.9,icd11\n", "row 2: system must be one of icd9cm, .* got 'icd11'"),
        ("code,system\nI50.9,icd9cm\n", "row 2: not an icd9cm code: 'I50.9'"),
        ("code,system\n,icd9cm\n", "row 2: not an icd9cm code"),
        ("code,description\nI50.9,a,b\n", "row 2: must have 2 fields like the header; got 3"),
        ('code,description\nI50.9,a\nE11.9,"open\n', "row 3: not a well-formed row"),
        ("code\n???\n", "row 2: not a code of"),
        ("code\nV30\n", "row 2: .* is a code of several systems; add a column system"),
        (b"code,description\nI50.9,caf\xe9\n", "must be UTF-8"),
    ],
)
def test_errors_name_file_and_row(listed, content, message):
    with pytest.raises(DataError, match=f"my_codes.csv.*{message}"):
        listed(content)


def test_a_missing_file_raises_data_error(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the list of codes .*none.csv: No such file"):
        read_code_list(tmp_path / "none.csv")


@given(st.text(max_size=200))
def test_any_text_is_read_or_raises_data_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("codes") / "list.csv"
    path.write_bytes(("code" + text).encode("utf-8", "surrogatepass"))
    try:
        assert read_code_list(path)
    except DataError as error:
        assert str(path) in str(error)
