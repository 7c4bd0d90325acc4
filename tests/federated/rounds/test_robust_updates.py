"""Tests of norm bounds, of robust rules with labels that only some sites use, and of what they report by site."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.special import expit

from nosology.config import load_recipe
from nosology.core import ConfigError
from nosology.core.label_space import LabelSpace
from nosology.federated.deploy.federation_status import Traffic, make_status, status_text
from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import to_record
from nosology.federated.rounds.robust_updates import (
    ROBUST,
    bound_norms,
    change_norm,
    format_shares,
    merge_shares,
    select_counts,
)
from nosology.federated.rounds.simulation import simulation_grid
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate
from nosology.federated.rounds.strategy import ValidatingStrategy
from nosology.federated.rounds.vectorized import VectorizedFederation
from nosology.models.bundle import Bundle
from tests.federated.rounds.test_federation_server import Broken
from tests.federated.small_hospitals import CODES, notes, recipe, sites

L, D = 6, 3
SHAPES = {"hidden.weight": (D, 4), "out.weight": (L, D), "out.bias": (L,)}


def arrays(seed: int, size: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (size * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


INITIAL = arrays(99)


def update(site: str, change: dict[str, np.ndarray], notes: float = 10.0, label_mask=None) -> SiteUpdate:
    mask = np.ones(L, bool) if label_mask is None else np.asarray(label_mask, bool)
    return SiteUpdate(site, {name: INITIAL[name] + change[name] for name in SHAPES}, notes, 0.5, mask)


def aggregate(updates: list[SiteUpdate], **changes) -> tuple[dict[str, np.ndarray], ValidatingStrategy]:
    strategy = ValidatingStrategy(FederationSettings(**changes))
    strategy.initial = INITIAL
    return strategy.aggregate(1, updates)[0], strategy


HONEST = [update(f"s{i}", arrays(i, 0.01), 10 + i) for i in range(4)]
LONG = update("s4", arrays(4, 5.0), 10)


def test_multiple_of_the_median_norm_shortens_long_updates_and_counts_each_site_once():
    sent = [*HONEST, LONG]
    changes = [{name: item.arrays[name].astype(float) - INITIAL[name] for name in SHAPES} for item in sent]
    norms = [np.sqrt(sum((array**2).sum() for array in change.values())) for change in changes]
    bound = 1.5 * sorted(norms)[2]
    factors = [min(1, bound / norm) for norm in norms]
    result, strategy = aggregate(sent, norm_multiple=1.5)
    for name in SHAPES:
        mean = sum(factor * change[name] for factor, change in zip(factors, changes)) / 5
        np.testing.assert_allclose(result[name], INITIAL[name] + mean, atol=1e-6)
    assert strategy.cut == pytest.approx({f"s{i}": 1 - factor for i, factor in enumerate(factors)}, abs=1e-9)
    assert strategy.cut["s4"] > 0.99 and max(strategy.cut[f"s{i}"] for i in range(4)) == 0


def test_absolute_norm_bound_and_the_smaller_of_two_bounds():
    for changes, bound in (({"norm_bound": 0.02}, 0.02), ({"norm_bound": 0.02, "norm_multiple": 100}, 0.02)):
        bounded, shares = bound_norms([*HONEST, LONG], INITIAL, FederationSettings(**changes))
        norms = [change_norm(item.arrays, INITIAL) for item in bounded]
        np.testing.assert_allclose(norms, bound, rtol=1e-2)  # float32 weights
        assert all(item.notes == 1 for item in bounded) and all(0 < share < 1 for share in shares.values())


def test_without_bounds_nothing_changes_and_zero_updates_are_kept():
    assert bound_norms(HONEST, INITIAL, FederationSettings()) == (HONEST, {})
    still = update("still", dict.fromkeys(SHAPES, np.float32(0)))
    bounded, shares = bound_norms([still, still, still], INITIAL, FederationSettings(norm_multiple=1))
    assert shares == {"still": 0.0} and change_norm(bounded[0].arrays, INITIAL) == 0


def test_site_that_claims_a_billion_notes_does_not_decide():
    liar = update("s4", {name: -array for name, array in arrays(0, 0.01).items()}, 1e9)
    plain, _ = aggregate([*HONEST, liar])
    bounded, _ = aggregate([*HONEST, liar], norm_multiple=1)
    honest, _ = aggregate(HONEST)
    assert change_norm(plain, liar.arrays) < 1e-4
    assert change_norm(bounded, honest) < 0.5 * change_norm(plain, honest)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_stay_between_honest_values_however_many_sites_use_a_label(data):
    """With one false update among five and at least three sites with the label, no rule leaves the honest range."""
    masks = data.draw(st.lists(st.lists(st.booleans(), min_size=L, max_size=L), min_size=5, max_size=5))
    sign = data.draw(st.sampled_from([-1, 1]))
    sent = [update(f"s{i}", arrays(i, 0.01), 10, mask) for i, mask in enumerate(masks[:4])]
    sent.append(update("s4", arrays(7, sign * 100.0), 10, masks[4]))
    masks = np.array(masks)
    for strategy in ROBUST:
        result, _ = aggregate(sent, strategy=strategy)
        for label in np.flatnonzero(masks.sum(0) >= 3):
            honest = np.stack([item.arrays["out.weight"][label] for item in sent[:4] if item.label_mask[label]])
            assert (result["out.weight"][label] >= honest.min(0) - 1e-6).all(), strategy
            assert (result["out.weight"][label] <= honest.max(0) + 1e-6).all(), strategy


def test_trimmed_mean_of_a_label_of_some_sites_matches_formula():
    """Ten sites, two cut off at each end; of eight with the label four remain, of four two."""
    masks = np.ones((10, L), bool)
    masks[:2, 1] = masks[:6, 2] = masks[:9, 3] = False
    sent = [update(f"s{i}", arrays(i), 10, mask) for i, mask in enumerate(masks)]
    result, _ = aggregate(sent, strategy="trimmed_mean", trim=0.2)
    for label, ends in ((0, 2), (1, 2), (2, 1), (3, 0)):
        rows = np.sort([item.arrays["out.weight"][label] for item in sent if item.label_mask[label]], 0)
        expected = rows[ends : len(rows) - ends].mean(0)
        np.testing.assert_allclose(result["out.weight"][label], expected, rtol=1e-5)


@pytest.mark.parametrize("strategy", ROBUST)
def test_shares_name_the_site_with_false_values(strategy):
    _, used = aggregate([*HONEST, LONG], strategy=strategy)
    assert sorted(used.cut) == [f"s{i}" for i in range(5)]
    assert used.cut["s4"] == max(used.cut.values()) > 0.7
    honest = [used.cut[f"s{i}"] for i in range(4)]
    expected = {"krum": [0, 1, 1, 1], "multi_krum": [0, 0, 0, 0]}
    assert sorted(honest) == expected[strategy] if strategy in expected else max(honest) < 0.6


def test_multi_krum_is_the_mean_of_the_updates_nearest_to_each_other():
    """Of seven sites two may be false: the five with the lowest scores are averaged, each counts once."""
    sent = [update(f"s{i}", arrays(i, 5.0 if i in (1, 4) else 0.01), 10 + 100 * i) for i in range(7)]
    result, strategy = aggregate(sent, strategy="multi_krum", malicious=2)
    honest = [item for i, item in enumerate(sent) if i not in (1, 4)]
    for name in SHAPES:
        np.testing.assert_allclose(result[name], np.mean([item.arrays[name] for item in honest], 0), atol=1e-6)
    assert strategy.min_replies == 7 and [site for site, share in strategy.cut.items() if share] == ["s1", "s4"]


def test_shares_as_text():
    assert format_shares({"a": 0.001, "b": 0.0}) == "" == format_shares({})
    assert format_shares({"a": 0.2, "b": 0.9, "c": 0.2, "d": 0.1}) == "cut off: b 90%, a 20%, c 20%"
    assert merge_shares({"a": 0.5}, {"a": 0.5, "b": 1.0}) == {"a": 0.75, "b": 1.0}


@pytest.mark.parametrize("name", ["norm_bound", "norm_multiple"])
@pytest.mark.parametrize("privacy", [{"secure": True}, {"site_clip": 1.0}])
def test_norm_bounds_are_refused_with_secure_sums_and_site_clip(name, privacy):
    with pytest.raises(ValidationError, match=f"{name} must be 0 where privacy.secure or privacy.site_clip is set"):
        FederationSettings(**{name: 2.0}, privacy=privacy)


@pytest.mark.parametrize("strategy", ROBUST)
def test_robust_strategies_are_refused_with_secure_sums(strategy):
    changes = [f"federation.strategy={strategy}", "federation.privacy.secure=true"]
    with pytest.raises(ConfigError, match=r"strategy must be a mean .* where secure"):
        FlowerFederation(simulation_grid([]), load_recipe("heads-mlp", changes))


def test_norm_bounds_are_refused_by_the_vectorized_engine():
    with pytest.raises(ConfigError, match="norm_multiple must be 0 with the vectorized engine; got 2"):
        VectorizedFederation(sites(3), recipe(norm_multiple=2.0))


def dev_counts(shift: float, seed: int, size: int = 1) -> SiteCounts:
    """Counts whose best threshold is near a shift."""
    part, labels = notes(20, seed), LabelSpace(CODES)
    true = labels.encode(part.codes).toarray()
    logits = (shift + true + np.random.default_rng(seed).uniform(-0.4, 0.4, true.shape)).astype(np.float32)
    counts = SiteCounts.of(labels, logits, expit(logits), part.codes, np.ones(len(labels), bool), None)
    return SiteCounts(*(size * array for array in counts.arrays().values()))


def test_dev_counts_with_extreme_thresholds_are_left_out_and_none_outweighs_the_median_site():
    counts = [dev_counts(shift, seed, 50 if shift == 1 else 1) for seed, shift in enumerate((0, 9, 1, 2, 3))]
    robust = FederationSettings(strategy="median")
    selected = select_counts(counts, robust)
    assert [round(each.best[0]) for each in selected] == [round(counts[i].best[0]) for i in (2, 3, 4)]
    assert [int(each.cells.sum()) for each in selected] == [int(counts[3].cells.sum())] * 3
    for name, array in selected[0].arrays().items():
        np.testing.assert_array_equal(array, dev_counts(1, 2).arrays()[name], err_msg=name)
    assert select_counts(counts[:2], robust) == counts[:2] and select_counts(counts, FederationSettings()) == counts


def test_false_counts_do_not_decide_the_threshold(tmp_path):
    """A site claims a hundred million dev notes with all codes: the threshold of a plain mean accepts everything."""

    def claim(message, context, app):
        reply = app(message, context)
        if json.loads(message.content["config"]["split"]) == "dev":
            arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            cells = np.zeros_like(arrays["cells"])
            cells[1] = 10**9
            reply.content["arrays"] = to_record(arrays | {"cells": cells, "true": cells, "notes": np.array([10**8])})
        return reply

    scores = {}
    for name, false, changes in (("true", False, {}), ("mean", True, {}), ("median", True, {"strategy": "median"})):
        grid = simulation_grid(sites(5))
        if false:
            Broken(grid, "site-02", "evaluate", claim)
        bundle = FlowerFederation(grid, recipe("mlp", 10, **changes)).run(tmp_path / name).bundle
        scores[name] = bundle.provenance["found"]["test"]["micro_f1"]
    assert scores["mean"] < scores["true"] - 0.05
    assert scores["median"] > scores["true"] - 0.03, scores


def scaling(factor: float, site_name: str, grid) -> None:
    """Makes a site multiply the change of its weights."""
    app = grid.app

    def scaled(message, context):
        reply = app(message, context)
        if context.node_config["site-name"] == site_name and message.metadata.message_type == "train":
            before = {name: array.numpy() for name, array in message.content["arrays"].items()}
            after = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            reply.content["arrays"] = to_record(
                {name: before[name] + np.float32(factor) * (after[name] - before[name]) for name in before}
            )
        return reply

    grid.app = scaled


def test_run_with_a_false_site_reports_it_and_keeps_its_quality(tmp_path):
    """The sign-flipped site ruins a plain mean. Bounds keep the quality; log and status name the site."""
    scores, hospitals = {}, sites(5)
    for name, factor, changes in (
        ("honest", 1, {}),
        ("mean", -20, {}),
        ("bounded", -20, {"norm_multiple": 1.0}),
        ("median", -20, {"strategy": "median"}),
    ):
        grid, lines = simulation_grid(hospitals), []
        scaling(factor, "site-02", grid)
        federation = FlowerFederation(grid, recipe("mlp", 15, **changes), lines.append)
        federation.run(tmp_path / name)
        scores[name] = Bundle.load(tmp_path / name).provenance["found"]["test"]["micro_f1"]
        if name == "bounded":
            assert "cut off: site-02 9" in lines[1]
            history = federation.checkpoint.history
            names = [site.name for site in hospitals]
            status = make_status(lines[-1], 15, history, names, names, {}, {}, Traffic())
            assert status["sites"]["site-02"]["cut"] > 0.9 > 0.5 > status["sites"]["site-01"]["cut"]
            (row,) = [line for line in status_text(status).splitlines() if line.startswith("site-02")]
            assert "9" in row and row.rstrip().endswith("%")
    assert scores["mean"] < scores["honest"] - 0.1
    assert min(scores["bounded"], scores["median"]) > scores["honest"] - 0.1, scores
