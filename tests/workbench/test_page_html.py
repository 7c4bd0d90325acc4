"""The text of a note as HTML: positions, annotation, invisible characters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code, Span
from nosology.workbench.page_html import annotate_note
from nosology.workbench.views import visible_text
from tests.timing import assert_linear_time
from tests.workbench.conftest import NOTE

HEART, LUNG = Code("icd10cm", "I50.9"), Code("icd10cm", "J18.9")


def pieces(text, evidence=None, highlighted=()):
    return [piece for part in annotate_note(text, evidence or {}, highlighted) for piece in part.pieces]


def test_pieces_carry_evidence_and_context():
    start = NOTE.index("pneumonia")
    parts = pieces(NOTE, {LUNG: [Span(start, start + 9)], HEART: [Span(start + 5, start + 12)]}, [LUNG])
    assert "".join(piece.text for piece in parts) == NOTE
    at = {piece.start: piece for piece in parts}
    assert at[start].keys == str(LUNG) and "negated" in at[start].context and at[start].highlighted
    assert at[start + 5].keys == f"{HEART} {LUNG}"
    assert at[start + 9].keys == str(HEART) and not at[start + 9].highlighted
    back = NOTE.index("chronic low back pain")
    assert any("family" in piece.context for piece in parts if piece.start <= back < piece.start + len(piece.text))


def test_invisible_characters_are_replaced_by_signs():
    assert visible_text("a\u202eb\u2066c\u200f\x07\r\n\rd") == "a⇄b⇄c⇄␇ \n\nd"


WILD = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\r\n\t\u202e\u2067 <>&\"'a:.")), max_size=200)


@settings(deadline=None)
@given(WILD, st.lists(st.tuples(st.integers(-5, 210), st.integers(-5, 210)), max_size=6))
def test_every_character_keeps_its_position(text, spans):
    parts = pieces(text, {HEART: [Span(*span) for span in spans]})
    assert "".join(piece.text for piece in parts) == visible_text(text)
    assert len(visible_text(text)) == len(text)
    place = 0
    for piece in parts:
        assert piece.start == place
        place += len(piece.text)
        inside = [any(s <= i < e for s, e in spans) for i in range(piece.start, place)]
        assert all(inside) if piece.keys else not any(inside)
    assert place == len(text)


def annotate_lines(lines: int) -> None:
    text = "No chest pain. heart failure\n" * lines
    spans = [Span(29 * i + 15, 29 * i + 28) for i in range(0, lines, 4)]
    assert sum(len(piece.text) for piece in pieces(text, {HEART: spans})) == len(text)


def test_time_is_linear_in_the_length_of_the_note():
    assert_linear_time(annotate_lines, 4_000)
