"""A note on a page: every character has its place, and none does harm."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code, Span
from nosology.workbench.page_html import annotate_note
from nosology.workbench.views import visible_text
from tests.workbench.conftest import NOTE

HEART, LUNG = Code("icd10cm", "I50.9"), Code("icd10cm", "J18.9")


def pieces(text, evidence=None, highlighted=()):
    return [piece for part in annotate_note(text, evidence or {}, highlighted) for piece in part.pieces]


def test_evidence_and_context_cut_the_text():
    start = NOTE.index("pneumonia")
    found = pieces(NOTE, {LUNG: [Span(start, start + 9)], HEART: [Span(start + 5, start + 12)]}, [LUNG])
    assert "".join(piece.text for piece in found) == NOTE
    at = {piece.start: piece for piece in found}
    assert at[start].keys == str(LUNG) and "negated" in at[start].context and at[start].highlighted
    assert at[start + 5].keys == f"{HEART} {LUNG}"
    assert at[start + 9].keys == str(HEART) and not at[start + 9].highlighted
    back = NOTE.index("chronic low back pain")
    assert any("family" in piece.context for piece in found if piece.start <= back < piece.start + len(piece.text))


def test_signs_that_turn_text_around_are_shown_instead():
    assert visible_text("a\u202eb\u2066c\u200f\x07\r\n\rd") == "a⇄b⇄c⇄␇ \n\nd"


WILD = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\r\n\t\u202e\u2067 <>&\"'a:.")), max_size=200)


@settings(deadline=None)
@given(WILD, st.lists(st.tuples(st.integers(-5, 210), st.integers(-5, 210)), max_size=6))
def test_every_character_stays_where_it_is(text, spans):
    found = pieces(text, {HEART: [Span(*span) for span in spans]})
    assert "".join(piece.text for piece in found) == visible_text(text)
    assert len(visible_text(text)) == len(text)
    place = 0
    for piece in found:
        assert piece.start == place
        place += len(piece.text)
        inside = [any(s <= i < e for s, e in spans) for i in range(piece.start, place)]
        assert all(inside) if piece.keys else not any(inside)
    assert place == len(text)


def test_a_hundred_thousand_words_are_cut_quickly():
    text = "No chest pain. heart failure\n" * 20_000
    spans = [Span(29 * i + 15, 29 * i + 28) for i in range(0, 20_000, 4)]
    assert sum(len(piece.text) for piece in pieces(text, {HEART: spans})) == len(text)
