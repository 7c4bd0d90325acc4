"""Tests of rounds before those of the net: word vectors by federated word2vec."""

from __future__ import annotations

import numpy as np
import pytest

from nosology.encoders.word_vectors import initial_matrices, train_matrices, unit_vectors
from nosology.federated.rounds.async_rounds import AsyncFederation
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.simulation import simulation_grid
from nosology.federated.rounds.virtual_clock import virtual_grid
from nosology.federated.rounds.word_site import CONTEXTS, VECTORS
from tests.federated.rounds.test_word_learner import (
    SECRET,
    Interrupted,
    assert_near,
    corpus,  # noqa: F401 (a fixture)
    recipe,
    run,
    sites_of,
    weights_of,
)

ROUNDS = ("federation.vector_rounds=2", "vectors.epochs=6", "federation.optimizer_state=reset")


def start(notes, settings):
    """A federation that has agreed on words, and its sites."""
    sites = sites_of(notes, settings)
    federation = FlowerFederation(simulation_grid(sites), settings)
    federation.setup = federation.make_setup(None, "")
    return federation, sites


def test_vectors_of_a_round_are_the_mean_of_the_sites(corpus, tmp_path):  # noqa: F811
    settings = recipe("caml", "federation.vector_rounds=1", "vectors.epochs=4", "federation.rounds=1")
    federation, sites = start(corpus, settings)
    initial = federation.setup.initial_weights()
    assert list(initial) == [VECTORS, CONTEXTS] and not initial[CONTEXTS].any()
    for site in sites:
        site.configure(federation.setup.labels, federation.setup.inputs)
    updates = [site.train(initial, settings, 1) for site in sites]
    assert federation.setup.inputs.vector_epochs == 4
    mean = sum(update.notes * update.arrays[VECTORS].astype(float) for update in updates)
    expected = unit_vectors(mean / sum(update.notes for update in updates))
    whole = FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings)
    result = whole.run(tmp_path / "bundle")
    np.testing.assert_allclose(whole.setup.inputs.vectors, expected, atol=1e-6)
    np.testing.assert_array_equal(whole.setup.initial_weights()["embedding.weight"], whole.setup.inputs.vectors)
    assert [row["phase"] for row in result.history] == ["word vectors", ""]
    assert result.history[0]["micro_f1"] is None and result.history[1]["loss"] > 0


@pytest.mark.parametrize("kind", ["dual_laat", "caml"])
@pytest.mark.parametrize("stop", [1, 2, 3])  # within, at the end of and after word2vec
def test_run_interrupted_in_pretraining_continues_with_the_same_weights(corpus, tmp_path, kind, stop):  # noqa: F811
    settings = recipe(kind, *ROUNDS)
    whole = run(corpus, settings, tmp_path / "whole")

    def interrupting(line: str) -> None:
        if line.startswith(f"round {stop}/4"):
            raise Interrupted

    with pytest.raises(Interrupted):
        FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings, interrupting).run(tmp_path / "again")
    lines: list[str] = []
    resumed = FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings, lines.append)
    assert_near(weights_of(resumed.run(tmp_path / "again")), weights_of(whole), 0)
    assert lines[0].endswith(f"continues after round {stop}")
    assert lines[1].startswith(
        f"round {stop + 1}/4  word vectors  3 sites" if stop == 1 else f"round {stop + 1}/4  loss"
    )


def test_secure_sums_and_asynchronous_rounds_have_the_same_phases(corpus, tmp_path):  # noqa: F811
    three = (*ROUNDS, "federation.min_sites=3", "federation.quorum=3")
    plain = weights_of(run(corpus, recipe("caml", *three), tmp_path / "plain"))
    secure = run(corpus, recipe("caml", *three, "federation.privacy.secure=true"), tmp_path / "secure")
    assert_near(weights_of(secure), plain, 1e-5)
    settings = recipe("caml", *three, "federation.mode=async", "federation.buffer_size=3")
    sites = sites_of(corpus, settings)
    result = AsyncFederation(
        virtual_grid(sites, {site.name: 24 / site.sizes["train"] for site in sites}), settings
    ).run(tmp_path / "async")
    assert_near(weights_of(result), plain, 1e-5)  # all sites are equally fast


def test_late_updates_of_word2vec_are_dropped_when_the_net_starts(corpus, tmp_path):  # noqa: F811
    settings = recipe("caml", *ROUNDS, "federation.mode=async", "federation.buffer_size=2", "federation.rounds=3")
    slowness = {"site-2": 3.5}  # its first update comes in the rounds of the net
    sites = sites_of(corpus, settings)
    result = AsyncFederation(virtual_grid(sites, slowness), settings).run(tmp_path / "bundle")
    assert [row["sites"] for row in result.history[:2]] == [2, 2] and len(result.history) == 5


@pytest.mark.parametrize("rare", ["train", "unknown"])
def test_rare_words_have_no_update_of_word2vec(corpus, tmp_path, rare):  # noqa: F811
    (tmp_path / "words.txt").write_text(f"{SECRET}\nclinic\n")
    public = f"federation.vocabulary='{tmp_path / 'words.txt'}'"
    settings = recipe(
        "caml", *ROUNDS, public, f"federation.rare_words={rare}", "vectors.epochs=400"
    )  # words are sampled
    federation, sites = start(corpus, settings)
    initial, inputs = federation.setup.initial_weights(), federation.setup.inputs
    sites[0].configure(federation.setup.labels, inputs)
    update = sites[0].train(initial, settings, 1).arrays
    secret, clinic = (2 + inputs.words.index(word) for word in (SECRET, "clinic"))
    for name in (VECTORS, CONTEXTS):
        assert (update[name][secret] != initial[name][secret]).any() == (rare == "train")
        assert (update[name][clinic] != initial[name][clinic]).any()


def test_personal_word_vectors_start_from_the_shared_ones(corpus, tmp_path):  # noqa: F811
    settings = recipe("caml", *ROUNDS, "federation.personal=['embedding.']")
    federation = FlowerFederation(simulation_grid(sites_of(corpus, settings), tmp_path / "personal"), settings)
    bundle = federation.run(tmp_path / "bundle").bundle
    assert bundle.missing_layers == ["embedding.weight"]
    assert federation.setup.inputs.vectors is not None
    np.testing.assert_array_equal(federation.setup.personal["embedding.weight"], federation.setup.inputs.vectors)
    assert federation.setup.hash == bundle.provenance["federation"]["personal"]["setup"]


def test_epochs_of_all_rounds_are_those_of_the_recipe(corpus):  # noqa: F811
    """Of a small corpus 40, as central training; they are distributed over the rounds."""
    federation, _ = start(corpus, recipe("caml", "federation.vector_rounds=3"))
    assert federation.setup.inputs.vector_epochs == 14  # 40 / 3, rounded up
    assert start(corpus, recipe("caml", "federation.vector_rounds=3", "vectors.epochs=0"))[0].learner.rounds == 2


def test_learning_rate_falls_over_the_rounds(corpus):  # noqa: F811
    """With the shares of a training that has ended, nothing moves but by the smallest rate."""
    federation, sites = start(corpus, recipe("caml", *ROUNDS))
    sites[0].configure(federation.setup.labels, federation.setup.inputs)
    encodings = sites[0]._notes("train", sites[0]._untrained(federation.recipe)[0]).encodings
    matrices = initial_matrices(len(federation.setup.inputs.words) + 2, 8, 0)

    def moved(done: float, end: float) -> float:
        trained = train_matrices(encodings, matrices, epochs=2, done=done, end=end, seed=1)
        return float(sum(np.abs(new - old).sum() for new, old in zip(trained, matrices)))

    assert moved(0.0, 0.1) > 5 * moved(0.9, 1.0) > 0
