"""Terms of codes: what a description becomes, releases, history codes, and the index a user adds."""

import pytest

from nosology.codes import table
from nosology.codes.terms import SOURCES, DefaultCodes, builtin_synonyms, terms
from nosology.core import Code


@pytest.fixture(scope="module", params=["2019", "2026"])
def found(request):
    whole = table("icd10cm", request.param)
    return whole, list(terms(whole))


def test_every_term_names_a_billable_code_of_its_release(found):
    whole, every = found
    assert {term.code for term in every if not whole.billable(term.code)} == set()
    assert {term.source for term in every} <= set(SOURCES)


def test_nearly_every_first_encounter_code_has_a_term(found):
    whole, every = found
    first = {code for code in whole.codes(billable=True) if len(code) < 8 or code[-1] == "A"}
    assert len(first - {term.code for term in every}) < 0.03 * len(first)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("low back pain", "M54.5", "M54.50"),
        ("headache", "R51", "R51.9"),
        ("cough", "R05", "R05.9"),
        ("depression", "F32.9", "F32.A"),  # no code of 2019 became it
        ("heart attack", "I21.9", "I21.9"),
        ("ESRD", "N18.6", "N18.6"),
    ],
)
def test_a_release_has_its_own_code_for_a_word(found, text, old, new):
    whole, every = found
    named = {term.code for term in every if term.text == text and term.source == "synonym"}
    assert named == {old if whole.release == "2019" else new}


def test_own_synonyms_name_codes_that_some_release_has():
    from nosology.codes import is_known

    listed = builtin_synonyms()
    assert len(listed) > 3000 and all(phrase for phrase, _ in listed)
    assert [code for _, codes in listed for code in codes if not is_known(Code("icd10cm", code))] == []


def test_a_divided_code_stands_for_its_plainest_part():
    leaves = DefaultCodes(table("icd10cm"), seventh=True)
    assert leaves.get("J45") == "J45.909"
    assert leaves.get("S72.00") == "S72.009A"
    assert leaves.get("nonsense") is None
    assert DefaultCodes(table("icd10cm"), seventh=False).get("S72.00") == "S72.009"


def test_what_follows_an_absence_is_still_said(found):
    whole, every = found
    named = {(term.text, term.code) for term in every}
    assert {("Laceration of scalp", "S01.01XA"), ("Hypothermia", "R68.0")} <= named
    assert ("Diverticulosis of large intestine with bleeding", "K57.31") in named
    assert ("Type 2 diabetes mellitus in remission", "E11.A") in named or whole.release == "2019"
    assert ("Type 2 diabetes mellitus", "E11.A") not in named
