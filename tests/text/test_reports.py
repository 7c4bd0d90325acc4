import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.text import clean_report
from nosology.text.report_text import context_features


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("No evidence of pneumonia", "no evidence NOT_pneumonia"),
        ("Pneumonia present.", "pneumonia present"),
        ("Patient has a fever of 102", "patient fever"),
        ("No effusion, but R/O UTI", "no NOT_effusion rule out urinary tract infection"),
        ("No UTI", "no NOT_urinary NOT_tract NOT_infection"),
        ("Pneumonia was ruled out.", "NOT_pneumonia ruled out"),
        ("No change in pneumonia", "no change pneumonia"),
        ("Without CF", "without NOT_cystic NOT_fibrosis"),
        ("", ""),
        ("102 ...", ""),
    ],
)
def test_views(text, view):
    assert clean_report(text).text == view


def test_stop_words_may_stay():
    assert clean_report("No evidence of pneumonia", stop_words=False).text == "no evidence of NOT_pneumonia"
    assert clean_report("No evidence of pneumonia", negation=False).text == "no evidence pneumonia"


def test_every_word_leads_to_its_place():
    text = "History:  cough.\nImpression: No UTI, clear lungs"
    view = clean_report(text)
    for word, original in {"cough": "cough", "NOT_tract": "UTI", "NOT_urinary": "UTI", "lungs": "lungs"}.items():
        at = view.text.index(word)
        assert text[slice(*view.original(at, at + len(word)))] == original


@given(st.text())
def test_offsets_survive_any_text(text):
    view = clean_report(text)
    assert len(view.starts) == len(view.text) and view.length == len(text)
    assert all(0 <= a < b <= len(text) for a, b in zip(view.starts, view.ends))
    assert view.text == " ".join(view.text.split())


def test_marked_words_say_what_the_report_says_of_them():
    found = set(context_features("History: possible UTI.\nImpression: No reflux. Right hydronephrosis."))
    assert {"NOT_reflux", "MAYBE_uti", "MAYBE_urinary", "hydronephrosis", "impression:hydronephrosis"} <= found
    assert {"hydro~", "right hydronephrosis", "impression:NOT_reflux"} <= found
    assert "reflux" not in found and "uti" not in found


@given(st.text())
def test_any_text_has_marked_words(text):
    assert all(isinstance(word, str) for word in context_features(text))
