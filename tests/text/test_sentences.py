from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.text import sentences
from tests.timing import assert_linear_time


def split(text):
    return [text[a:b] for a, b in sentences(text)]


CASES = [
    ("Seen by Dr. Smith and Mrs. Jones. Sent home.", ["Seen by Dr. Smith and Mrs. Jones.", "Sent home."]),
    ("Aspirin 81 mg q.d. He is well.", ["Aspirin 81 mg q.d.", "He is well."]),
    ("Metoprolol 25 mg b.i.d. with meals.", ["Metoprolol 25 mg b.i.d. with meals."]),
    ("Pt. denies pain. No fever.", ["Pt. denies pain.", "No fever."]),
    ("Take 2 tabs. 3 times a day.", ["Take 2 tabs. 3 times a day."]),
    ("K 3.5 and Cr 1.2. Stable.", ["K 3.5 and Cr 1.2.", "Stable."]),
    ("Better!  Really? Yes.", ["Better!", "Really?", "Yes."]),
    ("No pain.He walks.", ["No pain.", "He walks."]),
    ("(See below.) Next.", ["(See below.)", "Next."]),
    ("1. Aspirin\n2. Insulin 5.5 units\n- fall risk", ["1. Aspirin", "2. Insulin 5.5 units", "- fall risk"]),
    ("PMH:\nhypertension\nasthma", ["PMH:", "hypertension", "asthma"]),
    ("no fever\nCough", ["no fever", "Cough"]),
    ("No evidence of\npneumonia", ["No evidence of\npneumonia"]),
    ("He has fever, cough,\nAnd chills", ["He has fever, cough,\nAnd chills"]),
    ("One\n\ntwo", ["One", "two"]),
    ("One\r\n\r\ntwo\rThree", ["One", "two", "Three"]),
    ("Labs: ok\nImaging: none", ["Labs: ok", "Imaging: none"]),
    ("La Dra. Pérez lo vio. ¿Tos? No.", ["La Dra. Pérez lo vio.", "¿Tos?", "No."]),
    ("copd, no exacerbation. s/p cabg.", ["copd, no exacerbation.", "s/p cabg."]),
    ("no effusion. heart is enlarged approx. as before.", ["no effusion.", "heart is enlarged approx. as before."]),
    ("Take 1 tab. at night, resp. rate and neuro. exam.", ["Take 1 tab. at night, resp. rate and neuro. exam."]),
    ("no pneum. or eff. seen, w.o. change", ["no pneum. or eff. seen, w.o. change"]),
    ("", []),
    (" \n ", []),
]


@pytest.mark.parametrize("text, expected", CASES)
def test_sentences(text, expected):
    assert split(text) == expected


def test_wrapped_prose_is_joined():
    text = "A 65 year old man with heart failure and gout who presented to\nBoston with dyspnea. He\nimproved."
    assert len(split(text)) == 2


@given(st.text() | st.text(alphabet="aB1 .\n:-)?"))
def test_sentences_cover_all_characters_except_blanks(text):
    spans = sentences(text)
    covered = sum(1 for a, b in spans for c in text[a:b] if not c.isspace())
    assert covered == sum(1 for c in text if not c.isspace())
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in spans)
    assert all(a.end <= b.start for a, b in pairwise(spans))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "piece", [" ", ".", ". ", "\n", "\n ", "_", "a.", "1. ", "A: ", "?)", "\r", "a\n", "word ", "aaaaaaaaaa1. "]
)
def test_time_is_linear(piece):
    assert_linear_time(lambda count: sentences(piece * count), 30_000)


def test_a_line_with_room_for_the_next_word_was_not_wrapped():
    text = (
        "Dialysis three times a week; missed two sessions because of no transportation\nChronic heart failure\n"
        + "Course: dialysis twice, potassium back to normal, no volume overload, lungs clear, discharged the next day."
    )
    assert split(text)[1] == "Chronic heart failure"


@pytest.mark.parametrize("text", ["No bladder sx. DM2 diet controlled.", "Sister lung ca. TB test done."])
def test_capitals_after_an_abbreviation_start_a_sentence(text):
    assert len(split(text)) == 2
