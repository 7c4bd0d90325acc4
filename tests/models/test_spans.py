import numpy as np

from nosology.models.spans import best_spans
from nosology.text import tokenize

TEXT = "acute heart failure today\nheart is fine"


def spans(parts, limit=5):
    found = tokenize(TEXT)
    return [
        (s.text, round(s.score, 6)) for s in best_spans(TEXT, np.array(parts, float), found.starts, found.ends, limit)
    ]


def test_neighbours_join_and_the_strongest_comes_first():
    assert spans([0, 1, 2, 0, 0.5, 0, 0.7]) == [("heart failure", 3), ("fine", 0.7), ("heart", 0.5)]


def test_runs_end_at_line_breaks():
    assert spans([0, 0, 0, 1, 1, 0, 0]) == [("today", 1), ("heart", 1)]


def test_small_and_negative_parts_are_left_out():
    assert spans([0.1, 1, -2, 0, 0, 0, 0]) == [("heart", 1)]
    assert spans([0, -1, 0, 0, 0, 0, 0]) == []


def test_limit():
    assert spans([1, 0, 1, 0, 1, 0, 1], limit=2) == [("acute", 1), ("failure", 1)]


def test_long_runs_are_cut():
    text = "pain " * 30
    found = tokenize(text)
    spans = best_spans(text, np.ones(30), found.starts, found.ends, 5)
    assert [len(span.text.split()) for span in spans] == [12, 12, 6]
