"""Terms of codes: what a description becomes, releases, history codes, and the index a user adds."""

import re

import pytest

from nosology.codes import table
from nosology.codes.alphabetic_index import add_index, index_terms, user_index_terms
from nosology.codes.related_codes import family_history, personal_history
from nosology.codes.terms import SOURCES, DefaultCodes, builtin_synonyms, terms
from nosology.core import Code, DataError

INDEX = """<?xml version="1.0"?><ICD10CM.index><letter><title>F</title><mainTerm><title>Failure, failed</title>
<term level="1"><title>heart (acute) (sudden)</title><code>I50.9</code>
<term level="2"><title>with wobble</title><code>I50.1</code></term></term></mainTerm></letter></ICD10CM.index>"""


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


def test_history_has_codes_of_its_own():
    assert family_history("C50.919") == "Z80.3" and personal_history("C50.919") == "Z85.3"
    assert family_history("E11.9") == "Z83.3" and personal_history("E11.9") is None
    assert personal_history("I63.9") == "Z86.73" and family_history("R50.9") is None
    assert personal_history("B20") is None and personal_history("D57.1") is None  # these are never over
    assert personal_history("I65.29") is None and personal_history("I60.9") == "Z86.79"


def test_histories_are_those_that_the_classification_lists():
    newest = table("icd10cm")
    categories = [code for code in newest.codes() if len(code) == 3]
    listed = 0
    for code in newest.codes():
        for line in newest.all_notes().get(code, {}).get("inclusion_terms", ()) if "Z80" <= code[:3] <= "Z87" else ():
            if not line.startswith("Conditions classifiable to"):
                continue
            for first, last in re.findall(r"\b([A-Z]\d\w)(?:\.-)?(?:-([A-Z]\d\w))?(?![\w.])", line):
                for category in (other for other in categories if first <= other <= (last or first)):
                    listed += 1
                    if code < "Z85":
                        assert (family_history(category) or "").startswith(code[:5]), (code, category)
                    elif code < "Z86":
                        assert (personal_history(category) or "").startswith(code), (code, category)
    assert listed > 1000


def test_what_follows_an_absence_is_still_said(found):
    whole, every = found
    named = {(term.text, term.code) for term in every}
    assert {("Laceration of scalp", "S01.01XA"), ("Hypothermia", "R68.0")} <= named
    assert ("Diverticulosis of large intestine with bleeding", "K57.31") in named
    assert ("Type 2 diabetes mellitus in remission", "E11.A") in named or whole.release == "2019"
    assert ("Type 2 diabetes mellitus", "E11.A") not in named


@pytest.mark.parametrize("ending", [".xml", ".XML", ".txt", ""])
def test_an_added_index_makes_terms(tmp_path, monkeypatch, ending):
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / f"icd10cm_index_2026{ending}"
    path.write_text(INDEX)
    kept, count = add_index(path)
    assert kept.is_file() and count == 4
    assert {(term.text, term.code) for term in user_index_terms()} == {
        ("Failure heart", "I50.9"),
        ("failed heart", "I50.9"),
        ("Failure heart wobble", "I50.1"),
        ("failed heart wobble", "I50.1"),
    }


def test_a_file_that_is_no_index_is_refused_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "other.xml"
    path.write_text("<a/>")
    with pytest.raises(DataError, match="not an index"):
        add_index(path)
    assert list(user_index_terms()) == []
    with pytest.raises(DataError):
        list(index_terms(tmp_path / "absent.xml"))
