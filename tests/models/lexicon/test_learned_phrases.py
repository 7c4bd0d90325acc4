"""Phrases learned from coded notes."""

from hypothesis import given
from hypothesis import strategies as st

from nosology.core import Code, Evidence, Note
from nosology.models.lexicon.learned_phrases import (
    MAX_OFFSET,
    is_same_span,
    is_separate,
    learn_from_evidence,
    note_evidence,
)

CODE, OTHER = Code("icd10cm", "R05"), Code("icd10cm", "R50.9")
SPAN = st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(SPAN, st.lists(SPAN, max_size=4))
def test_separate_spans_neither_overlap_nor_are_the_same(span, others):
    same = any(is_same_span(*span, Evidence(CODE, *other)) for other in others)
    overlap = any(span[0] < end and start < span[1] for start, end in others)
    assert is_separate(*span, others) == (not same and not overlap)
    assert is_separate(*span, [(span[1] + MAX_OFFSET + 1, span[1] + MAX_OFFSET + 5)])


def test_counts_occurrences_and_evidence_of_a_phrase():
    texts = ["Cough today.", "No cough and no fever.", "Some cough."]
    notes = [
        Note("a", texts[0], codes=(CODE,), evidence=(Evidence(CODE, 0, 5),)),
        Note("b", texts[1], codes=(OTHER,), evidence=(Evidence(OTHER, 16, 21),)),
        Note("c", texts[2]),
    ]
    learned = learn_from_evidence([note_evidence(note, ["icd10cm"], True) for note in notes], ["icd10cm"], 2)
    phrase = next(i for i in range(len(learned.index)) if learned.index.phrase(i) == ("coug",))
    assert learned.seen[phrase] == 3
    assert [(learned.codes[code], n) for code, n in learned.entries(phrase)] == [(CODE, 1)]
    assert learned.surface_forms["cough"] == (3, {learned.column[CODE]: 1})
    assert learned.keys["coug"][:2] == (3, 1)
