"""Training runs: train notes for learning, dev notes for choices."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from nosology.config import load_recipe
from nosology.core import Code, ConfigError, DataError, Note
from nosology.corpora.corpus import write_corpus
from nosology.models.bundle import Bundle
from nosology.models.neural import CalibratedNet
from nosology.models.train import probabilities_in_place, train
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling
from tests.conftest import as_notes, small_notes


def corpus(notes, folder):
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


def weights(folder):
    return (folder / "model.safetensors").read_bytes(), (folder / "model.json").read_bytes()


def every_byte(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_seed_gives_the_same_bundle(small_corpus, small_bundle, tmp_path):
    train(load_recipe("linear"), [small_corpus], tmp_path / "b")
    assert every_byte(tmp_path / "b") == every_byte(small_bundle)


def test_test_notes_have_no_effect(small_bundle, tmp_path):
    changed = [
        replace(note, text="changed", codes=(Code("icd10cm", "A00.0"),)) if note.split == "test" else note
        for note in small_notes(160)
    ]
    train(load_recipe("linear"), [corpus(changed, tmp_path / "c")], tmp_path / "b")
    assert weights(tmp_path / "b") == weights(small_bundle)


def test_dev_words_and_codes_are_not_learned_without_refit(tmp_path):
    new = Code("icd10cm", "B20")
    notes = [
        replace(note, text=note.text + " xylophone", codes=(*note.codes, new)) if note.split == "dev" else note
        for note in small_notes(80)
    ]
    source = corpus(notes, tmp_path / "c")
    plain = train(load_recipe("linear"), [source], tmp_path / "plain")
    assert new not in plain.model.labels
    assert "xylophone" not in plain.model.tfidf.words
    refit = train(load_recipe("linear"), [source], tmp_path / "refit", refit=True)
    assert new in refit.model.labels
    assert refit.decision == plain.decision
    assert refit.provenance["trained_on"] == ["dev", "train"]


def test_corpus_without_splits_holds_out_a_share_then_refits(tmp_path):
    notes = [replace(note, split=None) for note in small_notes(120)]
    bundle = train(load_recipe("linear"), [corpus(notes, tmp_path / "c")], tmp_path / "b")
    assert 0 < bundle.provenance["n_dev"] < 60
    assert bundle.provenance["n_train"] + bundle.provenance["n_dev"] == 120
    assert bundle.provenance["tuned_on"] == "15% of train"
    assert bundle.model.train_counts.sum() == sum(len(note.codes) for note in notes)


def tiny(codes, **fields):
    words = ("cough fever", "sugar thirst", "edema ankles", "wheeze night", "gout toe")
    return [Note(id=str(i), text=words[i % 5], codes=(code,), **fields) for i, code in enumerate(codes)]


I10, E11 = Code("icd10cm", "I10"), Code("icd10cm", "E11.9")


@pytest.mark.parametrize(
    "notes",
    [
        tiny([I10, E11]),
        tiny([I10, I10]),
        tiny([I10] * 5),
        tiny([Code("icd10cm", f"A0{i}.0") for i in range(5)]),
        tiny([I10, E11] * 10, patient="one"),
        [*tiny([I10, I10]), *(Note(id=f"none{i}", text="well") for i in range(30))],
        [replace(note, split=split) for note, split in zip(tiny([I10, E11]), ("train", "dev"))],
    ],
    ids=["two notes", "one code", "one code in five", "codes seen once", "one patient", "few coded", "foreign dev"],
)
@pytest.mark.parametrize("threshold", ["global", "per_code"])
def test_tiny_corpora_can_be_trained_on(notes, threshold, tmp_path):
    recipe = load_recipe("linear", [f"decision.threshold={threshold}"])
    bundle = train(recipe, [corpus(notes, tmp_path / "c")], tmp_path / "b")
    assert bundle.provenance["n_train"] and bundle.provenance["n_dev"]
    assert 0 < bundle.decision.threshold < 1
    assert Bundle.load(tmp_path / "b").model.probabilities(as_notes(["cough"])).shape == (1, len(bundle.model.labels))


def test_single_coded_note_is_refused(tmp_path):
    source = corpus([*tiny([I10]), Note(id="x", text="well")], tmp_path / "c")
    with pytest.raises(DataError, match="two notes with codes"):
        train(load_recipe("linear"), [source], tmp_path / "b")


def test_notes_without_features_are_refused(tmp_path):
    with pytest.raises(DataError, match="no word"):
        train(
            load_recipe("linear", ["features.min_notes=99"]), [corpus(tiny([I10, E11]), tmp_path / "c")], tmp_path / "b"
        )


def test_several_corpora_equal_their_union(tmp_path):
    notes = small_notes(160)
    halves = [corpus(notes[:80], tmp_path / "a"), corpus(notes[80:], tmp_path / "b")]
    split = train(load_recipe("linear"), halves, tmp_path / "two")
    union = train(load_recipe("linear"), [corpus(notes, tmp_path / "c")], tmp_path / "one")
    assert weights(tmp_path / "two") == weights(tmp_path / "one")
    assert split.decision == union.decision


def test_label_settings(small_corpus, tmp_path):
    recipe = load_recipe("linear", ["labels.systems=['icd10pcs']"])
    assert train(recipe, [small_corpus], tmp_path / "b").model.labels.systems == ("icd10pcs",)
    with pytest.raises(DataError, match="no code is left to learn"):
        train(load_recipe("linear", ["labels.min_notes=1000"]), [small_corpus], tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda note: replace(note, codes=()), "training notes have no codes"),
        (lambda note: replace(note, split="test"), "a corpus must have train notes"),
        (
            lambda note: replace(note, codes=() if note.split == "dev" else note.codes),
            "dev notes have no codes",
        ),
    ],
)
def test_unusable_corpora_are_refused(change, sentence, tmp_path):
    source = corpus([change(note) for note in small_notes(40)], tmp_path / "c")
    with pytest.raises(DataError, match=sentence):
        train(load_recipe("linear"), [source], tmp_path / "b")


def test_saved_bundle_equals_the_returned_one(small_corpus, tmp_path):
    trained = train(load_recipe("linear"), [small_corpus], tmp_path / "b")
    again = Bundle.load(tmp_path / "b")
    assert again.decision == trained.decision
    assert again.provenance == trained.provenance


def test_same_corpus_twice_is_refused(small_corpus, tmp_path):
    with pytest.raises(ConfigError, match="each corpus must be given once"):
        train(load_recipe("linear"), [small_corpus, small_corpus], tmp_path / "b")


def test_scores_become_probabilities_in_their_place_with_equal_bytes():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (6000, 60)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.3] = EXCLUDED_LOGIT
    model = CalibratedNet()
    model.calibration = PlattScaling(0.9, -0.2)
    expected = model.to_probabilities(logits)
    tracemalloc.start()
    found = probabilities_in_place(model, logits)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is logits and found.tobytes() == expected.tobytes()
    assert peak < logits.nbytes / 2  # block by block, not in a second matrix
    wide = rng.normal(0, 3, (5, 4))
    before = wide.copy()
    assert np.array_equal(probabilities_in_place(model, wide), model.to_probabilities(before))
    assert np.array_equal(wide, before)
