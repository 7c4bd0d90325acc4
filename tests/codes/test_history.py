"""Known facts about releases, checked with the stored differences between releases."""

import datetime

import pytest

from nosology.codes import (
    code_history,
    describe,
    diff,
    exists,
    in_release,
    is_known,
    is_valid,
    predecessors,
    previously_assigned,
    release_on,
    releases,
    successors,
    table,
)
from nosology.core import Code, CodeError

# The number of billable codes in the source files of the stored differences.
SOURCE_COUNTS = {
    "2019": 71932,
    "2020": 72184,
    "2021": 72621,
    "2022": 72750,
    "2023": 73674,
    "2024": 74044,
    "2025": 74260,
}


def cm(code: str) -> Code:
    return Code("icd10cm", code)


def names(codes: list[Code]) -> list[str]:
    return [code.code for code in codes]


@pytest.mark.parametrize("release", SOURCE_COUNTS)
def test_past_releases_have_as_many_codes_as_their_sources(release):
    past = table("icd10cm", release)
    assert len(past.codes(billable=True)) == SOURCE_COUNTS[release]
    assert past.release == release


@pytest.mark.parametrize("release", ["2019", "2023"])
def test_past_tables_agree_with_exists_is_valid_and_describe(release):
    past, newest = table("icd10cm", release), table("icd10cm")
    for line in {*past.lines(), *newest.lines()}:
        assert exists(cm(line), release) == (line in past)
        assert is_valid(cm(line), release) == past.billable(line)
        if line in past:
            assert describe(cm(line), release) == past.description(line)


@pytest.mark.parametrize("release", ["2019", "2025"])
def test_past_tables_are_trees(release):
    past = table("icd10cm", release)
    assert [line for line in past.lines() if past.parent(line) is None] == past.chapters()
    assert all(past.description(line) for line in past.lines())
    for code in past.codes():
        assert past.kind(past.chapter(code)) == "chapter" and past.kind(past.block(code)) == "block"
        assert past.billable(code) == (not past.children(code))
        assert code.startswith(past.category(code))


def test_low_back_pain_was_divided_in_2022():
    assert [is_valid(cm("M54.5"), release) for release in ("2019", "2020", "2021", "2022", "2026")] == [1, 1, 1, 0, 0]
    assert exists(cm("M54.5"), "2022") and not exists(cm("M54.50"), "2021")
    assert names(successors(cm("M54.5"), "2022")) == ["M54.50", "M54.51", "M54.59"]
    assert names(predecessors(cm("M54.59"), "2019")) == ["M54.5"]
    assert names(in_release(cm("M54.50"), "2019")) == ["M54.5"]
    assert [(period.first, period.last, period.state) for period in code_history(cm("M54.5"))] == [
        ("2019", "2021", "billable"),
        ("2022", "2026", "divided"),
    ]


def test_headache_was_divided_in_2021():
    assert is_valid(cm("R51"), "2020") and not is_valid(cm("R51"), "2021")
    assert names(successors(cm("R51"), "2026")) == ["R51.0", "R51.9"]
    assert names(predecessors(cm("R51.9"), "2020")) == ["R51"]


def test_a_new_code_has_no_predecessor_but_a_previous_assignment():
    assert is_valid(cm("F32.A"), "2022") and not exists(cm("F32.A"), "2021")
    assert predecessors(cm("F32.A"), "2021") == [] and names(in_release(cm("F32.A"), "2021")) == ["F32.9"]
    assert names(in_release(cm("K76.82"), "2020")) == ["K72.90"]  # of a range the first
    assert previously_assigned(cm("I10")) == []
    assert names(in_release(cm("U07.1"), "2020")) == ["B97.29"] and names(in_release(cm("QA0.8"), "2025")) == ["F89"]


def test_merged_and_refilled_codes():
    assert names(successors(cm("H81.41"), "2026")) == ["H81.4"]
    assert names(predecessors(cm("H81.4"), "2019")) == ["H81.41", "H81.42", "H81.43", "H81.49"]
    assert names(successors(cm("T40.4X1A"), "2021")) == ["T40.411A", "T40.421A", "T40.491A"]


def test_codes_that_stay_are_their_own_successors():
    for code in ("I10", "I50.9", "E11.9", "S52.501A"):
        for release in releases("icd10cm"):
            assert in_release(cm(code), release) == [cm(code)]
    assert in_release(cm("I50"), "2019") == [cm("I50")]  # a header stays a header
    assert in_release(cm("Q99.99"), "2019") == []


def test_a_removed_code_has_a_description():
    assert describe(cm("H81.41")) == "Vertigo of central origin, right ear"
    assert is_known(cm("H81.41")) and not is_known(cm("Q99.99"))
    assert describe(cm("Q99.99")) == ""


def test_release_on_returns_the_release_in_force():
    assert release_on("2021-09-30") == "2021"
    assert release_on(datetime.date(2021, 10, 1)) == "2022"
    assert release_on(datetime.datetime(2021, 10, 1, 8)) == "2022"
    assert release_on("2030-01-01") == "2026"
    assert release_on("2015-03-01", "icd9cm") == "2015"
    with pytest.raises(CodeError, match="the earliest is 2019, from 2018-10-01"):
        release_on("2016-01-01")
    assert release_on("2021-10-01 08:00:00") == "2022"
    for wrong in ("01/02/2020", "2020-03-01st", ""):
        with pytest.raises(CodeError, match="YYYY-MM-DD"):
            release_on(wrong)


def test_unknown_releases_and_systems_raise():
    with pytest.raises(CodeError, match=r"2019, 2020.*got 1999"):
        table("icd10cm", "1999")
    with pytest.raises(CodeError, match="got 1999"):
        is_valid(cm("I10"), "1999")
    with pytest.raises(CodeError, match="icd9cm, icd9proc, icd10cm, icd10pcs"):
        table("icd11")


def test_diff_and_its_reverse():
    old, new = table("icd10cm", "2021"), table("icd10cm", "2022")
    forward, back = diff(old, new), diff(new, old)
    assert {"M54.50", "F32.A"} <= set(forward.added) and "M54.5" in forward.divided
    assert (forward.added, forward.removed) == (back.removed, back.added)
    assert set(forward.divided) <= set(forward.removed)
    assert len(forward.added) - len(forward.removed) == SOURCE_COUNTS["2022"] - SOURCE_COUNTS["2021"]
    assert diff(new, new).added == diff(new, new).reworded == []
