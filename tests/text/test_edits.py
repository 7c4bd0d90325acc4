from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.core import Span
from nosology.text import Edit, clean
from nosology.text.edits import apply_edits, untouched


@st.composite
def text_and_edits(draw):
    text = draw(st.text(max_size=30))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    spans = [(a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
    return text, [Edit(a, b, draw(st.text(max_size=4))) for a, b in spans]


@given(text_and_edits())
def test_edits_do_what_they_say(case):
    text, edits = case
    expected, sources, done = "", [], 0
    for start, end, replacement in [*edits, (len(text), len(text), "")]:
        expected += text[done:start] + replacement
        sources += [Span(i, i + 1) for i in range(done, start)]
        if len(replacement) == end - start:
            sources += [Span(i, i + 1) for i in range(start, end)]
        else:
            sources += [Span(start, end)] * len(replacement)
        done = end
    cleaned = apply_edits(edits, untouched(text))
    assert cleaned.text == expected
    assert [cleaned.original(i, i + 1) for i in range(len(expected))] == sources


def test_a_span_of_the_cleaned_text_leads_back():
    note = "Pt  Dx: Café-au-lait\r\nspots [**Hospital1 18**] x"
    cleaned = clean(note, ["crlf", "deid", "fold_accents", "lower", "whitespace"])
    assert cleaned.text == "pt dx: cafe-au-lait\nspots x"
    where = cleaned.text.index("cafe-au-lait\nspots")
    assert note[slice(*cleaned.original(where, where + 18))] == "Café-au-lait\r\nspots"
    assert cleaned.original(0, len(cleaned.text)) == Span(0, len(note))


def test_an_empty_span_has_an_empty_place():
    cleaned = clean("  a ", ["strip"])
    assert cleaned.original(0, 0) == Span(2, 2)
    assert cleaned.original(1, 1) == Span(4, 4)


@pytest.mark.parametrize("edits", [[(2, 3, ""), (0, 1, "")], [(0, 2, "x"), (1, 3, "y")], [(1, 1, "x")], [(2, 9, "")]])
def test_edits_out_of_order_overlapping_empty_or_outside_are_refused(edits):
    with pytest.raises(ValueError, match="in order"):
        apply_edits([Edit(*e) for e in edits], untouched("abcd"))
