"""Tests of federated PLANT: language model, counts of words and codes, ranker at the server, net."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nosology.config import load_recipe
from nosology.core import ConfigError, DataError
from nosology.evaluation.measure import measure
from nosology.federated.rounds import plant_learner
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.plant_site import BOTH_SHARE, CODE_SHARE, WORD_SHARE
from nosology.federated.rounds.simulation import simulation_grid
from nosology.models.bundle import Bundle
from nosology.models.plant.plant_trainer import PlantPipeline, _train_classifiers
from nosology.training.examples import Examples
from tests.federated.rounds.test_word_learner import (
    SECRET,
    Interrupted,
    assert_near,
    corpus,  # noqa: F401 (a fixture)
    corpus_of,
    diagnoses,
    recorded,
    run,
    sites_of,
    weights_of,
)


def recipe(*changes: str):
    federation = {"rounds": 2, "language_rounds": 2, "min_sites": 1, "quorum": 1, "min_site_notes": 2, "min_notes": 1}
    settings = [f"federation.{name}={value}" for name, value in (federation | {"max_retries": 0}).items()]
    sizes = [
        "model.size=8",
        "model.hidden=8",
        "model.layers=1",
        "ranker.epochs=2",
        "ranker.steps=20",
        "words.min_notes=2",
    ]
    language = ["language.training.epochs=2", "language.training.batch=2", "language.window=8"]
    return load_recipe("plant", [*settings, *sizes, *language, "training.precision=fp32", *changes])


def near(result, expected, within):
    assert_near(weights_of(result), expected, within)


@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("rounds", [4, 1])
def test_one_site_equals_central_training(tmp_path, direction, rounds):
    """All phases: the counts of one site are those of its notes, and the server trains the same ranker."""
    notes = corpus_of([replace(note, site="only") for note in diagnoses(48)], tmp_path / "corpus")
    settings = recipe(
        f"federation.rounds={rounds}",
        f"federation.local_epochs={4 // rounds}",
        "federation.min_site_notes=1",
        f"federation.language_rounds={min(rounds, 2)}",
        "training.epochs=4",
        f"model.direction={direction}",
    )
    result = run(notes, settings, tmp_path / "bundle")
    pipeline = PlantPipeline.of(settings, Examples([notes], lambda note: note.split == "train"), tmp_path / "central")
    model, _ = _train_classifiers(pipeline, None, "test", {})
    near(result, {name: value.cpu().numpy() for name, value in model.net.state_dict().items()}, 1e-5)
    np.testing.assert_array_equal(result.bundle.model.relevance.words, pipeline.relevance().words)
    assert [row["phase"] for row in result.history] == [
        *["language model"] * min(rounds, 2),
        "words and codes",
        *[""] * rounds,
    ]


def test_bundle_learns_and_its_metrics_are_those_of_evaluate(corpus, tmp_path):  # noqa: F811
    settings = recipe("federation.rounds=6", "federation.local_epochs=3")
    result = run(corpus, settings, tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.model.kind == "plant" and result.history[-1]["loss"] < result.history[3]["loss"]
    assert result.history[1]["loss"] < result.history[0]["loss"]  # of the language model
    measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
    assert bundle.provenance["found"]["test"]["micro_f1"] == pytest.approx(measured["micro_f1"], abs=1e-6)
    assert measured["map"] > 0.5


def setup_of(notes, settings):
    """The setup and the sites of a federation before its first round."""
    sites = sites_of(notes, settings)
    federation = FlowerFederation(simulation_grid(sites), settings)
    setup = federation.make_setup(None, "")
    for site in sites:
        site.configure(setup.labels, setup.inputs)
    return setup, sites


def test_counts_of_all_sites_are_those_of_pooled_notes(corpus):  # noqa: F811
    settings = recipe("federation.privacy.secure=true", "federation.min_sites=3", "federation.quorum=3")
    _, sites = setup_of(corpus, settings)
    updates = [site.train({}, settings, 3) for site in sites]
    pooled = PlantPipeline.of(settings, Examples([corpus], lambda note: note.split == "train"), corpus.folder)
    total = sum(update.notes for update in updates)
    shares = {name: sum(u.notes * u.arrays[name].astype(float) for u in updates) / total for name in updates[0].arrays}
    np.testing.assert_allclose(shares[CODE_SHARE] * total, pooled.notes.label_counts, atol=1e-4)
    both = (shares[BOTH_SHARE] * total).round()
    assert both.max() > 5 and np.abs(both - shares[BOTH_SHARE] * total).max() < 1e-4
    assert (both <= (shares[WORD_SHARE] * total).round()).all()


def test_pairs_of_few_patients_are_sent_in_secure_sums_only(tmp_path, corpus):  # noqa: F811
    """The secret word is in four notes of one patient; a public list makes it a word of the federation."""
    (tmp_path / "words.txt").write_text(f"{SECRET}\nclinic\nheart\n")
    for secure in (False, True):
        changes = [
            f"federation.vocabulary='{tmp_path / 'words.txt'}'",
            f"federation.privacy.secure={str(secure).lower()}",
        ]
        setup, sites = setup_of(corpus, recipe(*changes, "federation.min_sites=3", "federation.quorum=3"))
        arrays = sites[0].train({}, recipe(*changes), 3).arrays
        share = arrays[BOTH_SHARE]
        assert arrays[WORD_SHARE][2 + setup.inputs.words.index(SECRET)].any() == secure
        assert arrays[WORD_SHARE][2 + setup.inputs.words.index("clinic")] > 0
        assert share[:, 2 + setup.inputs.words.index(SECRET)].any() == secure
        assert share[:, 2 + setup.inputs.words.index("heart")].any()


def test_word_of_too_few_patients_is_in_no_message(corpus, tmp_path):  # noqa: F811
    settings = recipe("federation.rounds=1")
    grid = simulation_grid(sites_of(corpus, settings))
    seen = recorded(grid)
    run(corpus, settings, tmp_path / "bundle", grid)
    assert SECRET.encode() not in b"\n".join(seen) and b"clinic" in b"\n".join(seen)


@pytest.mark.parametrize("stop", [2, 3, 4])  # at the end of the language model, of the counts, within the net
def test_interrupted_run_continues_with_the_same_weights(corpus, tmp_path, stop):  # noqa: F811
    settings = recipe("federation.optimizer_state=reset")
    whole = weights_of(run(corpus, settings, tmp_path / "whole"))

    def interrupting(line: str) -> None:
        if line.startswith(f"round {stop}/5"):
            raise Interrupted

    with pytest.raises(Interrupted):
        FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings, interrupting).run(tmp_path / "again")
    near(run(corpus, settings, tmp_path / "again"), whole, 0)


def test_secure_sums_give_the_mean(corpus, tmp_path):  # noqa: F811
    """With a threshold of one patient, the counts in the clear are those of secure sums."""
    three = ("federation.min_sites=3", "federation.quorum=3", "federation.min_site_notes=1")
    plain = run(corpus, recipe(*three), tmp_path / "plain")
    secure = run(corpus, recipe(*three, "federation.privacy.secure=true"), tmp_path / "secure")
    np.testing.assert_array_equal(plain.bundle.model.relevance.words, secure.bundle.model.relevance.words)
    near(secure, weights_of(plain), 1e-4)


def test_personal_head(corpus, tmp_path):  # noqa: F811
    settings = recipe("federation.personal=['head']")
    federation = FlowerFederation(simulation_grid(sites_of(corpus, settings), tmp_path / "personal"), settings)
    bundle = federation.run(tmp_path / "bundle").bundle
    assert sorted(bundle.missing_layers) == ["nets.0.bias", "nets.0.queries", "nets.0.weights"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("federation.mode=async", "federation.mode must be 'sync' for a federated plant; got 'async'"),
        ("federation.strategy=median", "federation.strategy must be 'fedavg' or 'fedprox'"),
        ("federation.compression=top_k", "federation.compression must be 'none' or 'bf16'"),
        ("federation.fraction_train=0.5", "federation.fraction_train must be 1.0"),
        ("stages=x", "stages must be ''"),
    ],
)
def test_settings_that_plant_does_not_support_are_refused(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        FlowerFederation(simulation_grid([]), recipe(change))


def test_too_many_codes_and_words_are_refused(corpus, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(plant_learner, "_MAX_SHARES", 10)
    with pytest.raises(DataError, match="words x codes must be at most 10 for a federated plant"):
        run(corpus, recipe(), tmp_path / "bundle")


def test_impossible_shares_of_a_site_are_limited(corpus):  # noqa: F811
    setup, _ = setup_of(corpus, recipe())
    learner = setup.learner
    language = learner.finish_phase(setup, 2, setup.initial_weights())
    setup = setup.with_learned(language)
    shares = {name: np.full_like(array, 7.0) for name, array in setup.initial_weights().items()}
    learned = learner.finish_phase(setup, 3, shares)
    assert np.isfinite(learned["relevance/scores"]).all()
    assert torch.isfinite(torch.from_numpy(learned["ranker/forward/labels"])).all()
