import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.text import MULTILINGUAL, clean, tokenize
from nosology.text.tokens import benchmark_words, lower, words_of
from tests.timing import assert_linear_time


def test_tokenize_returns_words_and_offsets():
    text = "Pt. has Type-2 diabetes; HbA1c 7.5%"
    tokens = tokenize(text)
    assert tokens.words == ["pt", "has", "type", "2", "diabetes", "hba1c", "7", "5"]
    assert [text[a:b] for a, b in tokens.spans()] == ["Pt", "has", "Type", "2", "diabetes", "HbA1c", "7", "5"]


def test_spanish_words_stay_whole_composed_or_not():
    assert tokenize("Niño con FIEBRE, tosió").words == ["niño", "con", "fiebre", "tosió"]
    assert tokenize("Nin\u0303o tosio\u0301.").words == ["nin\u0303o", "tosio\u0301"]


def test_deidentification_marks_are_not_words():
    assert tokenize("Seen by ___ on [**2101-1-2**]").words == ["seen", "by", "on", "2101", "1", "2"]


def test_lower_case_is_optional():
    assert tokenize("Straße İzmir", lower_case=False).words == ["Straße", "İzmir"]
    assert tokenize("Straße İzmir").words == ["straße", "izmir"]


def test_lower_case_never_changes_the_length():
    characters = "".join(chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000)
    assert len(lower(characters)) == len(characters)


@given(st.text())
def test_each_word_is_the_text_at_its_offsets(text):
    tokens = tokenize(text, lower_case=False)
    assert tokens.words == [text[a:b] for a, b in tokens.spans()]
    outside = "".join(text[a:b] for a, b in zip([0, *tokens.ends], [*tokens.starts, len(text)]))
    assert not any(c.isalnum() for c in outside)
    assert [a < b for a, b in tokens.spans()] == [True] * len(tokens)


# Any text; texts in which words, numbers, accents and characters that become ASCII in lower case are frequent; ASCII.
TEXTS = (
    st.text()
    | st.text("aB12 ._-\n\x1féK\u0130\u0301\u0660²ſ中", max_size=40)
    | st.text(st.characters(max_codepoint=127))
)


@given(TEXTS)
def test_words_without_offsets_are_those_with_offsets(text):
    assert words_of(text) == tokenize(text).words


@given(TEXTS)
def test_benchmark_words_are_ascii_without_numbers_except_at_the_ends(text):
    found = re.finditer("[a-z0-9]+", lower(text))
    assert benchmark_words(text) == [
        word[0] for word in found if re.search("[a-z]", word[0]) or word.start() == 0 or word.end() == len(text)
    ]


@given(st.text())
def test_offsets_of_a_cleaned_text_refer_to_the_original(text):
    cleaned = clean(text, MULTILINGUAL)
    inner, outer = tokenize(cleaned.text), tokenize(cleaned)
    assert inner.words == outer.words
    assert list(outer.spans()) == [cleaned.original(a, b) for a, b in inner.spans()]


@pytest.mark.parametrize("text", ["", " ", "___", "...\n"])
def test_a_text_without_words(text):
    assert len(tokenize(text)) == 0 and list(tokenize(text).spans()) == []
    assert len(tokenize(clean(text, MULTILINGUAL))) == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["a", "_", ".", " ", "\u0301", "a\u0301", "a_", "a "])
def test_time_is_linear(piece):
    assert_linear_time(lambda count: tokenize(piece * count), 100_000)
