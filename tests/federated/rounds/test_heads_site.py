"""Tests of local training and evaluation at a hospital."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from nosology.config import load_recipe
from nosology.core import Code, ConfigError, DataError
from nosology.core.label_space import LabelSpace, label_versions, mask_other_versions, note_versions
from nosology.evaluation import brief, evaluate
from nosology.federated.federation_settings import FederatedHeadsRecipe, FederationSettings
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.local_training import loop_settings
from nosology.federated.rounds.site_results import SiteCounts
from nosology.models.heads.heads_net import CodedVectors, build_head, train_epochs
from nosology.models.heads.heads_settings import HeadShape
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
    directions = np.random.default_rng(0).normal(size=(DIM, len(CODES)))
    true = vectors @ directions + rng.normal(0, 0.3, size=(n, len(CODES))) > 0.5
    return CodedVectors(
        vectors, [tuple(code for code, hit in zip(CODES, row) if hit and code in codes) for row in true]
    )


def site(name: str = "a", seed: int = 1, codes=CODES, code_list=None) -> HeadsSite:
    notes = {
        split: embedded(n, seed + i, codes) for i, (split, n) in enumerate((("train", 60), ("dev", 30), ("test", 25)))
    }
    return HeadsSite(name, {"model": "none"}, "k", notes, code_list, torch.device("cpu"))


@pytest.fixture
def ready():
    result = site()
    result.configure(LabelSpace(CODES), result.statistics(1).scaler())
    return result


def weights(recipe=RECIPE) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in build_head(recipe.model, DIM, len(CODES), recipe.seed).state_dict().items()}


def test_metadata_omits_codes_of_few_notes():
    every, named = site().metadata(1).codes, site().metadata(15).codes
    assert named == {code: count for code, count in every.items() if count >= 15}
    assert 0 < len(named) < len(every)


def test_summed_statistics_equal_pooled_scaler():
    sites = [site(str(i), seed=10 * i) for i in range(5)]
    parts = [hospital.statistics(1) for hospital in sites]
    result = sum(parts[1:], parts[0]).scaler()
    pooled = StandardScaler().fit(
        np.concatenate([hospital.notes["train"].vectors for hospital in sites]).astype(np.float64)
    )
    np.testing.assert_allclose(result.mean, pooled.mean_, rtol=1e-9)
    np.testing.assert_allclose(result.scale, pooled.scale_, rtol=1e-9)


def test_statistics_of_too_few_notes_are_refused():
    with pytest.raises(DataError, match="statistics need 100"):
        site().statistics(100)


def test_training_without_setup_raises():
    with pytest.raises(DataError, match="has no labels and no scaler yet"):
        site().train(weights(), RECIPE, 1)


def test_kept_optimizer_state_equals_central_training(ready):
    keep = RECIPE.model_copy(update={"federation": RECIPE.federation.model_copy(update={"optimizer_state": "keep"})})
    now, optimizer_state = weights(), None
    for number in (1, 2, 3):
        update = ready.train(now, keep, number, optimizer_state)
        now, optimizer_state = update.arrays, update.optimizer_state
    net = build_head(RECIPE.model, DIM, len(CODES), RECIPE.seed)
    train_epochs(net, ready.tensors("train"), loop_settings(RECIPE), range(3), seed=RECIPE.seed)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(now[name], value.numpy(), atol=1e-6)
    one = RECIPE.model_copy(
        update={"federation": RECIPE.federation.model_copy(update={"rounds": 1, "local_epochs": 3})}
    )
    for name, value in ready.train(weights(), one, 1).arrays.items():
        np.testing.assert_allclose(net.state_dict()[name].numpy(), value, atol=1e-6)


def test_fedsgd_does_not_depend_on_the_partition():
    """One step at each site, averaged by notes, is one step on all notes, for a head without batch normalisation."""
    pooled = site()
    no_dropout = RECIPE.model_copy(
        update={
            "federation": RECIPE.federation.model_copy(update={"strategy": "fedadam", "optimizer": "fedsgd"}),
            "model": HeadShape(head="mlp", widths=[16], dropout=0.0),
        }
    )
    scaler = pooled.statistics(1).scaler()
    first = weights(no_dropout)

    def trained(rows: slice) -> dict[str, np.ndarray]:
        train = pooled.notes["train"]
        part = {"train": CodedVectors(train.vectors[rows], train.codes[rows])}
        result = HeadsSite("part", {"model": "none"}, "k", pooled.notes | part, None, torch.device("cpu"))
        result.configure(LabelSpace(CODES), scaler)
        return result.train(first, no_dropout, 1).arrays

    parts = [(slice(0, 7), 7), (slice(7, 40), 33), (slice(40, 60), 20)]
    sent = [(trained(rows), notes) for rows, notes in parts]
    for name, value in trained(slice(0, 60)).items():
        mean = sum(notes * result[name] for result, notes in sent) / 60
        np.testing.assert_allclose(mean, value, atol=2e-6)
        assert np.abs(value - first[name]).max() > 1e-3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([], "strategy must be"),
        (["federation.strategy=krum"], "strategy must be"),
        (["federation.strategy=fedyogi", "federation.local_epochs=2"], "local_epochs must be 1"),
        (["federation.strategy=fedadam", "federation.optimizer_state=keep"], "optimizer_state"),
        (["federation.strategy=fedadam"], "secure must be true"),
    ],
)
def test_fedsgd_needs_server_optimizer_and_privacy(changed, message):
    with pytest.raises(ConfigError, match=message) as error:
        load_recipe("heads-mlp", ["federation.optimizer=fedsgd", *changed])
    assert "[federation]" in str(error.value) and "rounds" not in str(error.value), (
        "the message must not print the whole table"
    )
    with pytest.raises(ConfigError, match=r"record_noise at least 0\.5"):
        load_recipe(
            "heads-mlp",
            ["federation.optimizer=fedsgd", "federation.strategy=fedyogi", "federation.privacy.record_noise=1e-9"],
        )
    for protection in ("privacy.secure=true", "privacy.record_noise=1.0", "min_site_notes=1"):
        assert load_recipe(
            "heads-mlp", ["federation.optimizer=fedsgd", "federation.strategy=fedyogi", f"federation.{protection}"]
        )


def test_old_names_of_settings_are_read_with_a_warning():
    old = {"optimizer": "sgd", "strategy": "fedadam", "moments": "fresh", "min_site_notes": 1}
    with pytest.warns(FutureWarning) as warned:
        settings = FederationSettings.model_validate(old)
    assert (settings.optimizer, settings.optimizer_state) == ("fedsgd", "reset")
    assert [str(warning.message) for warning in warned] == [
        "the setting moments is now named optimizer_state",
        'optimizer = "sgd" is now named "fedsgd"',
        'optimizer_state = "fresh" is now named "reset"',
    ]


def test_bias_gradient_reveals_note_counts(ready):
    """So gradients must be masked or noisy where codes of few notes must not be reported."""
    plain = RECIPE.federation.model_copy(update={"strategy": "fedadam", "optimizer": "fedsgd"})
    no_dropout = HeadShape(head="mlp", widths=[16], dropout=0.0, bce=1.0)
    fedsgd = RECIPE.model_copy(update={"federation": plain, "model": no_dropout})
    first = weights(fedsgd)
    sent = ready.train(first, fedsgd, 1).arrays["out.bias"] - first["out.bias"]
    with torch.no_grad():
        head = build_head(no_dropout, DIM, len(CODES), RECIPE.seed).eval()
        mean = torch.sigmoid(head.logits(ready.tensors("train").vectors)).mean(0).numpy()
    counts = np.round(60 * (sent + mean))
    np.testing.assert_array_equal(counts, ready.tensors("train").targets.sum(0).numpy())


def test_unused_labels_get_no_gradient():
    diagnoses = [code for code in CODES if code.system == "icd10cm"]
    for result in (site(codes=diagnoses), site(code_list=frozenset(diagnoses))):
        result.configure(LabelSpace(CODES), result.statistics(1).scaler())
        update = result.train(weights(), RECIPE, 1)
        assert update.label_mask.tolist() == [True] * 6 + [False]
        np.testing.assert_array_equal(update.arrays["out.weight"][6], weights()["out.weight"][6])
        np.testing.assert_array_equal(update.arrays["out.bias"][6], weights()["out.bias"][6])
        assert (update.arrays["out.weight"][:6] != weights()["out.weight"][:6]).all()
        assert not {code for code in result.metadata(1).codes if code.system == "icd10pcs"}


def test_fedprox_moves_less(ready):
    def moved(mu: float) -> float:
        prox = RECIPE.federation.model_copy(update={"strategy": "fedprox", "mu": mu, "local_epochs": 5})
        after = ready.train(weights(), RECIPE.model_copy(update={"federation": prox}), 1).arrays
        return float(sum(np.square(after[k] - v).sum() for k, v in weights().items() if "running" not in k))

    assert moved(10.0) < 0.7 * moved(0.0)


def test_summed_counts_equal_pooled_evaluation():
    """Five sites: micro metrics, exact match, MAP and the best F1 are those of all their notes together."""
    labels = LabelSpace(CODES[:5])  # two codes have no label
    sites = [site(str(i), seed=10 * i) for i in range(5)]
    parts = [hospital.statistics(1) for hospital in sites]
    scaler = sum(parts[1:], parts[0]).scaler()
    now = {k: v.numpy() for k, v in build_head(RECIPE.model, DIM, 5, 3).state_dict().items()}
    now["out.weight"] = now["out.weight"] * 8  # spread the logits
    calibration, threshold = PlattScaling(0.8, -0.1), 0.45
    result, logits, gold = None, [], []
    for hospital in sites:
        hospital.configure(labels, scaler)
        counted = hospital.evaluate(now, RECIPE, "test", calibration, threshold)
        result = counted if result is None else result + counted
        net = hospital._net(now, RECIPE).eval()
        logits.append(net.logits(hospital.tensors("test").vectors).detach().numpy())
        gold += hospital.notes["test"].codes
    logits = np.concatenate(logits)
    pooled = evaluate(labels, gold, calibration(logits), threshold, replicates=0)
    assert pooled["n_true_assignments_outside_label_space"] == int(result.outside[0]) > 0
    metrics = result.metrics(labels)
    for name in ("micro_f1", "micro_precision", "micro_recall", "exact_match", "map"):
        assert metrics[name] == pytest.approx(pooled[name], abs=1e-12), name
    assert metrics["macro_f1"] is metrics["hamming_loss"] is None  # the number of codes without a label is not reported
    # within a bin of a hundredth, the best F1 over edges is that over all scores
    assert result.best[1] == pytest.approx(brief(labels, gold, PlattScaling()(logits))["micro_f1"], abs=0.01)
    pooled_scaling = PlattScaling.fit(logits, labels.encode(gold))
    assert (result.calibration.a, result.calibration.b) == pytest.approx((pooled_scaling.a, pooled_scaling.b), abs=0.02)


def test_macro_metrics_equal_pooled_evaluation_if_all_codes_are_labels(ready):
    labels, calibration = LabelSpace(CODES), PlattScaling(0.8, -0.1)
    result = ready.evaluate(weights(), RECIPE, "test", calibration, 0.45).metrics(labels)
    logits = ready._net(weights(), RECIPE).eval().logits(ready.tensors("test").vectors).detach().numpy()
    pooled = evaluate(labels, ready.notes["test"].codes, calibration(logits), 0.45, replicates=0)
    assert len(result) == 11 and None not in result.values()
    assert result == pytest.approx({name: pooled[name] for name in result}, abs=1e-12)


NINE, TEN = ([Code(system, str(400 + i)) for i in range(6)] for system in ("icd9cm", "icd10cm"))
LABELS = LabelSpace(NINE[:4] + TEN[:4])  # no site learns the others
EXACT = ("micro_f1", "micro_precision", "micro_recall", "exact_match", "map")


@pytest.mark.parametrize("seed", range(5))
def test_note_is_scored_on_codes_of_its_version(seed):
    rng = np.random.default_rng(seed)
    codes = []
    for _ in range(60):
        offered = NINE if rng.random() < 0.4 else TEN
        codes.append((offered[rng.integers(6)], *(code for code in offered if rng.random() < 0.2)))
    logits = rng.normal(-0.5, 1, (60, 8)).astype(np.float32) + 2 * LABELS.encode(codes).toarray()
    logits = logits.astype(np.float32)
    scores, label_mask = PlattScaling(1.1, 0.2)(logits), np.ones(8, bool)
    result = SiteCounts.of(LABELS, logits[:25], scores[:25], codes[:25], label_mask, 0.6)
    result += SiteCounts.of(LABELS, logits[25:], scores[25:], codes[25:], label_mask, 0.6)
    masked = mask_other_versions(scores, note_versions(codes), label_versions(LABELS))
    pooled = evaluate(LABELS, codes, masked, 0.6, replicates=0)
    assert pooled["exact_match"] > 0 and result.outside[0] > 0
    assert {name: result.metrics(LABELS)[name] for name in EXACT} == pytest.approx(
        {name: pooled[name] for name in EXACT}, abs=1e-12
    )
    assert result.cells.sum() == (masked > 0).sum() and result.true.sum() == LABELS.encode(codes).nnz


def test_notes_without_codes_are_scored_on_all_labels():
    logits = np.full((3, 8), 2, np.float32)
    result = SiteCounts.of(LABELS, logits, PlattScaling()(logits), [()] * 3, np.ones(8, bool), 0.5)
    assert result.hits[1].tolist() == [3] * 8 and result.cells.sum() == 24 and result.exact[0] == 0
