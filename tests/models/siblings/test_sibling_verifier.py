"""The verifier of sibling codes, with the weights of the package and with cosines."""

import numpy as np
import pytest

from nosology.core import Code, DataError
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.models.siblings.sibling_features import EMBEDDED, FEATURES, SiblingQuestion
from nosology.models.siblings.sibling_group import attribute_values, billable_siblings, sibling_group
from nosology.models.siblings.sibling_verifier import SiblingVerifier, cosine_features

SIDED = "Seen for cataract surgery. Age-related nuclear cataract of the left eye. The right hip is painful."


def icd(code):
    return Code("icd10cm", code)


def span(text, words):
    return text.index(words), text.index(words) + len(words)


def question(text, words, code, scores=None, counts=None):
    group = sibling_group(billable_siblings(icd(code)))
    return SiblingQuestion(text, (span(text, words),) if words else (), group, scores or {}, counts or {})


def test_siblings_are_the_billable_codes_of_a_category_or_of_a_parent():
    names = [code.code for code in billable_siblings(icd("I50.23"))]
    assert "I50.1" in names and "I50.9" in names and "I50.2" not in names and "I50" not in names
    below = billable_siblings(icd("I50.23"), parent=True)
    assert [code.code for code in below] == ["I50.20", "I50.21", "I50.22", "I50.23"]
    assert billable_siblings(icd("I10")) == (icd("I10"),) and billable_siblings(icd("I10"), parent=True) == ()


def test_words_that_all_siblings_have_tell_nothing():
    group = sibling_group(billable_siblings(icd("I50.23"), parent=True))
    assert "systolic" not in group.keys and len(group.keys) == 2
    assert group.is_unspecified.tolist() == [1, 0, 0, 0]
    assert group.words.sum(axis=1).tolist() == [0, 1, 1, 2]  # acute on chronic


def test_attributes_are_read_from_words_and_numbers():
    words = ["left", "stage", "iii", "chronic", "type", "2", "grade", "unknown"]
    assert attribute_values(words) == {"side": {"left"}, "stage": {"3"}, "acuity": {"chronic"}, "type": {"2"}}


@pytest.mark.parametrize(
    ("text", "words", "code", "scores", "right"),
    [
        (SIDED, "nuclear cataract", "H25.10", {"H25.10": 0.5, "H25.11": 0.4, "H25.12": 0.4}, "H25.12"),
        ("Acute on chronic systolic heart failure.", "heart failure", "I50.9", {"I50.9": 0.4, "I50.23": 0.4}, "I50.23"),
        ("Chronic kidney disease, stage 4.", "kidney disease", "N18.9", {"N18.9": 0.4, "N18.4": 0.4}, "N18.4"),
    ],
)
def test_the_words_near_the_evidence_decide_where_the_coder_does_not(text, words, code, scores, right):
    asked = question(text, words, code, {icd(name): value for name, value in scores.items()})
    choice = SiblingVerifier.shipped().choose(asked)
    assert choice.best == icd(right) and not choice.abstains
    assert choice.probability(right) == pytest.approx(choice.probabilities.max())
    assert choice.probability(code[:3]) == pytest.approx(1)


def test_without_a_word_about_any_sibling_the_verifier_abstains():
    choice = SiblingVerifier.shipped().choose(question("Follow up in two weeks.", "", "I50.9"))
    assert choice.abstains and choice.probabilities.sum() == pytest.approx(1)


def test_the_order_of_the_siblings_does_not_matter():
    siblings = billable_siblings(icd("H25.10"))
    scores, spans = {icd("H25.10"): 0.5, icd("H25.12"): 0.4}, (span(SIDED, "nuclear cataract"),)
    forward, backward = (
        SiblingVerifier.shipped().choose(SiblingQuestion(SIDED, spans, sibling_group(codes), scores))
        for codes in (siblings, siblings[::-1])
    )
    assert np.allclose(forward.probabilities, backward.probabilities[::-1])


def test_train_counts_and_scores_become_features():
    rows = question(SIDED, "nuclear cataract", "H25.10", {icd("H25.12"): 0.5}, {icd("H25.13"): 9}).features()
    names = [code.code for code in billable_siblings(icd("H25.10"))]
    of = {name: dict(zip(FEATURES, row)) for name, row in zip(names, rows.tolist())}
    assert of["H25.12"]["score"] == pytest.approx(np.log(0.5)) and of["H25.12"]["first"] == 1
    assert of["H25.13"]["first"] == of["H25.13"]["scored"] == 0 and of["H25.13"]["seen"] == 1
    assert np.exp(rows[:, FEATURES.index("frequency")]).sum() == pytest.approx(1)
    assert of["H25.12"]["same_side"] == 1 and of["H25.11"]["other_side"] == 1  # "right" is in another sentence


def test_the_stored_verifier_is_the_same(tmp_path):
    shipped = SiblingVerifier.shipped()
    again = SiblingVerifier.from_json(shipped.to_json())
    assert np.allclose(again.named, shipped.named) and np.allclose(again.unnamed, shipped.unnamed)
    stored = shipped.to_json()
    stored["unnamed"]["shoe_size"] = 1.0
    with pytest.raises(DataError, match="shoe_size"):
        SiblingVerifier.from_json(stored)
    SiblingChooser(shipped, {icd("I50.9"): 3, Code("icd9cm", "428.0"): 2}).save(tmp_path)
    loaded = SiblingChooser.load(tmp_path)
    assert loaded.counts == {icd("I50.9"): 3, Code("icd9cm", "428.0"): 2}
    assert loaded.verifier.sure_from == pytest.approx(shipped.sure_from, abs=1e-5)


def test_a_coder_without_a_chooser_has_none(tmp_path):
    assert SiblingChooser.load(tmp_path) is None
    assert SiblingChooser.load("day-one").verifier is SiblingVerifier.shipped()


def test_the_chooser_takes_codes_of_the_release_and_of_one_parent_in_large_categories():
    chooser = SiblingChooser.load("day-one")
    text = "CKD stage 3."
    old = chooser.choose(text, icd("N18.9"), [span(text, "CKD")], {}, release="2019")
    assert icd("N18.3") in old.codes and icd("N18.30") not in old.codes
    injury = chooser.choose("Hip fracture.", icd("S72.001A"), [(0, 12)], {})
    assert {code.code[:7] for code in injury.codes} == {"S72.001"}
    assert chooser.choose(text, icd("I10"), [], {}) is None


def test_cosines_are_features_of_a_verifier_that_has_weights_for_them():
    embedder = Embedder.load(EmbedderSettings(model="minilm"), "cpu")
    asked = question(
        "Swelling of the legs. Systolic congestive heart failure.", "Systolic congestive heart failure", "I50.9"
    )
    cosines = cosine_features([asked], embedder)[0]
    best = asked.group.descriptions[int(cosines[:, 1].argmax())]
    assert "ystolic" in best and cosines.shape == (len(asked.group), len(EMBEDDED)) and cosines.max() <= 1.001
    weights = np.zeros(len(FEATURES) + len(EMBEDDED))
    weights[-1] = 10.0
    verifier = SiblingVerifier(weights, weights, 0.5)
    assert verifier.choose(asked, embedder).probabilities.argmax() == cosines[:, 1].argmax()
    with pytest.raises(ValueError, match="needs an embedder"):
        verifier.choose(asked)
    again = SiblingVerifier.from_json(verifier.to_json())
    assert again.features == FEATURES + EMBEDDED and np.allclose(again.named, weights)
