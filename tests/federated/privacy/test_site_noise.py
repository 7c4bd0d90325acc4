"""Tests of site-level privacy: clipping, noise, accounting."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant

from nosology.core import ConfigError
from nosology.federated.federation_settings import FederatedHeadsRecipe, FederationSettings, PrivacySettings
from nosology.federated.privacy.site_noise import (
    CentralNoise,
    PrivacyBudget,
    check_privacy,
    clip_update,
    noisy_mean,
    update_norm,
    weight_difference,
)
from nosology.federated.rounds.strategy import SiteUpdate
from nosology.models.heads.heads_settings import HeadShape

SHAPES = {"hidden.0.linear.weight": (6, 4), "out.weight": (3, 6), "out.bias": (3,)}


def arrays(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}


def update(site: str, seed: int, notes: float = 10, label_mask=(True, True, True), scale: float = 1.0) -> SiteUpdate:
    return SiteUpdate(site, arrays(seed, scale), notes, loss=0.5 + seed, label_mask=np.array(label_mask))


def flat(named: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([named[name].ravel() for name in SHAPES])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_clip_update_limits_the_norm_and_keeps_the_direction(seed, scale, clip):
    long = {name: array.astype(np.float64) for name, array in arrays(seed, scale).items()}
    short = clip_update(long, clip)
    assert update_norm(long) == pytest.approx(np.linalg.norm(flat(long)))
    assert update_norm(short) <= clip * (1 + 1e-12)
    assert update_norm(short) == pytest.approx(min(update_norm(long), clip))
    assert np.allclose(flat(short) * update_norm(long), flat(long) * update_norm(short))


def test_clip_of_a_zero_update_is_zero():
    assert update_norm(clip_update({"a": np.zeros(3)}, 1.0)) == 0


def test_sensitivity_of_the_mean_is_clip_over_sites():
    """The sensitivity that the accounting assumes: adding any update of one site changes the mean by at most this."""
    others = [weight_difference(arrays(i), arrays(99)) for i in range(4)]
    nothing = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    without = noisy_mean([*others, nothing], 0.7, 0.0, np.random.default_rng(0).standard_normal)
    for scale in (1e-3, 1, 1e8):
        mean = noisy_mean([*others, arrays(5, scale)], 0.7, 0.0, np.random.default_rng(0).standard_normal)
        assert np.linalg.norm(flat(mean) - flat(without)) <= 0.7 / 5 + 1e-12


def test_noise_has_the_given_standard_deviation():
    wide = [{"a": np.zeros((200, 300)), "b": np.zeros(4000)}] * 8
    mean = noisy_mean(wide, clip=3.0, noise=2.0, draw=np.random.default_rng(1).standard_normal)
    for array in mean.values():
        assert array.std() == pytest.approx(2.0 * 3.0 / 8, rel=5 / math.sqrt(2 * array.size))
        assert abs(array.mean()) < 5 * 0.75 / math.sqrt(array.size)
    assert np.corrcoef(mean["a"].ravel()[:4000], mean["b"])[0, 1] == pytest.approx(0, abs=0.1)


def test_central_noise_returns_the_unweighted_clipped_mean():
    start = arrays(99)
    central = CentralNoise(PrivacySettings(site_clip=0.5))
    sites = [update("a", 1, notes=1), update("b", 2, notes=999)]
    reduced = central(1, start, sites)
    expected = (
        flat(clip_update(weight_difference(sites[0].arrays, start), 0.5))
        + flat(clip_update(weight_difference(sites[1].arrays, start), 0.5))
    ) / 2
    assert np.allclose(flat(reduced.arrays) - flat(start), expected, atol=1e-6)
    assert all(array.dtype == np.float32 for array in reduced.arrays.values())
    assert reduced.notes == 1000 and reduced.loss == pytest.approx((1.5 + 999 * 2.5) / 1000)
    assert central.epsilon == math.inf, "a clip alone hides nothing"


def test_central_noise_unites_label_masks():
    central = CentralNoise(PrivacySettings(site_clip=0.5))
    reduced = central(1, arrays(9), [update("a", 1, label_mask=(1, 0, 0)), update("b", 2, label_mask=(1, 1, 0))])
    assert reduced.label_mask.tolist() == [True, True, False]


def test_accounting_per_site_survives_a_restart():
    private = recipe(privacy={"site_clip": 1.0, "site_noise": 4.0, "delta": 1e-3})
    budget = PrivacyBudget(private)
    central = budget.central
    assert central.epsilon == 0
    for number in range(1, 11):
        sites = [update("always", number)] + ([update("once", 77)] if number == 3 else [])
        central(number, arrays(0), sites)
        if number == 5:
            central = PrivacyBudget(private, json.loads(json.dumps(budget.to_json()))).central
    theirs = RDPAccountant()
    theirs.history = [(4.0, 1.0, 10)]
    assert central.epsilon == pytest.approx(theirs.get_epsilon(1e-3), rel=1e-6)
    assert central.accountants["once"].epsilon(1e-3) < central.epsilon / 2


def test_noise_differs_between_runs():
    settings = PrivacySettings(site_clip=1.0, site_noise=1.0)
    one, two = (CentralNoise(settings)(1, arrays(0), [update("a", 1)]) for _ in range(2))
    assert not np.array_equal(flat(one.arrays), flat(two.arrays))


def recipe(head="mlp", norm="batch", privacy=None, **federation) -> FederatedHeadsRecipe:
    settings = FederationSettings(privacy=PrivacySettings(**(privacy or {})), **federation)
    return FederatedHeadsRecipe(model=HeadShape(head=head, norm=norm), federation=settings)


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (recipe(privacy={"site_noise": 1.0}), "site_clip must be above 0"),
        (recipe("deep", privacy={"site_clip": 1.0}), 'model.norm must be "layer"'),
        (recipe("res", privacy={"record_noise": 1.0}), 'model.norm must be "layer"'),
        (recipe(privacy={"secure": True}, strategy="krum"), "which compares sites"),
        (recipe(privacy={"site_clip": 1.0}, strategy="median"), "which compares sites"),
        (recipe(privacy={"secure": True}, quorum=2), "must be at least 3"),
    ],
)
def test_contradicting_privacy_settings_are_refused(wrong, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_privacy(wrong)


def test_valid_privacy_settings_pass():
    check_privacy(recipe())
    check_privacy(recipe("deep", "layer", {"record_noise": 1.0, "site_clip": 1.0, "site_noise": 1.0, "secure": True}))
    check_privacy(recipe("deep", privacy={"secure": True}))
    check_privacy(recipe("mlp", privacy={"record_noise": 1.0, "site_clip": 1.0}))
