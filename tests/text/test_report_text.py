import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.text import clean_report
from nosology.text.report_text import context_features, is_word_feature


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No evidence of pneumonia", "no evidence NOT_pneumonia"),
        ("Pneumonia present.", "pneumonia present"),
        ("Patient has a fever of 102", "patient fever"),
        ("Patient has a fever of 102°F", "patient fever"),
        ("Temp 38.5 C. Hepatitis C, 101F", "temperature hepatitis c"),
        ("102.4F, 36 ° C, 39°", ""),
        ("38ºC, 38.5ºC, 38 ºC, 38º C, 38 º C, 101.5ºF", ""),  # the letter º, usual in Spanish notes
        ("Fiebre de 38,5 C, 38,5ºC, 40\xa0C, 40\xa0º\u202fC; 3º dedo", "fiebre 3º dedo"),
        ("T 38\nC diff, nº 5 C", "t c diff nº c"),
        ("T4 stage 3C, 45 F, 18F Foley, day 3 C diff", "t4 stage 3c f 18f foley day c diff"),
        ("L5 F1, 3 cm", "l5 f1 cm"),
        ("No effusion, but R/O UTI", "no NOT_effusion rule out urinary tract infection"),
        ("No UTI", "no NOT_urinary NOT_tract NOT_infection"),
        ("Pneumonia was ruled out.", "NOT_pneumonia ruled out"),
        ("No change in pneumonia", "no change pneumonia"),
        ("Without CF", "without NOT_cystic NOT_fibrosis"),
        ("", ""),
        ("102 ...", ""),
    ],
)
def test_clean_report(text, expected):
    assert clean_report(text).text == expected


def test_stop_words_and_negation_are_optional():
    assert clean_report("No evidence of pneumonia", stop_words=False).text == "no evidence of NOT_pneumonia"
    assert clean_report("No evidence of pneumonia", negation=False).text == "no evidence pneumonia"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Patient has a fever of 102°F", "patient has a fever of"),
        ("Temp 38.5 C. Hepatitis C, 101F", "temperature hepatitis c"),
        ("L5 F1, 3 cm", "l5 f1 cm"),
        (
            "67 F with 2 c/o cough. 3 f/u nodules, 3/4 c/w edema",
            "f with complains of cough follow up nodules consistent with edema",
        ),
    ],
)
def test_numbers_and_units_of_temperatures_are_dropped_with_stop_words_kept(text, expected):
    assert clean_report(text, stop_words=False).text == expected


def test_context_marks_uncertain_and_past_words():
    assert (
        clean_report("Possible pneumonia, no effusion", context=True).text == "possible MAYBE_pneumonia no NOT_effusion"
    )
    assert clean_report("History of asthma", context=True).text == "history PAST_asthma"
    assert clean_report("No effusion", negation=False, context=True).text == "no effusion"


def test_each_word_has_its_original_span():
    text = "History:  cough.\nImpression: No UTI, clear lungs"
    cleaned = clean_report(text)
    for word, original in {"cough": "cough", "NOT_tract": "UTI", "NOT_urinary": "UTI", "lungs": "lungs"}.items():
        at = cleaned.text.index(word)
        assert text[slice(*cleaned.original(at, at + len(word)))] == original


@given(st.text())
def test_offsets_are_valid_for_any_text(text):
    cleaned = clean_report(text)
    assert len(cleaned.starts) == len(cleaned.text) and cleaned.length == len(text)
    assert all(0 <= a < b <= len(text) for a, b in zip(cleaned.starts, cleaned.ends))
    assert cleaned.text == " ".join(cleaned.text.split())


def test_features_have_prefixes_for_context():
    features = set(context_features("History: possible UTI.\nImpression: No reflux. Right hydronephrosis."))
    assert {"NOT_reflux", "MAYBE_uti", "MAYBE_urinary", "hydronephrosis", "impression:hydronephrosis"} <= features
    assert {"hydro~", "right hydronephrosis", "impression:NOT_reflux"} <= features
    assert "reflux" not in features and "uti" not in features


def test_features_without_section_and_those_of_single_words():
    text = "Impression: No reflux. Right hydronephrosis."
    features = set(context_features(text))
    of_section = {name for name in features if ":" in name}
    assert "impression:hydronephrosis" in of_section
    assert set(context_features(text, by_section=False)) == features - of_section
    words = {"impression", "NOT_reflux", "right", "hydronephrosis"}
    assert {name for name in features if is_word_feature(name)} == words


@given(st.text())
def test_any_text_has_features(text):
    assert all(isinstance(word, str) for word in context_features(text))
