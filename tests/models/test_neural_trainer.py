"""Tests of the training of neural models, from notes to a bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.config import load_recipe
from nosology.core import Code, ConfigError, DataError, Note, OutputError
from nosology.core.label_space import ICD9, ICD10, LabelSpace, label_versions, mask_other_versions
from nosology.core.progress import ProgressCounter, counting
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.encoders.tokenizers import TokenIds
from nosology.evaluation.measure import measure
from nosology.models import neural_trainer as neural
from nosology.models import train as trainer
from nosology.models import word_tokenizer
from nosology.models.bundle import Bundle
from nosology.models.neural_trainer import Targets
from nosology.models.registry import load_class
from nosology.models.train import train
from nosology.models.word_tokenizer import build_word_tokenizer
from nosology.training.examples import Examples
from nosology.training.inference import default_device, trained_precision
from nosology.training.recipe_settings import WordVectorSettings
from nosology.training.run_folder import run_folder
from tests.conftest import PHRASES, as_notes, small_notes

QUICK = ["vectors.size=32", "vectors.epochs=1", "training.batch=16", "training.warmup=20"]
SMALL = {
    "dual_laat": [
        "model.width=32",
        "model.kernel=3",
        "model.heads=2",
        "model.dropout=0.0",
        "training.learning_rate=0.005",
    ],
    "caml": ["model.filters=16", "training.learning_rate=0.02"],
    "laat": ["model.hidden=12", "training.learning_rate=0.02"],
}


def recipe(kind: str, *more: str):
    return load_recipe(kind, [*QUICK, *SMALL[kind], *more])


@pytest.fixture(scope="module")
def larger(tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("neural") / "corpus"
    return write_corpus(small_notes(600), folder, source={}, filters=[], counts={})


@pytest.fixture(scope="module")
def coder(larger, tmp_path_factory) -> Bundle:
    """A DualLAAT coder that has learned the larger corpus."""
    folder = tmp_path_factory.mktemp("neural") / "bundle"
    train(recipe("dual_laat", "training.epochs=8"), [larger], folder)
    return Bundle.load(folder)


def test_dual_laat_learns_both_versions(coder, larger, tmp_path):
    for systems in (["icd10cm", "icd10pcs"], ["icd9cm"]):
        metrics = measure(coder, larger, "test", tmp_path / "report", systems=systems).evaluation.metrics
        assert metrics["map"] > 0.9, systems


def test_model_shows_evidence_and_scores_other_codes(coder):
    text = "Seen today. Chronic low back pain. Feels well."
    column = coder.model.labels.column(Code("icd10cm", "M54.5"))
    best = coder.model.evidence(as_notes([text])[0], [column])[0][0]
    assert text[best.start : best.end] == best.text
    other = coder.model.with_codes([(Code("icd10cm", "Z99.99"), "low back pain, a code of next year")])
    assert other.probabilities(as_notes([text])).shape == (1, 1)


def test_bundle_reports_its_training(coder):
    report = coder.provenance["found"]
    assert 1 <= report["best_epoch"] <= report["epochs"] <= 8
    assert report["metrics"]["map"] > 0.8
    assert report["shape"]["labels"] == 512  # resolved from the number of notes


def test_run_folder_is_deleted_after_training(small_corpus, tmp_path):
    train(recipe("caml", "training.epochs=1"), [small_corpus], tmp_path / "bundle")
    assert not run_folder(tmp_path / "bundle").exists()
    assert (tmp_path / "bundle" / "curves.csv").is_file()


def test_reference_padding_cannot_be_trained(small_corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.reference_padding is only for imported weights"):
        train(recipe("dual_laat", "model.reference_padding=true"), [small_corpus], tmp_path / "bundle")


@pytest.mark.parametrize("kind", ["caml", "laat"])
def test_caml_and_laat_learn(kind, small_corpus, tmp_path):
    bundle = train(recipe(kind, "training.epochs=15"), [small_corpus], tmp_path / "bundle")
    metrics = measure(bundle, small_corpus, "test", tmp_path / "report", systems=["icd10cm"]).evaluation.metrics
    assert metrics["map"] > 0.8


def test_plm_icd_learns_with_the_packaged_transformer(tmp_path):
    notes = [replace(note, split=("train", "dev")[i % 2]) for i, note in enumerate(small_notes(24))]
    corpus = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    changed = ["training.epochs=2", "training.batch=4", "training.learning_rate=1e-3", "training.warmup=0"]
    bundle = train(load_recipe("plm_icd", changed), [corpus], tmp_path / "bundle")
    text = "Seen for pneumonia of the right lower lobe."
    again = Bundle.load(tmp_path / "bundle")
    np.testing.assert_allclose(
        again.model.probabilities(as_notes([text])), bundle.model.probabilities(as_notes([text])), atol=1e-5
    )


def test_stopped_run_resumes(small_corpus, tmp_path, monkeypatch):
    uninterrupted = train(recipe("caml", "training.epochs=3"), [small_corpus], tmp_path / "whole")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Decision, "tune", stop)
        with pytest.raises(KeyboardInterrupt):
            train(recipe("caml", "training.epochs=3"), [small_corpus], tmp_path / "bundle")
    assert (run_folder(tmp_path / "bundle") / "checkpoint.safetensors").is_file()
    again = train(recipe("caml", "training.epochs=3"), [small_corpus], tmp_path / "bundle")
    assert again.provenance["found"]["resumed_at"] == uninterrupted.provenance["found"]["steps"]
    texts = ["congestive heart failure and type 2 diabetes"]
    np.testing.assert_array_equal(
        again.model.probabilities(as_notes(texts)), uninterrupted.model.probabilities(as_notes(texts))
    )


def test_without_dev_notes_train_notes_are_held_out_and_then_used(tmp_path, capsys):
    notes = [replace(note, split=None) for note in small_notes(60)]
    corpus = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    bundle = train(recipe("caml", "training.epochs=2"), [corpus], tmp_path / "bundle")
    assert bundle.provenance["refit"]
    assert bundle.model.train_counts.sum() == sum(len(note.codes) for note in notes)
    assert "caml, on train and dev notes: epoch 1/" in capsys.readouterr().err


def test_notes_without_a_word_are_refused(tmp_path):
    code = Code("icd10cm", "I50.9")
    notes = [Note(f"n{i}", "...", patient=f"p{i}", split=("train", "dev")[i % 2], codes=(code,)) for i in range(4)]
    corpus = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="no word"):
        train(recipe("caml", "training.epochs=1"), [corpus], tmp_path / "bundle")


def test_vocabulary_comes_from_train_notes_only(small_corpus, tmp_path):
    changed = [
        note if note.split == "train" else replace(note, text=note.text + " zebrafish" * 5) for note in small_notes(160)
    ]
    other = write_corpus(changed, tmp_path / "corpus", source={}, filters=[], counts={})
    results = [
        build_word_tokenizer(
            recipe("caml"), LabelSpace(PHRASES), Examples([corpus], lambda note: note.split == "train")
        )
        for corpus in (small_corpus, other)
    ]
    assert "zebrafish" not in results[1][0].vocabulary
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_bundle_says_how_the_word_vectors_were_trained(small_corpus, tmp_path):
    settings = ["training.epochs=1", "vectors.epochs=2"]
    bundle = train(recipe("caml", *settings), [small_corpus], tmp_path / "one")
    assert bundle.provenance["found"]["word_vectors"] == {"epochs": 2, "workers": 1, "reproducible": True}
    bundle = train(recipe("caml", *settings, "vectors.workers=2"), [small_corpus], tmp_path / "two")
    assert Bundle.load(tmp_path / "two").provenance == bundle.provenance
    assert bundle.provenance["found"]["word_vectors"] == {"epochs": 2, "workers": 2, "reproducible": False}


def test_word_vectors_of_several_workers_are_stored_until_the_run_ends(small_corpus, tmp_path, monkeypatch):
    some = recipe("caml", "training.epochs=1", "vectors.epochs=2", "vectors.workers=2")
    trained, real = [], word_tokenizer.train_word_vectors
    monkeypatch.setattr(
        word_tokenizer, "train_word_vectors", lambda *a, **b: trained.append(real(*a, **b)) or trained[-1]
    )

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Decision, "tune", stop)
        with pytest.raises(KeyboardInterrupt):
            train(some, [small_corpus], tmp_path / "bundle")
    [stored] = run_folder(tmp_path / "bundle").glob("word_vectors-*")
    examples = Examples([small_corpus], lambda note: note.split == "train")
    again = build_word_tokenizer(some, LabelSpace(PHRASES), examples, folder=stored.parent)[1]
    np.testing.assert_array_equal(again, trained[0])
    train(some, [small_corpus], tmp_path / "bundle")
    assert len(trained) == 1 and not run_folder(tmp_path / "bundle").exists()
    stored.parent.mkdir()
    (stored.parent / stored.name).write_bytes(b"damaged")
    build_word_tokenizer(some, LabelSpace(PHRASES), examples, folder=stored.parent)
    assert len(trained) == 2


def test_word_vectors_use_all_cores_for_many_notes(monkeypatch):
    monkeypatch.setattr("nosology.training.recipe_settings.cores", lambda: 16)
    settings = WordVectorSettings()
    assert [settings.resolved(notes).workers for notes in (0, 100, 4000, 4001, 90_000)] == [1, 1, 1, 16, 16]
    assert WordVectorSettings(workers=1).resolved(90_000).workers == 1
    assert WordVectorSettings(workers=3).resolved(10).workers == 3
    with pytest.raises(ConfigError, match=r"vectors\.workers must be at most \d+, 8 per core; got 5000"):
        WordVectorSettings(workers=5000).resolved(10)


def test_vectors_are_also_trained_on_the_train_notes_of_other_corpora(small_corpus, tmp_path):
    notes = [
        replace(note, text=("zebrafish " if note.split == "train" else "quokka ") * 9 + "walked 12 miles")
        for note in small_notes(40)
    ]
    other = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    settings = [f"vectors.corpora=['{other.folder}']", "vectors.cleaning=benchmark"]
    examples = Examples([small_corpus], lambda note: note.split == "train")
    alone, both = (
        build_word_tokenizer(recipe("caml", *more), LabelSpace(PHRASES), examples) for more in ([], settings)
    )
    assert set(both[0].vocabulary.words) - set(alone[0].vocabulary.words) == {"zebrafish", "walked", "miles"}
    assert both[0].benchmark and not alone[0].benchmark
    assert both[1].shape == (len(both[0].vocabulary), 32)


@pytest.mark.parametrize("kind, value", [("dual_laat", "default"), ("caml", "zero")])
def test_output_bias_starts_at_the_prior_or_as_in_the_paper(kind, value, small_corpus, monkeypatch):
    prior = captured(monkeypatch, small_corpus, kind).net
    paper = captured(monkeypatch, small_corpus, kind, f"model.output_bias={value}").net
    parameters = zip(prior.named_parameters(), paper.parameters())
    [name] = [name for (name, before), after in parameters if not bool((before == after).all())]
    assert name.endswith("bias")
    assert prior.get_parameter(name).mean() < -0.5 < paper.get_parameter(name).mean()


def captured(monkeypatch, small_corpus, kind: str, *more: str) -> SimpleNamespace:
    """What the loop is called with."""
    calls = []

    def fit(run):
        calls.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(neural, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        load_class(kind, "trainer")(recipe(kind, *more), small_corpus.folder / "none").train(
            Examples([small_corpus], lambda note: note.split == "train"),
            Examples([small_corpus], lambda note: note.split == "dev"),
            False,
        )
    return calls[0]


@pytest.mark.parametrize("kind", ["dual_laat", "caml"])
def test_step_has_only_codes_of_its_icd_version(kind, small_corpus, monkeypatch):
    call = captured(monkeypatch, small_corpus, kind)
    labels = LabelSpace(sorted(PHRASES))
    every = {"icd9cm", "icd10cm", "icd10pcs"}
    for version, systems in ((ICD9, {"icd9cm"}), (ICD10, {"icd10cm", "icd10pcs"}), (ICD9 | ICD10, every)):
        rows = np.flatnonzero(call.groups == version)[:5]
        shared = call.prepare_step(rows, np.random.default_rng(0))
        assert {labels.codes[column].system for column in _columns(call, shared, labels, kind)} == systems
        batch = call.make_batch(rows, shared)
        assert batch.targets.shape == (len(rows), len(shared))
        assert batch.targets.sum() > 0


def _columns(call: SimpleNamespace, shared: np.ndarray, labels: LabelSpace, kind: str) -> list[int]:
    if kind == "caml":
        return shared.tolist()
    # Descriptions are sorted as rows of numbers; find the label of each by what it says.
    model = call.validate.args[0]
    column_of = {tuple(row): column for column, row in enumerate(model.description_ids(model.descriptions).tolist())}
    return [column_of[tuple(row)] for row in call.net.descriptions[shared].tolist()]


def test_codes_with_the_same_description_share_a_target():
    labels = LabelSpace([Code("icd10cm", "A00"), Code("icd10cm", "A01"), Code("icd9cm", "001")])
    targets = Targets.of(labels, np.array([4, 4, 4]), 10)
    assert {version: pool.tolist() for version, pool in targets.pools.items()} == {
        ICD9: [4],
        ICD10: [4],
        ICD9 | ICD10: [4],
    }


def test_mean_loss_ignores_excluded_cells():
    logits = np.array([[2.0, -1.0, neural.EXCLUDED_LOGIT], [0.5, 30.0, neural.EXCLUDED_LOGIT]], dtype=np.float32)
    gold = np.array([[1, 0, 1], [0, 1, 0]])
    expected = binary_cross_entropy_with_logits(torch.tensor(logits[:, :2]), torch.tensor(gold[:, :2]).float())
    assert neural.mean_loss(logits, sparse.csr_matrix(gold)) == pytest.approx(expected.item(), rel=1e-6)


def test_saved_model_is_the_tuned_model(larger, tmp_path, monkeypatch):
    """Also where the best weights are not the last: descriptions must be read anew by the best."""
    scores = iter([0.9, 0.1, 0.1])
    monkeypatch.setattr(neural, "brief", lambda *_: {"map": next(scores), "micro_f1": 0.0})
    results = train(recipe("dual_laat", "training.epochs=3"), [larger], tmp_path / "bundle")
    assert results.provenance["found"]["best_epoch"] == 1
    texts = [note.text for note in small_notes(20)]
    loaded = Bundle.load(tmp_path / "bundle")
    np.testing.assert_allclose(
        results.model.probabilities(as_notes(texts)), loaded.model.probabilities(as_notes(texts)), atol=1e-6
    )
    dev = Examples([larger], lambda note: note.split == "dev")
    tuned = neural.TokenizedNotes.of(dev, recipe("dual_laat").labels, results.model.tokenizer, results.model.labels)
    logits = neural.version_logits(loaded.model, tuned, ProgressCounter())
    assert results.model.calibration == pytest.approx(loaded.model.calibrated(logits, tuned.gold).calibration)


def test_version_logits_are_those_of_the_codes_of_the_version(coder, larger):
    dev = Examples([larger], lambda note: note.split == "dev")
    notes = neural.TokenizedNotes.of(dev, recipe("dual_laat").labels, coder.model.tokenizer, coder.model.labels)
    assert set(notes.versions) == {ICD9, ICD10, ICD9 | ICD10}
    every = coder.model.logits_of(notes.encodings)
    mask_other_versions(every, notes.versions, label_versions(coder.model.labels), neural.EXCLUDED_LOGIT)
    with counting("scoring") as counter:
        np.testing.assert_allclose(neural.version_logits(coder.model, notes, counter), every, atol=1e-5)
    assert counter.value() == len(notes.encodings)


@pytest.mark.parametrize(("has_bf16", "expected"), [(False, "fp32"), (True, "auto")])
def test_a_net_trained_without_bf16_is_scored_without_it_on_any_device(has_bf16, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: has_bf16)
    assert trained_precision("auto", torch.device("cuda")) == expected
    assert trained_precision("auto", torch.device("cpu")) == "fp32"
    for given in ("fp32", "bf16", "fp64"):
        assert trained_precision(given, torch.device("cpu")) == given


@pytest.mark.parametrize("kind", SMALL)
def test_saved_precision_is_that_of_training(kind, small_corpus, tmp_path):
    train(recipe(kind, "training.epochs=1"), [small_corpus], tmp_path / "bundle")
    saved = json.loads((tmp_path / "bundle" / "model.json").read_text())["precision"]
    assert saved == trained_precision("auto", default_device())


def test_notes_of_other_icd_versions_are_ignored(small_corpus, monkeypatch):
    every = captured(monkeypatch, small_corpus, "caml")
    some = captured(monkeypatch, small_corpus, "caml", "labels.systems=['icd10cm']")
    assert set(every.groups) == {ICD9, ICD10, ICD9 | ICD10}
    assert set(some.groups) == {ICD10, ICD9 | ICD10}


def test_corpus_without_splits_is_refused_next_to_others(small_corpus, tmp_path):
    notes = [replace(note, id=f"x{note.id}", split=None) for note in small_notes(10)]
    other = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="no splits"):
        train(recipe("caml"), [small_corpus, other], tmp_path / "bundle")


def test_folder_of_the_user_is_not_overwritten(small_corpus, tmp_path):
    theirs = tmp_path / "bundle.run" / "thesis.txt"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    train(recipe("caml", "training.epochs=1"), [small_corpus], tmp_path / "bundle")
    assert [path.name for path in theirs.parent.iterdir()] == ["thesis.txt"]


def test_wrong_output_folder_is_refused_before_training(small_corpus, tmp_path, monkeypatch):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    monkeypatch.setattr(neural, "fit", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(OutputError, match="will not overwrite"):
        train(recipe("caml"), [small_corpus], tmp_path / "taken")


def test_dev_notes_may_have_unknown_codes(tmp_path):
    old, new = Code("icd9cm", "428.0"), Code("icd10cm", "I50.9")
    notes = [
        Note(f"n{i}", "heart failure today", patient=f"p{i}", split=("train", "dev")[i % 2], codes=((new, old)[i % 2],))
        for i in range(12)
    ]
    corpus = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    bundle = train(recipe("caml", "training.epochs=1"), [corpus], tmp_path / "bundle")
    assert bundle.provenance["found"]["dev_codes"] == 0


def test_notes_of_another_icd_version_alone_cannot_be_learned_from():
    gold = sparse.csr_matrix((2, 1), dtype=np.int8)
    labels = LabelSpace([Code("icd10cm", "I50.9")])
    notes = neural.TokenizedNotes([TokenIds(np.array([2, 3]))] * 2, [(), ()], gold, np.array([ICD9, ICD9]))
    with pytest.raises(DataError, match="they have no word, or only codes of another ICD version"):
        neural.LabelBatches.of(notes, Targets.of(labels), np.array([ICD10]))
