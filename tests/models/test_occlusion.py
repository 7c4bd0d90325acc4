"""Occlusion: the sentence that a logit rests on comes first, at its place in the note."""

from __future__ import annotations

import numpy as np

from nosology.models.occlusion import occlusion


def counting(texts: list[str]) -> np.ndarray:
    """Logits (B, 3): how often each word stands in a text; the third is lowered by it."""
    return np.array([[text.count("fever"), 2.0 * text.count("cough"), -float(text.count("rash"))] for text in texts])


def test_the_sentences_without_which_a_logit_falls_come_strongest_first():
    text = "No complaints. High fever and fever again. A cough. Some fever. A rash came."
    fever, cough, rash = occlusion(text, counting, [0, 1, 2])
    assert [span.text for span in fever] == ["High fever and fever again.", "Some fever."]
    assert [span.score for span in fever] == [2.0, 1.0]
    assert [span.text for span in cough] == ["A cough."]
    assert rash == []  # without its sentence the logit rises
    assert all(text[span.start : span.end] == span.text for span in [*fever, *cough])
    assert [span.text for span in occlusion(text, counting, [0], limit=1)[0]] == ["High fever and fever again."]


def test_a_note_of_one_sentence_is_its_own_evidence_and_an_empty_one_has_none():
    assert [[span.text for span in spans] for spans in occlusion("A cough.", counting, [1])] == [["A cough."]]
    assert occlusion("", counting, [0, 1]) == [[], []]
    assert occlusion("A cough. A rash.", counting, []) == []


def test_a_long_note_is_read_a_bounded_number_of_times():
    seen = []

    def watched(texts):
        seen.append(len(texts))
        return counting(texts)

    text = " ".join(["Nothing here."] * 200 + ["One cough."] + ["Nothing there."] * 99)
    (spans,) = occlusion(text, watched, [1])
    assert seen == [33] and len(spans) == 1 and "One cough." in spans[0].text
