import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.codes import normalise, parse, table
from nosology.core import SYSTEMS, Code, CodeError


@pytest.mark.parametrize(
    "raw, system, code, repairs",
    [
        ("I50.9", "icd10cm", "I50.9", ()),
        ("i509", "icd10cm", "I50.9", ("upper case", "dot added")),
        (" I50 .9\t", "icd10cm", "I50.9", ("blanks removed",)),
        ("I10.", "icd10cm", "I10", ("stray dot removed",)),
        ("I50.-", "icd10cm", "I50", ("stray dot removed",)),
        ("S52501A", "icd10cm", "S52.501A", ("dot added",)),
        ("S525.01A", "icd10cm", "S52.501A", ("dot moved",)),
        ("qa001", "icd10cm", "QA0.01", ("upper case", "dot added")),
        ("t07.xxxa", "icd10cm", "T07.XXXA", ("upper case",)),
        ("4280", "icd9cm", "428.0", ("dot added",)),
        ("042", "icd9cm", "042", ()),
        ("0010", "icd9cm", "001.0", ("dot added",)),
        ("4.0", "icd9cm", "004.0", ("leading zeros restored",)),
        ("9", "icd9cm", "009", ("leading zeros restored",)),
        ("428", "icd9cm", "428", ()),
        ("389", "icd9cm", "389", ("or 038.9, if a leading zero was lost",)),
        ("E8497", "icd9cm", "E849.7", ("dot added",)),
        ("e849", "icd9cm", "E849", ("upper case",)),
        ("V1046", "icd9cm", "V10.46", ("dot added",)),
        ("V4.2", "icd9cm", "V04.2", ("leading zeros restored",)),
        ("9671", "icd9proc", "96.71", ("dot added",)),
        ("3.31", "icd9proc", "03.31", ("leading zeros restored",)),
        ("331", "icd9proc", "33.1", ("dot added",)),
        ("02hv33z", "icd10pcs", "02HV33Z", ("upper case",)),
        ("O2HV33Z", "icd10pcs", "02HV33Z", ("letters O and I read as digits 0 and 1",)),
        ("16070", "icd10pcs", "0016070", ("leading zeros restored",)),
        ("0fb0", "icd10pcs", "0FB0", ("upper case",)),
    ],
)
def test_spellings(raw, system, code, repairs):
    assert parse(raw, system) == (Code(system, code), repairs)
    assert normalise(raw, system) == Code(system, code)


def test_a_zero_is_restored_where_the_plain_reading_does_not_exist():
    bare = {code.replace(".", "") for code in table("icd9cm").codes()}
    lost = [code for code in sorted(bare) if code[0] == "0" and len(code) == 4 and code[1:] not in bare]
    assert len(lost) > 30
    for code in lost:
        if code[1] != "0":
            parsed, repairs = parse(code[1:], "icd9cm")
            assert parsed.code == f"{code[:3]}.{code[3:]}" and "leading zeros restored" in repairs


@pytest.mark.parametrize(
    "raw, system",
    [
        ("", "icd10cm"),
        ("hypertension", "icd10cm"),
        ("50.9", "icd10cm"),
        ("I50.99999", "icd10cm"),
        ("1234567", "icd9cm"),
        ("4280.1", "icd9cm"),
        ("E", "icd9cm"),
        ("V123.4", "icd9cm"),
        ("428.0", "icd9proc"),
        ("02HV33ZZ", "icd10pcs"),
        ("NoDx", "icd9cm"),
        (".", "icd10pcs"),
        ("I10", "icd11"),
    ],
)
def test_invalid_codes_raise(raw, system):
    with pytest.raises(CodeError):
        normalise(raw, system)


def test_messages_have_no_note_text():
    with pytest.raises(CodeError) as error:
        normalise("Mr. Smith was admitted with chest pain", "icd10cm")
    assert "admitted" not in str(error.value)


@pytest.mark.parametrize(
    "raw, code",
    [
        ("i509", "icd10cm:I50.9"),
        ("428.0", "icd9cm:428.0"),
        ("39.95", "icd9proc:39.95"),
        ("02HV33Z", "icd10pcs:02HV33Z"),
        ("V10.46", "icd9cm:V10.46"),
        ("E849.7", "icd9cm:E849.7"),
        ("4.0", "icd9cm:004.0"),
    ],
)
def test_parse_infers_the_system(raw, code):
    assert str(parse(raw).code) == code


def test_an_ambiguous_code_lists_the_alternatives():
    parsed, repairs = parse("9671")
    assert str(parsed) == "icd9cm:967.1" and "icd9proc:96.71" in repairs[-1]
    assert str(parse("V433").code) == "icd9cm:V43.3"
    with pytest.raises(CodeError):
        parse("FOO")


@pytest.mark.parametrize("system", SYSTEMS)
def test_normalise_ignores_case_dots_and_blanks(system):
    codes = table(system).codes()
    for code in random.Random(0).sample(codes, min(4000, len(codes))):
        for spelling in (code, code.lower(), code.replace(".", ""), f" {code} ", code + "."):
            assert normalise(spelling, system) == Code(system, code)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=10), st.sampled_from(SYSTEMS))
def test_normalise_is_idempotent(raw, system):
    try:
        code = normalise(raw, system)
    except CodeError:
        return
    assert normalise(code.code, system) == code


@pytest.mark.parametrize("raw", ["E11..9", "I5.0.9", "4.2.8"])
def test_two_dots_are_not_a_code(raw):
    for system in SYSTEMS:
        with pytest.raises(CodeError, match=f"not an {system} code"):
            normalise(raw, system)
    with pytest.raises(CodeError, match="not a code of icd"):
        parse(raw)
