"""Explanations of a model with known word weights."""

from __future__ import annotations

import numpy as np
import pytest

from nosology.core import Code, ConfigError, Evidence, Note
from nosology.core.label_space import LabelSpace
from nosology.core.model import WordWeights
from nosology.explanation.attribution import Attribution, _to_words, attribute, faithfulness, methods_of, plausibility
from nosology.explanation.highlight import highlighted, html_page, write_picture
from nosology.text.tokens import tokenize, words_of

CODE = Code("icd9cm", "486")
TEXT = "History: cough.\nImpression: No <b>effusion</b>; right PNEUMONIA, with cough"
NOTE = Note("", TEXT)


class KnownWeights:
    """P = sigmoid(2 if the note has pneumonia, -1 if the note has cough)."""

    kind, labels = "known_weights", LabelSpace([CODE])

    def __init__(self):
        self.scored_texts = []

    within_versions = False

    def probabilities(self, notes):
        texts = [note.text for note in notes]
        self.scored_texts += texts
        words = [words_of(text) for text in texts]
        logits = np.array([2.0 * ("pneumonia" in w) - 1.0 * ("cough" in w) for w in words])
        return (1 / (1 + np.exp(-logits)))[:, None]


def by_word(attribution: Attribution) -> dict[str, float]:
    return dict(zip(attribution.words.words, attribution.weights))


def test_occlusion_is_the_drop_of_the_logit():
    attribution = attribute(KnownWeights(), NOTE, 0, "occlusion")
    weights = by_word(attribution)
    assert weights["PNEUMONIA"] == pytest.approx(2.0, abs=1e-6)
    assert weights["right"] == weights["cough"] == pytest.approx(0, abs=1e-9), "the note has cough twice"


def test_lime_ranks_known_words_and_scores_each_text_once():
    model = KnownWeights()
    weights = by_word(attribute(model, Note("", TEXT.replace("cough.", "pain.")), 0, "lime", samples=400))
    assert max(weights, key=weights.get) == "PNEUMONIA" and min(weights, key=weights.get) == "cough"
    assert len(model.scored_texts) == len(set(model.scored_texts))
    again = by_word(attribute(KnownWeights(), Note("", TEXT.replace("cough.", "pain.")), 0, "lime", samples=400))
    assert again == weights, "the seed decides the samples"


def test_word_offsets_match_the_note():
    attribution = attribute(KnownWeights(), NOTE, 0, "lime", samples=50)
    assert [TEXT[a:b] for a, b in attribution.words.spans()] == attribution.words.words


def test_methods_follow_the_kind_of_coder():
    assert methods_of(KnownWeights()) == ["occlusion", "lime"]
    with pytest.raises(ConfigError, match="method must be one of occlusion, lime for a coder of kind known_weights"):
        attribute(KnownWeights(), NOTE, 0, "attention")
    assert len(attribute(KnownWeights(), Note("", " ..."), 0, "lime").weights) == 0


def test_span_weights_are_divided_among_words():
    words = tokenize("no urinary tract infection")
    source = WordWeights(np.array([0, 3]), np.array([2, 16]), np.array([[1.0, 4.0]]))
    assert _to_words(words, source).tolist() == [1, 2, 2, 0]


def attributed(weights) -> Attribution:
    words = tokenize("right pneumonia with cough")
    return Attribution("lime", 0, words, np.array(weights, dtype=float))


def test_faithfulness_rewards_the_right_word_first():
    text = "right pneumonia with cough"
    right, wrong = attributed([0, 9, 0, -1]), attributed([3, -9, 2, 1])
    good, bad = (
        faithfulness(KnownWeights().probabilities, Note("", text), attribution, [0.25])
        for attribution in (right, wrong)
    )
    p = {x: 1 / (1 + np.exp(-x)) for x in (-1.0, 0.0, 1.0, 2.0)}
    assert good.comprehensiveness == pytest.approx(p[1.0] - p[-1.0])
    assert good.sufficiency == pytest.approx(p[1.0] - p[2.0])
    assert bad.comprehensiveness == pytest.approx(0) and bad.sufficiency == pytest.approx(p[1.0] - p[0.0])


def test_plausibility_is_the_overlap_with_marked_words():
    evidence = [Evidence(CODE, 6, 15), Evidence(CODE, 21, 26)]  # pneumonia, cough
    assert plausibility(attributed([0, 9, 1, 8]), evidence).f1 == 1
    half = plausibility(attributed([9, 8, 0, 0]), evidence)
    assert (half.f1, half.iou) == (0.5, pytest.approx(1 / 3))
    assert plausibility(attributed([1, 1, 1, 1]), []) is None


def test_pages_escape_the_note():
    attribution = attribute(KnownWeights(), NOTE, 0, "occlusion")
    html = highlighted(TEXT, attribution)
    assert "&lt;b&gt;effusion&lt;/b&gt;" in html and "<mark" in html and ">PNEUMONIA</mark>" in html
    page = html_page("<note>", TEXT, [("occlusion", attribution)])
    assert "&lt;note&gt;" in page and "<script" not in page and "http" not in page


def test_picture_height_is_limited(tmp_path):
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
    write_picture(
        tmp_path / "note.png", "486 $Pneumonia", text, attribute(KnownWeights(), Note("", text), 0, "occlusion")
    )
    assert (tmp_path / "note.png").read_bytes().startswith(b"\x89PNG")
