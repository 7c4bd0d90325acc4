from hypothesis import given
from hypothesis import strategies as st

from nosology.text import mark_negated, tokenize


def marked(text):
    return mark_negated(text, tokenize(text)).words


def test_content_words_of_a_negated_scope_are_marked():
    assert marked("No evidence of pneumonia or the 2 effusions, but cough") == [
        *("no", "evidence", "of", "NOT_pneumonia", "or", "the", "2", "NOT_effusions", "but", "cough")
    ]
    assert marked("Paciente sin fiebre ni tos") == ["paciente", "sin", "NOT_fiebre", "ni", "NOT_tos"]


def test_places_stay():
    text = "Denies chest pain."
    found = mark_negated(text, tokenize(text))
    assert [text[a:b] for a, b in found.spans()] == ["Denies", "chest", "pain"]


@given(st.text())
def test_marks_add_only_the_prefix(text):
    plain = tokenize(text)
    assert [word.removeprefix("NOT_") for word in mark_negated(text, plain).words] == plain.words
