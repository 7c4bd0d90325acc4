"""A hospital: what it tells, what it learns, what it counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from nosology.config import load_recipe
from nosology.core import Code, ConfigError, DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation import brief, evaluate
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.hospital_site import Site, loop_settings
from nosology.models.heads.coded_vectors import CodedVectors, new_head
from nosology.models.heads.heads_settings import HeadShape
from nosology.models.heads.vector_loop import train_epochs
from nosology.training.calibration import PlattScaling

CODES = [Code("icd10cm", f"A0{i}") for i in range(6)] + [Code("icd10pcs", "0DTJ4ZZ")]
DIM = 8
RECIPE = FederatedHeadsRecipe.model_validate(
    {
        "model": {"head": "deep", "widths": [16, 8, 8]},
        "training": {"epochs": 3, "batch": 8, "micro_batches": 1, "warmup": 0, "schedule": "cosine"},
        "federation": {"rounds": 3, "min_site_notes": 1, "min_notes": 1},
    }
)


def embedded(n: int, seed: int, codes=CODES) -> CodedVectors:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(0.2, 0.3, size=(n, DIM)).astype(np.float32)
    lean = np.random.default_rng(0).normal(size=(DIM, len(CODES)))
    true = vectors @ lean + rng.normal(0, 0.3, size=(n, len(CODES))) > 0.5
    return CodedVectors(
        vectors, [tuple(code for code, hit in zip(CODES, row) if hit and code in codes) for row in true]
    )


def site(name: str = "a", seed: int = 1, codes=CODES, only=None) -> Site:
    notes = {
        split: embedded(n, seed + i, codes) for i, (split, n) in enumerate((("train", 60), ("dev", 30), ("test", 25)))
    }
    return Site(name, {"model": "none"}, "k", notes, only, torch.device("cpu"))


@pytest.fixture
def ready():
    found = site()
    found.prepare(LabelSpace(CODES), found.statistics(1).scaler())
    return found


def weights(recipe=RECIPE) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in new_head(recipe.model, DIM, len(CODES), recipe.seed).state_dict().items()}


def test_codes_of_few_notes_are_not_named():
    every, named = site().facts(1).codes, site().facts(15).codes
    assert named == {code: count for code, count in every.items() if count >= 15}
    assert 0 < len(named) < len(every)


def test_statistics_of_several_sites_equal_the_pooled_scaler():
    sites = [site(str(i), seed=10 * i) for i in range(5)]
    parts = [one.statistics(1) for one in sites]
    found = sum(parts[1:], parts[0]).scaler()
    pooled = StandardScaler().fit(np.concatenate([one.notes["train"].vectors for one in sites]).astype(np.float64))
    np.testing.assert_allclose(found.mean, pooled.mean_, rtol=1e-9)
    np.testing.assert_allclose(found.scale, pooled.scale_, rtol=1e-9)


def test_statistics_of_too_few_notes_are_not_told():
    with pytest.raises(DataError, match="statistics need 100"):
        site().statistics(100)


def test_a_site_that_was_told_nothing_says_so():
    with pytest.raises(DataError, match="has not been told codes and scaler yet"):
        site().train(weights(), RECIPE, 1)


def test_one_site_with_kept_moments_is_central_training(ready):
    kept = RECIPE.model_copy(update={"federation": RECIPE.federation.model_copy(update={"moments": "kept"})})
    now, moments = weights(), None
    for number in (1, 2, 3):
        update = ready.train(now, kept, number, moments)
        now, moments = update.weights, update.moments
    net = new_head(RECIPE.model, DIM, len(CODES), RECIPE.seed)
    train_epochs(net, ready.ready("train"), loop_settings(RECIPE), range(3), seed=RECIPE.seed)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(now[name], value.numpy(), atol=1e-6)
    one = RECIPE.model_copy(
        update={"federation": RECIPE.federation.model_copy(update={"rounds": 1, "local_epochs": 3})}
    )
    for name, value in ready.train(weights(), one, 1).weights.items():
        np.testing.assert_allclose(net.state_dict()[name].numpy(), value, atol=1e-6)


def test_with_plain_steps_it_never_matters_how_notes_are_dealt():
    """One step at each site, averaged by notes, is one step on all notes, for a head without batch normalisation."""
    whole = site()
    calm = RECIPE.model_copy(
        update={
            "federation": RECIPE.federation.model_copy(update={"strategy": "fedadam", "optimizer": "sgd"}),
            "model": HeadShape(head="mlp", widths=[16], dropout=0.0),
        }
    )
    scaler = whole.statistics(1).scaler()
    first = weights(calm)

    def trained(rows: slice) -> dict[str, np.ndarray]:
        train = whole.notes["train"]
        part = {"train": CodedVectors(train.vectors[rows], train.codes[rows])}
        found = Site("part", {"model": "none"}, "k", whole.notes | part, None, torch.device("cpu"))
        found.prepare(LabelSpace(CODES), scaler)
        return found.train(first, calm, 1).weights

    parts = [(slice(0, 7), 7), (slice(7, 40), 33), (slice(40, 60), 20)]
    sent = [(trained(rows), notes) for rows, notes in parts]
    for name, value in trained(slice(0, 60)).items():
        mean = sum(notes * found[name] for found, notes in sent) / 60
        np.testing.assert_allclose(mean, value, atol=2e-6)
        assert np.abs(value - first[name]).max() > 1e-3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([], "strategy must be"),
        (["federation.strategy=krum"], "strategy must be"),
        (["federation.strategy=fedyogi", "federation.local_epochs=2"], "local_epochs must be 1"),
        (["federation.strategy=fedadam", "federation.moments=kept"], "moments"),
        (["federation.strategy=fedadam"], "secure must be true"),
    ],
)
def test_slopes_go_to_a_server_that_weighs_them(changed, says):
    with pytest.raises(ConfigError, match=says) as told:
        load_recipe("heads-mlp", ["federation.optimizer=sgd", *changed])
    assert "[federation]" in str(told.value) and "rounds" not in str(told.value), "its own words, not the whole table"
    with pytest.raises(ConfigError, match=r"record_noise 0\.5 at least"):
        load_recipe(
            "heads-mlp",
            ["federation.optimizer=sgd", "federation.strategy=fedyogi", "federation.privacy.record_noise=1e-9"],
        )
    for kept in ("privacy.secure=true", "privacy.record_noise=1.0", "min_site_notes=1"):
        assert load_recipe(
            "heads-mlp", ["federation.optimizer=sgd", "federation.strategy=fedyogi", f"federation.{kept}"]
        )


def test_the_slope_of_a_codes_bias_tells_how_many_notes_have_it(ready):
    """Which is why slopes are masked or noisy where codes of few notes are not to be named."""
    plain = RECIPE.federation.model_copy(update={"strategy": "fedadam", "optimizer": "sgd"})
    calm = HeadShape(head="mlp", widths=[16], dropout=0.0, bce=1.0)
    told = RECIPE.model_copy(update={"federation": plain, "model": calm})
    first = weights(told)
    sent = ready.train(first, told, 1).weights["out.bias"] - first["out.bias"]
    with torch.no_grad():
        head = new_head(calm, DIM, len(CODES), RECIPE.seed).eval()
        mean = torch.sigmoid(head.logits(ready.ready("train").vectors)).mean(0).numpy()
    counts = np.round(60 * (sent + mean))
    np.testing.assert_array_equal(counts, ready.ready("train").targets.sum(0).numpy())


def test_codes_that_a_site_does_not_code_with_get_no_gradient():
    diagnoses = [code for code in CODES if code.system == "icd10cm"]
    for found in (site(codes=diagnoses), site(only=frozenset(diagnoses))):
        found.prepare(LabelSpace(CODES), found.statistics(1).scaler())
        update = found.train(weights(), RECIPE, 1)
        assert update.known.tolist() == [True] * 6 + [False]
        np.testing.assert_array_equal(update.weights["out.weight"][6], weights()["out.weight"][6])
        np.testing.assert_array_equal(update.weights["out.bias"][6], weights()["out.bias"][6])
        assert (update.weights["out.weight"][:6] != weights()["out.weight"][:6]).all()
        assert not {code for code in found.facts(1).codes if code.system == "icd10pcs"}


def test_fedprox_stays_nearer(ready):
    def moved(mu: float) -> float:
        prox = RECIPE.federation.model_copy(update={"strategy": "fedprox", "mu": mu, "local_epochs": 5})
        after = ready.train(weights(), RECIPE.model_copy(update={"federation": prox}), 1).weights
        return float(sum(np.square(after[k] - v).sum() for k, v in weights().items() if "running" not in k))

    assert moved(10.0) < 0.7 * moved(0.0)


def test_summed_counts_equal_the_pooled_evaluation():
    """Five sites: micro metrics, exact match, MAP and the best F1 are those of all their notes together."""
    labels = LabelSpace(CODES[:5])  # two codes have no label
    sites = [site(str(i), seed=10 * i) for i in range(5)]
    parts = [one.statistics(1) for one in sites]
    scaler = sum(parts[1:], parts[0]).scaler()
    now = {k: v.numpy() for k, v in new_head(RECIPE.model, DIM, 5, 3).state_dict().items()}
    now["out.weight"] = now["out.weight"] * 8  # spread the logits
    calibration, threshold = PlattScaling(0.8, -0.1), 0.45
    found, logits, gold = None, [], []
    for one in sites:
        one.prepare(labels, scaler)
        counted = one.evaluate(now, RECIPE, "test", calibration, threshold)
        found = counted if found is None else found + counted
        net = one._net(now, RECIPE).eval()
        logits.append(net.logits(one.ready("test").vectors).detach().numpy())
        gold += one.notes["test"].codes
    logits = np.concatenate(logits)
    pooled = evaluate(labels, gold, calibration(logits), threshold, replicates=0)
    assert pooled["n_true_assignments_outside_label_space"] == int(found.outside[0]) > 0
    metrics = found.metrics(labels)
    for name in ("micro_f1", "micro_precision", "micro_recall", "exact_match", "map"):
        assert metrics[name] == pytest.approx(pooled[name], abs=1e-12), name
    assert metrics["macro_f1"] is metrics["hamming_loss"] is None  # nobody is told how many codes have no label
    # within a bin of a hundredth, the best F1 over edges is that over all scores
    assert found.best[1] == pytest.approx(brief(labels, gold, PlattScaling()(logits))["micro_f1"], abs=0.01)
    whole = PlattScaling.fit(logits, labels.encode(gold))
    assert (found.calibration.a, found.calibration.b) == pytest.approx((whole.a, whole.b), abs=0.02)


def test_where_all_codes_have_a_label_macro_metrics_are_those_of_the_pooled_evaluation(ready):
    labels, calibration = LabelSpace(CODES), PlattScaling(0.8, -0.1)
    found = ready.evaluate(weights(), RECIPE, "test", calibration, 0.45).metrics(labels)
    logits = ready._net(weights(), RECIPE).eval().logits(ready.ready("test").vectors).detach().numpy()
    pooled = evaluate(labels, ready.notes["test"].codes, calibration(logits), 0.45, replicates=0)
    assert len(found) == 11 and None not in found.values()
    assert found == pytest.approx({name: pooled[name] for name in found}, abs=1e-12)
