"""Saving and loading of bundles."""

import json

import numpy as np
import pytest

from nosology.core import BundleError, Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle
from nosology.models.linear.linear_model import Linear
from nosology.models.linear.linear_trainer import Choice, LinearRecipe, fit_linear
from nosology.models.linear.tfidf import Tfidf, TfidfSettings
from nosology.training.calibration import ScoreCalibration
from tests.conftest import as_notes

LABELS = LabelSpace([Code("icd10cm", "I10"), Code("icd9cm", "401.9")])


@pytest.fixture
def bundle(tmp_path):
    texts = ["high blood pressure", "fever", "blood pressure high", "cough"]
    gold = LABELS.encode([[LABELS.codes[0]], [], [LABELS.codes[1]], []])
    model = fit_linear(LinearRecipe(), LABELS, *Tfidf.fit(texts, TfidfSettings()), gold, Choice(1.0, 100))
    model = Linear(LABELS, model.train_counts, model.tfidf, model.weights, model.bias, ScoreCalibration(0, 1, 0, 0))
    saved = Bundle(model, Decision(0.4, {LABELS.codes[1]: 0.7}), {"kind": "linear"}, {"seed": 1})
    saved.save(tmp_path / "b")
    return saved, tmp_path / "b"


def test_round_trip(bundle):
    saved, folder = bundle
    again = Bundle.load(folder)
    texts = ["high fever", "blood"]
    assert np.array_equal(again.model.probabilities(as_notes(texts)), saved.model.probabilities(as_notes(texts)))
    assert (again.decision, again.recipe, again.provenance) == (saved.decision, saved.recipe, saved.provenance)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


def test_save_replaces_an_earlier_bundle(bundle):
    saved, folder = bundle
    saved.with_threshold(0.9).save(folder)
    assert Bundle.load(folder).decision == Decision(0.9)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_error_names_changed_and_missing_files(bundle, name):
    _, folder = bundle
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + b"x")
    with pytest.raises(BundleError, match=f"damaged: {name}"):
        Bundle.load(folder)
    (folder / name).unlink()
    with pytest.raises(BundleError, match=f"incomplete: {name} is missing"):
        Bundle.load(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "pickle"}, "kind must be one of linear.*got 'pickle'"),
        ({"format": 99}, "format must be 1"),
        ({"files": {"../../etc/passwd": "0"}}, "incomplete"),
        ({"decision": {}}, "cannot be read: KeyError"),
        ({"decision": {"threshold": 7, "by_code": []}}, "cannot be read: ValueError"),
        ({"kind": ["linear"]}, "kind is missing or no str"),
        ({"files": ["model.json"]}, "files is missing or no dict"),
        ({"provenance": None}, "provenance is missing or no dict"),
        ({"recipe": None}, "recipe is missing or no dict"),
        ({"labels_hash": "0"}, "its codes are not those"),
    ],
)
def test_wrong_manifest_is_refused(bundle, change, sentence):
    _, folder = bundle
    path = folder / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BundleError, match=sentence):
        Bundle.load(folder)


def test_changed_value_of_the_manifest_is_refused(bundle):
    saved, folder = bundle
    path = folder / "bundle.json"
    text = path.read_text()
    for old, new in (('"threshold": 0.4', '"threshold": 0.5'), ('"seed": 1', '"seed": 3'), ('"digest"', '"dhgest"')):
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        with pytest.raises(BundleError, match="its digest is not that of its content"):
            Bundle.load(folder)
    manifest = json.loads(text)
    del manifest["digest"]  # as version 0.1 wrote it
    path.write_text(json.dumps(manifest))
    assert Bundle.load(folder).decision == saved.decision


def test_folder_without_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match=r"holds no bundle\.json"):
        Bundle.load(tmp_path)
    (tmp_path / "bundle.json").write_text("{")
    with pytest.raises(BundleError, match="not JSON"):
        Bundle.load(tmp_path)
    (tmp_path / "bundle.json").write_text('{"format": 1, "kind": "linear"}')
    with pytest.raises(BundleError, match="damaged: files is missing"):
        Bundle.load(tmp_path)
