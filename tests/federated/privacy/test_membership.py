"""Tests of the membership-inference probe."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from nosology.cli import app
from nosology.config import load_recipe
from nosology.core import BundleError, DataError, OutputError
from nosology.corpora.corpus import write_corpus
from nosology.federated.privacy.membership import MembershipAttack, attack_features, probe, probe_bundle
from nosology.models.bundle import Bundle
from nosology.models.train import train
from tests.conftest import small_notes


def side(n: int, seed: int, sure: float, labels: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Logits and true codes of n notes; a larger `sure` separates true from false codes better."""
    rng = np.random.default_rng(seed)
    true = rng.random((n, labels)) < np.linspace(0.02, 0.4, labels)
    return rng.normal(np.where(true, sure, -sure), 2.0).astype(np.float32), true


def test_memorized_notes_are_detected():
    result = probe(side(600, 1, sure=3.0), side(500, 2, sure=1.0), control=side(500, 3, sure=1.0))
    for attack in result.attacks.values():
        assert attack.auc > 0.9 and attack.auc_low < attack.auc < attack.auc_high
    assert result.attacks["logistic"].hits > 0.3
    assert result.control.auc_low < 0.5 < result.control.auc_high
    assert "treat the weights as personal data" in result.sentence


def test_no_attack_on_a_coder_without_memorization():
    result = probe(side(600, 1, sure=1.5), side(500, 2, sure=1.5))
    assert all(attack.auc < 0.56 for attack in result.attacks.values())
    assert result.attacks["logistic"].hits < 0.05
    if result.attacks[result.strongest].auc_low <= 0.5:
        assert "does not prove" in result.sentence


def test_control_detects_different_splits():
    result = probe(side(600, 1, sure=2.0), side(500, 2, sure=1.0), control=side(500, 3, sure=2.0))
    assert "does not show what the coder reveals" in result.sentence


def test_attack_is_cross_validated():
    """Pure noise with many features and few notes: an attack scored on its own notes would look strong."""
    aucs = [probe(side(30, seed, 0.0), side(30, seed + 100, 0.0)).attacks["logistic"].auc for seed in range(12)]
    assert np.mean(aucs) < 0.58


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=40), st.lists(st.integers(0, 9), min_size=5, max_size=40))
def test_auc_equals_scikit_learn(seen, unseen):
    result = MembershipAttack.of(np.array(seen, float), np.array(unseen, float))
    expected = roc_auc_score(np.repeat([1, 0], [len(seen), len(unseen)]), seen + unseen)
    assert result.auc == pytest.approx(expected)
    assert 0 <= result.auc_low <= result.auc + 1e-12 and result.auc - 1e-12 <= result.auc_high <= 1


def test_interval_covers_true_auc():
    """95 of 100 intervals hold the true AUC, of normal scores with means one standard deviation apart."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        result = MembershipAttack.of(rng.normal(1, 1, 80), rng.normal(0, 1, 60))
        held += result.auc_low <= 0.76025 <= result.auc_high
    assert 0.91 < held / 300 < 0.985


def test_hits_at_one_percent_false_positives():
    unseen = np.arange(1000.0)
    result = MembershipAttack.of(np.array([988.5, 989.5, 990.5, 2000.0]), unseen)
    assert (unseen > 989).mean() == 0.01
    assert result.hits == 0.75


def test_calibrated_loss_ignores_rare_codes():
    """A rare code is hard for seen and unseen notes: the calibrated loss does not separate the groups."""
    rng = np.random.default_rng(0)

    def with_hard_code(n: int, share: float):
        true = np.zeros((n, 5), bool)
        true[:, 0] = rng.random(n) < share
        return rng.normal(-3, 0.5, (n, 5)), true

    seen, unseen = with_hard_code(400, 0.1), with_hard_code(400, 0.5)
    result = probe(seen, unseen)
    assert result.attacks["loss"].auc > 0.6
    assert abs(result.attacks["calibrated loss"].auc - 0.5) < 0.06
    assert attack_features(seen, unseen)[0].shape == (400, 7)


def test_too_few_notes_raise():
    with pytest.raises(DataError, match="at least 20 unseen notes; got 3"):
        probe(side(50, 1, 1.0), side(3, 2, 1.0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A head that has memorized 80 notes, and one trained for one epoch; their codes are random."""
    folder = tmp_path_factory.mktemp("probe")
    rng = np.random.default_rng(0)
    notes = small_notes(160)
    shuffled = [note.codes for note in notes]
    rng.shuffle(shuffled)
    notes = [replace(note, codes=codes) for note, codes in zip(notes, shuffled)]
    corpus = write_corpus(notes, folder / "corpus", source={"kind": "test"}, filters=[], counts={})
    cache = f"vectors.cache='{folder / 'vectors'}'"
    for name, epochs in (("long", 40), ("short", 1)):
        more = [f"training.epochs={epochs}", "training.patience=40", "training.batch=20", "model.widths=[256]", cache]
        more += ["training.learning_rate=0.003"]
        train(load_recipe("heads-mlp", more), [corpus], folder / name, refit=name == "long")
    return folder, corpus


def test_probe_of_bundles(trained):
    """The long one was refitted on train and dev, so both count as seen and there is no control."""
    folder, corpus = trained
    (long, cautions), (short, _) = (
        probe_bundle(Bundle.load(folder / name), corpus, folder / "vectors") for name in ("long", "short")
    )
    assert long.seen == 120 and long.unseen == 40 and long.control is None
    assert short.seen == 80 and short.control is not None
    assert long.attacks["loss"].auc > short.attacks["loss"].auc
    assert any("40 unseen notes" in line for line in cautions)
    few, _ = probe_bundle(Bundle.load(folder / "short"), corpus, folder / "vectors", notes=30)
    assert few.seen == few.unseen == 30


def test_probe_command(trained, small_bundle, small_corpus):
    folder, corpus = trained
    words = ["--corpus", str(corpus.folder), "--out", str(folder / "probe.json"), "--cache", str(folder / "vectors")]
    run = CliRunner().invoke(app, ["probe", str(folder / "short"), *words])
    assert run.exit_code == 0, run.output
    report = json.loads((folder / "probe.json").read_text())
    assert report["sentence"] in run.stdout and "control: dev against test" in run.stdout
    assert set(report["attacks"]) == {"loss", "calibrated loss", "logistic"}
    page = folder / "probe.html"
    for _ in range(2):  # replaces its own page
        assert CliRunner().invoke(app, ["probe", str(folder / "short"), *words, "--html", str(page)]).exit_code == 0
    shown = page.read_text()
    assert escape(report["sentence"]) in shown and shown.count("data:image/png;base64,") == 2
    assert f"{report['attacks']['logistic']['auc']:.3f}" in shown and "control: dev against test" in shown
    assert "40 unseen notes is a handful" in shown and corpus.hash in shown
    assert "<script" not in shown and not any(note.text[:40] in shown for note in corpus.notes())
    page.write_text("my page")
    run = CliRunner().invoke(app, ["probe", str(folder / "short"), *words, "--html", str(page)])
    assert isinstance(run.exception, OutputError) and page.read_text() == "my page"
    assert CliRunner().invoke(app, ["probe", str(folder / "short"), *words]).exit_code == 0  # replaces its own file
    with pytest.raises(BundleError, match="of kind heads; got linear"):
        probe_bundle(Bundle.load(small_bundle), small_corpus)


@pytest.mark.parametrize("content", ["Dear diary", '{"attacks": 1}', "[" * 100_000], ids=["text", "json", "nested"])
def test_probe_replaces_only_its_own_files_and_checks_this_first(tmp_path, content):
    (tmp_path / "mine.json").write_text(content)
    words = ["probe", str(tmp_path / "no_bundle"), "--corpus", str(tmp_path / "no_corpus"), "--out"]
    run = CliRunner().invoke(app, [*words, str(tmp_path / "mine.json")])
    assert isinstance(run.exception, OutputError) and "will not overwrite" in str(run.exception)
    assert (tmp_path / "mine.json").read_text() == content
    for out in (tmp_path, tmp_path / "mine.json" / "probe.json"):
        assert isinstance(CliRunner().invoke(app, [*words, str(out)]).exception, OutputError)


@pytest.mark.parametrize("provenance", [{}, {"trained_on": []}, {"trained_on": ["later"]}])
def test_a_bundle_without_provenance_is_refused(trained, provenance):
    folder, corpus = trained
    bundle = replace(Bundle.load(folder / "short"), provenance=provenance)
    with pytest.raises(BundleError, match="needs a bundle whose provenance has the splits"):
        probe_bundle(bundle, corpus, folder / "vectors")


def test_a_bundle_without_corpora_gives_a_caution(trained):
    folder, corpus = trained
    bundle = replace(Bundle.load(folder / "short"), provenance={"trained_on": ["train"]})
    assert any("does not name its corpus" in line for line in probe_bundle(bundle, corpus, folder / "vectors")[1])


def test_other_corpus_gives_a_caution(trained, small_corpus):
    folder, _ = trained
    _, cautions = probe_bundle(Bundle.load(folder / "short"), small_corpus, folder / "vectors")
    assert any("not trained on this corpus" in line for line in cautions)
