import numpy as np

from nosology.models.evidence_spans import best_spans, occlusion
from nosology.text import tokenize

TEXT = "acute heart failure today\nheart is fine"


def spans(weights, limit=5):
    tokens = tokenize(TEXT)
    return [
        (s.text, round(s.score, 6))
        for s in best_spans(TEXT, np.array(weights, float), tokens.starts, tokens.ends, limit)
    ]


def test_neighbouring_tokens_form_spans_strongest_first():
    assert spans([0, 1, 2, 0, 0.5, 0, 0.7]) == [("heart failure", 3), ("fine", 0.7), ("heart", 0.5)]


def test_runs_end_at_line_breaks():
    assert spans([0, 0, 0, 1, 1, 0, 0]) == [("today", 1), ("heart", 1)]


def test_small_and_negative_weights_are_ignored():
    assert spans([0.1, 1, -2, 0, 0, 0, 0]) == [("heart", 1)]
    assert spans([0, -1, 0, 0, 0, 0, 0]) == []


def test_limit_is_the_largest_number_of_spans():
    assert spans([1, 0, 1, 0, 1, 0, 1], limit=2) == [("acute", 1), ("failure", 1)]


def test_long_runs_are_split():
    text = "pain " * 30
    tokens = tokenize(text)
    spans = best_spans(text, np.ones(30), tokens.starts, tokens.ends, 5)
    assert [len(span.text.split()) for span in spans] == [12, 12, 6]


def counting(texts: list[str]) -> np.ndarray:
    """Logits (B, 3): counts of three words; the third is negative."""
    return np.array([[text.count("fever"), 2.0 * text.count("cough"), -float(text.count("rash"))] for text in texts])


def test_occlusion_returns_sentences_that_lower_the_logit():
    text = "No complaints. High fever and fever again. A cough. Some fever. A rash came."
    fever, cough, rash = occlusion(text, counting, [0, 1, 2])
    assert [span.text for span in fever] == ["High fever and fever again.", "Some fever."]
    assert [span.score for span in fever] == [2.0, 1.0]
    assert [span.text for span in cough] == ["A cough."]
    assert rash == []  # the logit rises without its sentence
    assert all(text[span.start : span.end] == span.text for span in [*fever, *cough])
    assert [span.text for span in occlusion(text, counting, [0], limit=1)[0]] == ["High fever and fever again."]


def test_occlusion_of_one_sentence_and_of_an_empty_note():
    assert [[span.text for span in spans] for spans in occlusion("A cough.", counting, [1])] == [["A cough."]]
    assert occlusion("", counting, [0, 1]) == [[], []]
    assert occlusion("A cough. A rash.", counting, []) == []


def test_occlusion_of_a_long_note_has_a_bounded_number_of_passes():
    seen = []

    def watched(texts):
        seen.append(len(texts))
        return counting(texts)

    text = " ".join(["Nothing here."] * 200 + ["One cough."] + ["Nothing there."] * 99)
    (spans,) = occlusion(text, watched, [1])
    assert seen == [33] and len(spans) == 1 and "One cough." in spans[0].text
