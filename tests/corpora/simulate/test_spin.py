"""Sentence patterns."""

import re

from hypothesis import given
from hypothesis import strategies as st

from nosology.corpora.simulate.spin import spin


def test_every_choice_of_a_small_pattern_is_found():
    assert set(spin("{a|b} c{ d|}")) == {"a c d", "a c", "b c d", "b c"}


def test_choices_nest_and_the_place_of_a_mention_stays():
    sentences = spin("no {} {seen|found{ on| by} CT}", 20)
    assert set(sentences) == {"no {} seen", "no {} found on CT", "no {} found by CT"}


@given(st.integers(0, 50), st.integers(1, 50))
def test_numbers_lie_within_their_range(low, width):
    for sentence in spin(f"K of <{low}-{low + width}>"):
        assert low <= int(re.fullmatch(r"K of (\d+)", sentence)[1]) <= low + width


def test_a_pattern_always_gives_the_same_sentences():
    pattern = "{a|b|c|d} {e|f|g|h} <1-100>"
    assert spin(pattern) == spin(pattern)
    assert len(spin(pattern)) == 12
