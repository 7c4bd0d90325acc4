"""Search for diagnoses and procedures: systems, dates, composition of procedures, look-ups with known answers."""

import csv
from pathlib import Path

import pytest

from nosology.claims.code_search import FoundLine, search_codes, table_on
from nosology.codes import releases, table
from nosology.core import CodeError
from tests.timing import assert_cpu_seconds

CASES = Path(__file__).parent / "cases"
DAY = "2025-11-03"


def first(query: str, system: str = "all", date: str = DAY) -> FoundLine:
    return search_codes(query, system, date)[0]


def look_ups(name: str) -> list[dict[str, str]]:
    with (CASES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize(
    "query, code",
    [
        ("laparoscopic cholecystectomy", "0FT44ZZ"),
        ("appendectomy lap", "0DTJ4ZZ"),
        ("cholecystectmy laparascopic", "0FT44ZZ"),
        ("replacement of hip, total, left", "0SRB0JZ"),
        ("pci with one drug-eluting stent", "027034Z"),
        ("vaginal delivery", "10E0XZZ"),
        ("c section", "10D00Z1"),
        ("central line", "02HV33Z"),
        ("hemodialysis", "5A1D70Z"),
        ("colonoscopy with polypectomy", "0DBE8ZZ"),
    ],
)
def test_words_for_a_procedure_give_a_complete_code(query, code):
    line = first(query)
    assert (line.system, line.code, line.billable) == ("icd10pcs", code, True)
    assert first(query, "icd10pcs") == line


def test_all_lines_of_a_procedure_are_valid_codes_or_lead_to_them():
    codes = table("icd10pcs")
    for query in ("CABG x3", "left total hip replacement", "spinal fusion l4-5 posterior", "0W9", "0S", "nephropexy"):
        lines = search_codes(query, "icd10pcs")
        for _ in range(6):  # at most: body system, operation and four values
            assert lines, query
            assert all(codes.billable(line.code) for line in lines if line.billable)
            choices = [line for line in lines if line.next]
            if not choices:
                break
            assert all(len(line.code) <= 7 and line.step and line.value for line in choices)
            lines = search_codes(choices[-1].next, "icd10pcs")
        assert all(line.billable for line in lines), query


def test_words_and_numbers_leave_only_what_is_open():
    assert {line.code[:5] for line in search_codes("CABG x3", date=DAY) if line.step} == {"02120"}
    assert {line.step for line in search_codes("CABG x3", date=DAY) if line.step} == {"device"}
    assert {line.code[:4] for line in search_codes("spinal fusion l4-5 posterior", date=DAY) if line.step} == {"0SG0"}
    sides = {line.code for line in search_codes("thoracentesis", "icd10pcs", DAY)}
    assert sides == {"0W993ZZ", "0W9B3ZZ", "0W993ZX", "0W9B3ZX"}


def test_a_pattern_offers_the_values_of_its_first_open_character():
    lines = search_codes("0SRB0", "icd10pcs", DAY)
    assert {line.step for line in lines} == {"device"} and "0SRB02_" in {line.code for line in lines}
    assert [line.code for line in search_codes("0srb02", "all", DAY)] == ["0SRB02Z", "0SRB029", "0SRB02A"]
    assert search_codes("0SRB02_", "all", DAY) == search_codes("0srb02", "all", DAY)
    assert not any(line.step for line in search_codes("0SRB0[9", "icd10pcs", DAY))  # no pattern


def test_words_about_a_procedure_in_the_past_are_a_diagnosis():
    for query, code in (("status post cabg", "Z95.1"), ("h/o appendectomy", "Z90.49")):
        assert first(query).code == code
        assert {line.system for line in search_codes(query, date=DAY)} == {"icd10cm", "icd10pcs"}


def test_a_diagnosis_has_no_procedures():
    for query in ("CHF", "broken hip left", "inguinal hernia", "afib with RVR"):
        assert {line.system for line in search_codes(query, date=DAY)} == {"icd10cm"}


def test_only_codes_of_the_date_are_offered():
    assert first("ckd stage 3", date="2019-11-01").code == "N18.3"
    assert first("ckd stage 3", date="2019-11-01").note == "valid until 2020-09-30"
    assert first("ckd stage 3").code == "N18.30" and first("ckd stage 3").note == ""
    for date, release in (("2019-11-01", "2020"), ("2021-11-01", "2022")):
        codes = table("icd10cm", release)
        for query in ("ckd stage 3", "low back pain", "depression", "headache", "dementia with agitation"):
            lines = search_codes(query, "icd10cm", date)
            assert lines and all(line.code in codes and codes.billable(line.code) == line.billable for line in lines)


def test_a_code_of_another_time_is_shown_with_its_dates_and_the_codes_in_its_place():
    new, instead = search_codes("N18.30", date="2019-11-01")
    assert (new.billable, new.note) == (False, "not valid on 2019-11-01: from 2020-10-01")
    assert (instead.code, instead.billable, instead.matched) == ("N18.3", True, "in place of N18.30")
    old = search_codes("H81.41", date="2020-11-01")[0]  # merged into H81.4
    assert old.note.startswith("not valid on 2020-11-01: until ") and not old.billable


def test_a_header_is_followed_by_its_billable_codes():
    lines = search_codes("heart failure", "icd10cm", DAY)
    at = next(i for i, line in enumerate(lines) if not line.billable)
    assert (lines[at].code, lines[at].next) == ("I50", "I50") and lines[0].code == "I50.9"
    assert lines[at + 1].under == "I50" and lines[at + 1].billable
    assert [line.code for line in search_codes("N18.3", date=DAY)] == ["N18.3", "N18.30", "N18.31", "N18.32"]
    assert all(line.billable for line in search_codes("heart failure", date=DAY, billable=True))


def test_before_october_2015_the_codes_are_of_icd9():
    assert first("CHF", date="2014-03-01").code == "428.0"
    assert first("appendectomy", date="2014-03-01").code == "47.09"
    assert first("CHF", date="2015-10-01").system == "icd10cm"  # in the earliest release that is known


def test_wrong_arguments_are_errors():
    with pytest.raises(CodeError, match="system must be all or one of"):
        search_codes("heart", "icd11")
    with pytest.raises(CodeError, match="date must be YYYY-MM-DD"):
        search_codes("heart", date="2025-13-01")
    assert search_codes("h") == search_codes("") == search_codes("  ") == []


def test_every_release_can_be_searched_in_little_time():
    for release in releases("icd10cm"):
        day = f"{release}-01-15"
        search_codes("heart failure after laparoscopic cholecystectmy", date=day)
        assert_cpu_seconds(lambda: search_codes("left hip fracture after lap chole", date=day), 0.3)  # noqa: B023


@pytest.mark.parametrize("name, count", [("coder_searches.tsv", 41), ("coder_searches_heldout.tsv", 43)])
def test_look_ups_name_codes_of_their_date(name, count):
    cases = look_ups(name)
    assert len(cases) == len({(case["query"], case["date"]) for case in cases}) == count
    for case in cases:
        known = [table_on(system, case["date"]) for system in ("icd10cm", "icd10pcs")]
        for code in case["codes"].split():
            if code.endswith("-"):
                assert any(code[:-1] in (it[: len(code) - 1] for it in codes.lines()) for codes in known), case
            else:
                assert any(codes.billable(code) for codes in known), case


def test_the_right_code_is_first_in_most_look_ups_of_development():
    cases = look_ups("coder_searches.tsv")
    right = 0
    for case in cases:
        code = first(case["query"], date=case["date"]).code.partition("_")[0]
        right += any(code == it or (it.endswith("-") and code.startswith(it[:-1])) for it in case["codes"].split())
    assert right / len(cases) >= 0.9


@pytest.mark.parametrize(
    "query, code, found",
    [("250.00", "250.00", "E11.9"), ("V5861", "V58.61", "Z79.01"), ("E885.9", "E885.9", "W18.49XA")],
)
def test_a_code_of_icd9_shows_the_codes_in_its_place(query, code, found):
    for system in ("all", "icd10cm"):
        first, second, *_ = search_codes(query, system)
        assert (first.system, first.code, first.billable) == ("icd9cm", code, False)
        assert first.note == "ICD-9-CM, valid until 2015-09-30"
        assert (second.code, second.billable, second.matched) == (found, True, f"in place of {code}")
    assert search_codes("V27.0", "icd10cm")[0].system == "icd10cm"  # both systems have it
