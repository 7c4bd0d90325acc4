"""Terms of codes, in two releases."""

import pytest

from nosology.codes import table
from nosology.codes.terms import SOURCES, DefaultCodes, builtin_synonyms, terms
from nosology.core import Code


@pytest.fixture(scope="module", params=["2019", "2026"])
def release_terms(request):
    codes = table("icd10cm", request.param)
    return codes, list(terms(codes))


def test_every_term_names_a_billable_code_of_its_release(release_terms):
    codes, all_terms = release_terms
    assert {term.code for term in all_terms if not codes.billable(term.code)} == set()
    assert {term.source for term in all_terms} <= set(SOURCES)


def test_nearly_every_first_encounter_code_has_a_term(release_terms):
    codes, all_terms = release_terms
    first = {code for code in codes.codes(billable=True) if len(code) < 8 or code[-1] == "A"}
    assert len(first - {term.code for term in all_terms}) < 0.03 * len(first)


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
def test_synonyms_have_the_code_of_the_release(release_terms, text, old, new):
    codes, all_terms = release_terms
    named = {term.code for term in all_terms if term.text == text and term.source == "synonym"}
    assert named == {old if codes.release == "2019" else new}


def test_builtin_synonyms_have_known_codes():
    from nosology.codes import is_known

    listed = builtin_synonyms()
    assert len(listed) > 3000 and all(phrase for phrase, _ in listed)
    assert [code for _, codes in listed for code in codes if not is_known(Code("icd10cm", code))] == []


def test_default_codes_are_unspecified():
    leaves = DefaultCodes(table("icd10cm"), seventh=True)
    assert leaves.get("J45") == "J45.909"
    assert leaves.get("S72.00") == "S72.009A"
    assert leaves.get("nonsense") is None
    assert DefaultCodes(table("icd10cm"), seventh=False).get("S72.00") == "S72.009"


def test_terms_keep_words_after_an_absence(release_terms):
    codes, all_terms = release_terms
    named = {(term.text, term.code) for term in all_terms}
    assert {("Laceration of scalp", "S01.01XA"), ("Hypothermia", "R68.0")} <= named
    assert ("Diverticulosis of large intestine with bleeding", "K57.31") in named
    assert ("Type 2 diabetes mellitus in remission", "E11.A") in named or codes.release == "2019"
    assert ("Type 2 diabetes mellitus", "E11.A") not in named
