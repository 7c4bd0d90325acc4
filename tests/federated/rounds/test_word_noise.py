"""Tests of differentially private word counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import Message
from scipy.integrate import quad
from scipy.stats import norm

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.privacy.dp_sgd import PrivacyAccountant
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import STATISTICS, get_value, make_content
from nosology.federated.rounds.simulation import simulation_grid
from nosology.federated.rounds.word_noise import WordNoise, gaussian_epsilon
from tests.federated.rounds.test_word_learner import SECRET, corpus, recipe, sites_of  # noqa: F401 (a fixture)

NOISE = WordNoise(multiplier=1.0, limit=20, delta=1e-5, min_count=2)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_epsilon_is_that_of_the_gaussian_mechanism(multiplier, delta):
    """Delta by its definition: the integral of max(0, p - e^epsilon q) over the outputs of neighbouring inputs."""
    epsilon = gaussian_epsilon(multiplier, delta)
    start = epsilon * multiplier**2 + 0.5  # where p and e^epsilon q cross
    value, _ = quad(
        lambda x: norm.pdf(x, 1, multiplier) - math.exp(epsilon) * norm.pdf(x, 0, multiplier),
        start,
        start + 12 * multiplier,
    )
    assert value == pytest.approx(delta, rel=1e-3)


def test_word_of_one_patient_passes_with_probability_delta_at_most():
    """All `limit` words of a patient together: 1 - Phi((threshold - 1) / deviation)^limit = delta / 2."""
    wide = WordNoise(multiplier=0.7, limit=30, delta=0.2, min_count=1)
    passes = -math.expm1(30 * norm.logcdf((wide.threshold - 1) / wide.deviation))
    assert passes == pytest.approx(0.1)
    words, patient = [f"w{i}" for i in range(30)], [np.arange(30)]
    rng = np.random.default_rng(0)
    found = [bool(wide.report(words, patient, 100, rng)) for _ in range(4000)]
    assert np.mean(found) == pytest.approx(0.1, abs=0.02)


def test_patient_counts_for_limited_words_and_noise_has_its_deviation():
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(1000)]
    patients = [np.arange(1000)] * 30_000  # each counts for 20 of 1000 words: about 600 patients of a word
    counts = np.array(list(NOISE.report(words, patients, 10**6, rng).values()))
    assert len(counts) == 1000 and counts.sum() == pytest.approx(600_000, rel=0.002)
    one_each = [np.array([i % 1000]) for i in range(200_000)]  # exactly 200 patients of a word
    counts = np.array(list(NOISE.report(words, one_each, 10**6, rng).values()))
    assert len(counts) == 1000 and counts.mean() == pytest.approx(200, abs=0.6)
    assert counts.std() == pytest.approx(NOISE.deviation, rel=0.1)


def test_counts_are_within_what_the_server_accepts():
    patients = [np.arange(5)] * 40
    counts = NOISE.report([f"w{i}" for i in range(9)], patients, 40, np.random.default_rng(1))
    assert set(counts) <= {f"w{i}" for i in range(5)} and counts
    assert all(type(n) is int and 2 <= n <= 40 for n in counts.values())


def test_words_of_all_patients_do_not_tell_how_many_there_are():
    """The noise of such a word must go up as often as down: a limit at the number of patients would be exact."""
    noise, patients = WordNoise(multiplier=2.0, limit=50, delta=1e-5, min_count=2), [np.arange(50)] * 3_000
    counts = noise.report([f"w{i}" for i in range(50)], patients, 9_000, np.random.default_rng(3)).values()
    assert len(counts) == 50 and 15 < sum(count > 3_000 for count in counts) < 35


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_federation_with_noisy_words(corpus, tmp_path, noise):  # noqa: F811
    """With noise only words of nearly all patients of a site remain, and the bundle says which epsilon that has."""
    changes = ("federation.rounds=1", f"federation.privacy.word_noise={noise}", "federation.privacy.word_limit=4")
    settings = recipe("caml", *changes, "federation.privacy.delta=0.4")
    sites = sites_of(corpus, settings)
    bundle = FlowerFederation(simulation_grid(sites), settings).run(tmp_path / "bundle").bundle
    words, facts = bundle.model.tokenizer.vocabulary, bundle.provenance["federation"]
    assert SECRET not in words
    if noise:
        expected = WordNoise.of(settings.federation)
        assert facts["word_epsilon"] == expected.epsilon == gaussian_epsilon(0.2, 0.2)
    else:
        assert "clinic" in words and "word_epsilon" not in facts


def test_a_site_reports_words_with_noise_once_in_a_run(corpus):  # noqa: F811
    """A server that asks again gets no fresh noise, of which it could take the mean."""
    noisy = ("federation.privacy.word_noise=0.2", "federation.privacy.word_limit=4", "federation.privacy.delta=0.4")
    settings = recipe("caml", *noisy)
    grid = simulation_grid(sites_of(corpus, settings))

    def ask(asked):
        content = make_content(recipe=asked.model_dump(mode="json"))
        return grid.send_and_receive([Message(content, grid.get_node_ids()[0], STATISTICS)])[0]

    first, *others = [get_value(ask(settings).content, "words") for _ in range(5)]
    assert first and others == [first] * 4
    changed = recipe("caml", *noisy[:2], "federation.privacy.delta=0.3")
    assert "in this run, for another recipe" in ask(changed).error.reason


def test_settings_without_noise():
    assert WordNoise.of(FederationSettings()) is None


def test_epsilon_is_below_that_of_the_accountant_of_dp_sgd():
    """A second accountant, which composes Renyi divergences: its epsilon is an upper bound, and not far away."""
    accountant = PrivacyAccountant()
    accountant.add(1.0, 1.0)
    exact, bound = gaussian_epsilon(1.0, 1e-5), accountant.epsilon(1e-5)
    assert exact <= bound < 1.2 * exact


def test_figures_of_the_docs():
    noise = WordNoise(multiplier=1.0, limit=100, delta=1e-5, min_count=10)
    assert noise.epsilon == pytest.approx(4.5, abs=0.05) and noise.threshold == pytest.approx(54, abs=0.5)
