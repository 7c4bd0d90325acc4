"""The coder of short reports from a corpus to a bundle, with a tiny transformer; bundles of version 0.2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit

from nosology.config import load_recipe
from nosology.core import Code, ConfigError, Note
from nosology.corpora.corpus import write_corpus
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.models.hmhan.hmhan_net import HmhanEnsemble
from nosology.models.hmhan.report_batches import ReportBatchBuilder
from nosology.models.reports.reports_trainer import ReportsEnsembleTrainer, choose_net_weight
from nosology.models.train import train
from nosology.serving.coder import Coder
from tests.conftest import as_notes, small_notes
from tests.encoders.tiny import tiny_reports_settings

OLD = Path(__file__).parent / "bundles_of_version_0.2"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    return tiny_reports_settings(tmp_path_factory.mktemp("reports"))


def corpus_of(notes, folder):
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


def test_bundle_is_trained_saved_and_loaded(small_corpus, tiny, tmp_path):
    bundle = train(load_recipe("reports", tiny), [small_corpus], tmp_path / "bundle")
    again = Bundle.load(tmp_path / "bundle")
    notes = as_notes(["Type 2 diabetes. chronic low back pain", "no pneumonia", ""])
    assert np.array_equal(again.model.probabilities(notes), bundle.model.probabilities(notes))
    assert not again.model.probabilities(notes)[2].any() and again.model.kind == "reports"
    assert again.model.net_weight == bundle.provenance["found"]["net_weight"]
    metrics = measure(again, small_corpus, "test", tmp_path / "report").evaluation.metrics
    assert metrics["micro_f1"] > 0.6
    [spans] = again.model.evidence(notes[0], [0])
    assert {span.text for span in spans} <= set(notes[0].text.replace(".", "").split())


def test_cross_fitted_nets_share_the_svms_of_all_reports(tiny, tmp_path):
    notes = [replace(note, split=None, patient=f"p{i // 2}") for i, note in enumerate(small_notes(60))]
    settings = [*tiny, "model.ensemble_size=2", "training.epochs=1"]
    bundle = train(load_recipe("reports", settings), [corpus_of(notes, tmp_path / "corpus")], tmp_path / "bundle")
    assert len(bundle.model.net.nets) == 2 and bundle.provenance["n_dev"] == 60
    assert bundle.model.svms.weights.shape == (len(bundle.model.words), len(bundle.model.labels))


@pytest.mark.parametrize("at_least_one", [True, False])
def test_a_report_without_a_known_word_has_the_shares_of_train(at_least_one, tiny, tmp_path):
    """If every report must have a code; otherwise a report without words has none."""
    notes = [replace(note, split=None) for note in small_notes(60) if note.codes]
    settings = [*tiny, "model.ensemble_size=2", "training.epochs=1", f"decision.at_least_one={at_least_one}".lower()]
    train(load_recipe("reports", settings), [corpus_of(notes, tmp_path / "corpus")], tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    model, texts = bundle.model, ["...", "12345 67 89.0 ###", "", " \n", "Xyzzy, kein Befund"]
    probabilities = model.probabilities(as_notes(texts))
    shares = model.train_counts / len(notes) * at_least_one
    assert probabilities[:2] == pytest.approx(np.array([shares, shares]), abs=1e-6) and not probabilities[2:4].any()
    assert (probabilities[4] == pytest.approx(shares, abs=1e-6)) == at_least_one
    assert np.concatenate(list(model.probability_blocks(as_notes(texts)))).tolist() == probabilities.tolist()
    found = list(Coder(bundle).code_all(texts))
    accepted = [any(item.accepted for item in suggestions) for suggestions in found]
    assert accepted[:4] == [at_least_one, at_least_one, False, False] and accepted[4] >= at_least_one
    assert not any(item.evidence for suggestions in found for item in suggestions)


def test_a_negated_word_of_a_description_does_not_give_its_code(tiny, tmp_path):
    """ "acute" stands in the description of 462, and affirmed in "no acute process" of other reports."""
    cough, throat = Code("icd9cm", "786.2"), Code("icd9cm", "462")
    filler = "abcdefghijklmnopqrstuvwxyz"
    texts = [f"History: cough {a}{a}.\nImpression: {'No acute process' if a < 'd' else 'Clear'}." for a in filler]
    notes = [Note(f"n{i}", text, codes=(cough,)) for i, text in enumerate(texts)]
    notes += [Note(f"t{i}", f"History: sore throat {i}.\nImpression: Clear.", codes=(throat,)) for i in range(2)]
    trainer = ReportsEnsembleTrainer.from_notes(load_recipe("reports", tiny), notes, tmp_path, "")
    model = trainer.model
    new = ["No acute findings.", "No acute disease.", "Sore throat.", "Pharyngitis."]
    probabilities = expit(model.svms.logits([model.tokenize(note) for note in as_notes(new)]))
    of_throat = probabilities[:, model.labels.column(throat)]
    assert of_throat[:2].max() < 0.15 < 0.5 < of_throat[2:].min()


def test_nets_are_trained_with_held_out_logits_and_score_with_those_of_all_svms(tiny, tmp_path):
    trainer = ReportsEnsembleTrainer.from_notes(load_recipe("reports", tiny), small_notes(40), tmp_path, "")
    model, rows = trainer.model, np.arange(40)
    fitted = model.svms.logits(trainer.train.reports)
    assert trainer.offsets.shape == fitted.shape and np.abs(trainer.offsets - fitted).max() > 0.1
    batch = ReportBatchBuilder(trainer.train, rows, None, None, trainer.offsets).build(rows[:1], None)
    assert batch.offset.numpy() == pytest.approx(trainer.offsets[:1])
    net = trainer.build_net(rows, 0).eval()
    model.net = HmhanEnsemble([net])
    assert model.logits_of(trainer.train.reports) == pytest.approx(fitted, abs=1e-5), "an untrained net adds nothing"
    torch.nn.init.normal_(net.head.code_weight)
    whole = model.logits_of(trainer.train.reports)
    model.net_weight = 0.5
    half = model.logits_of(trainer.train.reports)
    assert half == pytest.approx((whole + fitted) / 2, abs=1e-5) and np.abs(half - fitted).max() > 0.01
    assert model.logits_of(trainer.train.reports, [2, 0]) == pytest.approx(half[:, [2, 0]], abs=1e-5)


def test_net_weight_is_the_largest_without_significantly_higher_cross_entropy():
    rng = np.random.default_rng(0)
    words, noise = rng.random(400), rng.normal(0, 0.5, 400)
    assert choose_net_weight({1.0: words - 0.2 + noise, 0.5: words - 0.1 + noise / 2, 0.0: words}) == 1.0, (
        "the net improves"
    )
    assert choose_net_weight({1.0: words + 0.2 + noise, 0.5: words + 0.1 + noise / 2, 0.0: words}) == 0.0, (
        "the net adds noise"
    )
    small = noise / 50 - noise.mean() / 50
    assert choose_net_weight({1.0: words + 0.1 + noise, 0.5: words + small, 0.0: words}) == 0.5, "half as good as none"
    assert choose_net_weight({1.0: words}) == 1.0


def test_nets_with_weight_zero_are_not_run_and_are_reported(tiny, tmp_path, monkeypatch):
    """Only word features count then; the provenance of the bundle says so."""
    notes = small_notes(40)
    settings = [*tiny, "model.frozen=true", "training.epochs=1"]
    monkeypatch.setattr("nosology.models.reports.reports_trainer.choose_net_weight", lambda _: 0.0)
    bundle = train(load_recipe("reports", settings), [corpus_of(notes, tmp_path / "notes")], tmp_path / "bundle")
    assert bundle.provenance["found"]["net_weight"] == 0.0 and not bundle.model.has_net_weight
    model, texts = bundle.model, [note.text for note in notes[:5]]
    before = model.probabilities(as_notes(texts))
    for net in model.net.nets:
        torch.nn.init.normal_(net.head.code_weight)
        monkeypatch.setattr(net.encoder, "forward", None)
    assert (model.probabilities(as_notes(texts)) == before).all()


@pytest.mark.parametrize(("name", "kind"), [("words", "reports"), ("paper", "hmhan")])
def test_bundles_of_kind_hmhan_of_version_0_2_give_the_same_probabilities(name, kind, tmp_path):
    """The bundles and their probabilities were written by version 0.2; with words, the kind is `reports` now."""
    bundle = Bundle.load(OLD / name)
    assert bundle.model.kind == kind and bundle.model.within_versions
    notes = [
        Note("a", small_notes(40)[0].text, extra={"modality": "CT", "age": 50}),
        Note("b", "Congestive heart failure. Seen in clinic."),
    ]
    expected = np.array(json.loads((OLD / f"{name}.json").read_text()))
    assert bundle.model.probabilities(notes) == pytest.approx(expected, abs=1e-5)
    bundle.save(tmp_path / "again")
    again = Bundle.load(tmp_path / "again")
    assert again.model.probabilities(notes) == pytest.approx(expected, abs=1e-5) and again.model.kind == kind


def test_word_features_belong_to_the_kind_reports():
    with pytest.raises(ConfigError, match="no key 'words'"):
        load_recipe("hmhan", ["words.features=100"])
