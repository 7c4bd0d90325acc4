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
from nosology.federated.rounds.personal_layers import load_personal
from nosology.federated.rounds.plant_site import BOTH_SHARE, CODE_SHARE, WORD_SHARE
from nosology.federated.rounds.simulation import simulation_grid
from nosology.models.bundle import Bundle
from nosology.models.plant.plant_trainer import PlantPipeline, _train_classifiers
from nosology.training.examples import Examples
from tests.conftest import PHRASES
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
from tests.federated.rounds.test_word_learner import recipe as word_recipe

CODE = next(iter(PHRASES))


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


# stop: at the end of the language model, of the counts, within the net
@pytest.mark.parametrize(("stop", "personal"), [(2, "[]"), (3, "['head']"), (4, "[]"), (4, "['head']")])
def test_interrupted_run_continues_with_the_same_weights(corpus, tmp_path, stop, personal):  # noqa: F811
    """Sites find their personal layers again: labels and inputs have the same hash."""
    settings = recipe("federation.optimizer_state=reset", f"federation.personal={personal}")

    def grid(name: str):
        return simulation_grid(sites_of(corpus, settings), tmp_path / name)

    whole = FlowerFederation(grid("p1"), settings)
    expected = weights_of(whole.run(tmp_path / "whole"))

    def interrupting(line: str) -> None:
        if line.startswith(f"round {stop}/5"):
            raise Interrupted

    with pytest.raises(Interrupted):
        FlowerFederation(grid("p2"), settings, interrupting).run(tmp_path / "again")
    resumed = FlowerFederation(grid("p2"), settings)
    near(resumed.run(tmp_path / "again"), expected, 0)
    assert resumed.setup.hash == whole.setup.hash
    for path in (tmp_path / "p1").rglob("*.safetensors"):
        own, again = (
            load_personal(folder, whole.setup.hash) for folder in (path.parent, tmp_path / "p2" / path.parent.name)
        )
        assert own and all((own[name] == again[name]).all() for name in own)


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
        ("federation.privacy.word_noise=1.0", "federation.privacy.word_noise must be 0.0"),
    ],
)
def test_settings_that_plant_does_not_support_are_refused(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        FlowerFederation(simulation_grid([]), recipe(change))


def test_too_many_codes_and_words_are_refused(corpus, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(plant_learner, "_MAX_SHARES", 10)
    with pytest.raises(DataError, match="words x codes must be at most 10 for a federated plant"):
        run(corpus, recipe(), tmp_path / "bundle")


@pytest.mark.parametrize("kind", ["plant", "caml"])
def test_wrong_personal_layers_are_refused_before_anything_is_trained(corpus, tmp_path, kind):  # noqa: F811
    wrong = "federation.personal=['hed']"
    settings = recipe(wrong) if kind == "plant" else word_recipe(kind, wrong, "federation.vector_rounds=1")
    lines: list[str] = []
    with pytest.raises(ConfigError, match=r"federation\.personal must be"):
        FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings, lines.append).run(tmp_path / "bundle")
    assert not lines


def test_public_list_must_not_be_longer_than_the_vocabulary(corpus, tmp_path):  # noqa: F811
    (tmp_path / "words.txt").write_text("clinic\nheart\nstable\n")
    public = f"federation.vocabulary='{tmp_path / 'words.txt'}'"
    with pytest.raises(ConfigError, match=r"at most words.max_words = 2 words; got 3"):
        run(corpus, recipe(public, "words.max_words=2"), tmp_path / "bundle")


def test_run_without_any_informative_word(tmp_path):
    """All notes have the same code: no word is informative, and the empty relevance is saved."""
    same = corpus_of([replace(note, site="only", codes=(CODE,)) for note in diagnoses(24)], tmp_path / "corpus")
    result = run(same, recipe("federation.rounds=1"), tmp_path / "bundle")
    assert not len(result.bundle.model.relevance.words)


def test_numbers_stay_out_where_rare_words_are_unknown(tmp_path):
    """Words without a letter are dropped, not read as unknown ones."""
    notes = [
        replace(note, site="only", text=f"{note.text} {i} 17", split="train") for i, note in enumerate(diagnoses(24))
    ]
    numbers = corpus_of(notes, tmp_path / "corpus")
    lengths = []
    for rare in ("train", "unknown"):
        settings = recipe("words.alphabetic=true", f"federation.rare_words={rare}", "federation.min_site_notes=8")
        _, (site,) = setup_of(numbers, settings)
        lengths.append([len(encoding) for encoding in site._notes("train", site._untrained(settings)[0]).encodings])
    assert lengths[0] == lengths[1]


def test_missing_site_in_the_round_of_counts_is_named(corpus, tmp_path):  # noqa: F811
    settings, lines = recipe("federation.rounds=1"), []
    grid = simulation_grid(sites_of(corpus, settings))

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("round 2/4"):
            grid.remove("site-1")

    FlowerFederation(grid, settings, report).run(tmp_path / "bundle")
    assert "caution: the last round of words and codes has 2 of 3 sites" in lines


def test_impossible_shares_of_a_site_are_limited(corpus):  # noqa: F811
    setup, _ = setup_of(corpus, recipe())
    learner = setup.learner
    language = learner.finish_phase(setup, 2, setup.initial_weights())
    setup = setup.with_learned(language)
    shares = {name: np.full_like(array, 7.0) for name, array in setup.initial_weights().items()}
    learned = learner.finish_phase(setup, 3, shares)
    assert np.isfinite(learned["relevance/scores"]).all()
    assert torch.isfinite(torch.from_numpy(learned["ranker/forward/labels"])).all()
