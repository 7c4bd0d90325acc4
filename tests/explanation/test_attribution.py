"""Explanations of a coder that is known to the last word: it counts."""

from __future__ import annotations

import numpy as np
import pytest

from nosology.core import Code, ConfigError, Evidence, Note
from nosology.core.label_space import LabelSpace
from nosology.core.model import WordWeights
from nosology.explanation.attribution import Attribution, _to_words, attribute, methods_of
from nosology.explanation.highlight import highlighted, html_page, write_picture
from nosology.explanation.quality import faithfulness, plausibility
from nosology.text.tokens import tokenize, words_of

CODE = Code("icd9cm", "486")
TEXT = "History: cough.\nImpression: No <b>effusion</b>; right PNEUMONIA, with cough"
NOTE = Note("", TEXT)


class Counting:
    """P = sigmoid(2 if pneumonia, -1 if a cough is told, and nothing else)."""

    kind, labels = "counting", LabelSpace([CODE])

    def __init__(self):
        self.asked = []

    within_versions = False

    def probabilities(self, notes):
        texts = [note.text for note in notes]
        self.asked += texts
        words = [words_of(text) for text in texts]
        logits = np.array([2.0 * ("pneumonia" in w) - 1.0 * ("cough" in w) for w in words])
        return (1 / (1 + np.exp(-logits)))[:, None]


def by_word(found: Attribution) -> dict[str, float]:
    return dict(zip(found.words.words, found.weights))


def test_occlusion_is_what_the_logit_loses():
    found = attribute(Counting(), NOTE, 0, "occlusion")
    weights = by_word(found)
    assert weights["PNEUMONIA"] == pytest.approx(2.0, abs=1e-6)
    assert weights["right"] == weights["cough"] == pytest.approx(0, abs=1e-9), "cough is told twice"


def test_lime_finds_the_words_that_count_and_asks_each_text_once():
    model = Counting()
    weights = by_word(attribute(model, Note("", TEXT.replace("cough.", "pain.")), 0, "lime", samples=400))
    assert max(weights, key=weights.get) == "PNEUMONIA" and min(weights, key=weights.get) == "cough"
    assert len(model.asked) == len(set(model.asked))
    again = by_word(attribute(Counting(), Note("", TEXT.replace("cough.", "pain.")), 0, "lime", samples=400))
    assert again == weights, "the seed decides the samples"


def test_words_stand_where_they_stand_in_the_note():
    found = attribute(Counting(), NOTE, 0, "lime", samples=50)
    assert [TEXT[a:b] for a, b in found.words.spans()] == found.words.words


def test_methods_follow_the_kind_of_coder():
    assert methods_of(Counting()) == ["occlusion", "lime"]
    with pytest.raises(ConfigError, match="method must be one of occlusion, lime for a coder of kind counting"):
        attribute(Counting(), NOTE, 0, "attention")
    assert len(attribute(Counting(), Note("", " ..."), 0, "lime").weights) == 0


def test_stretches_give_to_the_words_they_touch():
    words = tokenize("no urinary tract infection")
    source = WordWeights(np.array([0, 3]), np.array([2, 16]), np.array([[1.0, 4.0]]))
    assert _to_words(words, source).tolist() == [1, 2, 2, 0]


def attributed(weights) -> Attribution:
    words = tokenize("right pneumonia with cough")
    return Attribution("made", 0, words, np.array(weights, dtype=float))


def test_faithfulness_rewards_the_right_word_first():
    text = "right pneumonia with cough"
    right, wrong = attributed([0, 9, 0, -1]), attributed([3, -9, 2, 1])
    good, bad = (faithfulness(Counting().probabilities, Note("", text), found, [0.25]) for found in (right, wrong))
    p = {x: 1 / (1 + np.exp(-x)) for x in (-1.0, 0.0, 1.0, 2.0)}
    assert good.comprehensiveness == pytest.approx(p[1.0] - p[-1.0])
    assert good.sufficiency == pytest.approx(p[1.0] - p[2.0])
    assert bad.comprehensiveness == pytest.approx(0) and bad.sufficiency == pytest.approx(p[1.0] - p[0.0])


def test_plausibility_counts_words_that_people_named():
    evidence = [Evidence(CODE, 6, 15), Evidence(CODE, 21, 26)]  # pneumonia, cough
    assert plausibility(attributed([0, 9, 1, 8]), evidence).f1 == 1
    half = plausibility(attributed([9, 8, 0, 0]), evidence)
    assert (half.f1, half.iou) == (0.5, pytest.approx(1 / 3))
    assert plausibility(attributed([1, 1, 1, 1]), []) is None


def test_pages_show_the_note_as_it_is_and_run_nothing():
    found = attribute(Counting(), NOTE, 0, "occlusion")
    html = highlighted(TEXT, found)
    assert "&lt;b&gt;effusion&lt;/b&gt;" in html and "<mark" in html and ">PNEUMONIA</mark>" in html
    whole = html_page("<note>", TEXT, [("occlusion", found)])
    assert "&lt;note&gt;" in whole and "<script" not in whole and "http" not in whole


def test_a_picture_ends_where_nobody_would_scroll_any_more(tmp_path):
    from matplotlib.image import imread

    heights = []
    for count in (490, 600, 900):
        text = "cough\n" * count
        words = tokenize(text)
        write_picture(tmp_path / "x.png", "title", text, Attribution("lime", 0, words, np.ones(len(words))))
        heights.append(imread(tmp_path / "x.png").shape[0])
    assert heights[0] < heights[1] == heights[2]


@pytest.mark.parametrize("text", [TEXT, "x" * 300 + " word", "one\n\n\ntwo $a_b$", "cough"])
def test_a_picture_is_drawn(tmp_path, text):
    write_picture(tmp_path / "note.png", "486 $Pneumonia", text, attribute(Counting(), Note("", text), 0, "occlusion"))
    assert (tmp_path / "note.png").read_bytes().startswith(b"\x89PNG")
