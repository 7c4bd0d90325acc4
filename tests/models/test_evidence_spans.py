import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nosology.models.evidence_spans import best_spans, occlusion
from nosology.text import tokenize

TEXT = "acute heart failure today\nheart is fine"


def spans(weights, limit=5):
    tokens = tokenize(TEXT)
    return [
        (s.text, round(s.score, 6))
        for s in best_spans(TEXT, np.array([weights], float), tokens.starts, tokens.ends, limit)[0]
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
    (spans,) = best_spans(text, np.ones((1, 30)), tokens.starts, tokens.ends, 5)
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


def spans_by_loop(text, weights, starts, ends, limit):
    """The spans of one row of weights, token by token, as defined."""
    runs: list[list[int]] = []
    for token in np.flatnonzero((weights >= 0.15 * weights.max()) & (weights.max() > 0)).tolist():
        last = runs[-1][-1] if runs else -2
        if token == last + 1 and len(runs[-1]) < 12 and "\n" not in text[ends[last] : starts[token]]:
            runs[-1].append(token)
        else:
            runs.append([token])
    found = [(int(starts[run[0]]), int(ends[run[-1]]), float(weights[run].sum())) for run in runs]
    return sorted(found, key=lambda span: (-span[2], span[0]))[:limit]


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 6), st.floats(0.1, 1))
def test_spans_of_many_labels_equal_those_of_a_loop(seed, n_words, limit, density):
    rng = np.random.default_rng(seed)
    text = "".join("word" + ("\n" if new else " ") for new in rng.random(n_words) < 0.2)
    tokens = tokenize(text)
    weights = rng.integers(-2, 8, (5, n_words)) * (rng.random((5, n_words)) < density).astype(float)
    actual = best_spans(text, weights, tokens.starts, tokens.ends, limit)
    assert [[(span.start, span.end, span.score) for span in row] for row in actual] == [
        spans_by_loop(text, row, tokens.starts, tokens.ends, limit) for row in weights
    ]
    assert all(text[span.start : span.end] == span.text for row in actual for span in row)


def test_no_label_or_no_token_has_no_span():
    nothing = np.empty(0, np.int64)
    assert best_spans("", np.empty((2, 0)), nothing, nothing, 5) == [[], []]
    assert best_spans("", np.empty((0, 0)), nothing, nothing, 5) == []
