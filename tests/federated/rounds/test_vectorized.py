"""Tests of the vectorized engine: it gives the weights of the Flower engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.core import Code, ConfigError, FederationError, OutputError
from nosology.core.files import exclusive_output
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.federation_setup import embedder_key
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.simulation import simulation_grid
from nosology.federated.rounds.vectorized import VectorizedFederation, VectorizedSites
from nosology.models.heads.heads_net import CodedVectors, VectorNotes, build_head, train_epochs
from nosology.models.heads.heads_settings import HeadShape
from nosology.training.recipe_settings import LabelSettings

CODES = [Code("icd10cm", f"A0{i}") for i in range(6)] + [Code("icd10pcs", "0DTJ4ZZ")]
DIM = 8
IDENTITY = {"model": "none", "dim": DIM}


def sites(sizes: list[int], without: int | None = None) -> list[HeadsSite]:
    """Sites with these numbers of train notes; site number `without` has no procedure codes."""
    directions = np.random.default_rng(0).normal(size=(DIM, len(CODES)))
    hospitals = []
    for i, n in enumerate(sizes):
        rng = np.random.default_rng(i + 1)
        parts = {}
        for split, size in (("train", n), ("dev", 20), ("test", 15)):
            vectors = rng.normal(0.2, 0.3, size=(size, DIM)).astype(np.float32)
            true = vectors @ directions + rng.normal(0, 0.3, size=(size, len(CODES))) > 0.4
            true[:, 6] &= i != without
            parts[split] = CodedVectors(vectors, [tuple(c for c, hit in zip(CODES, row) if hit) for row in true])
        hospitals.append(HeadsSite(f"site-{i}", IDENTITY, embedder_key(IDENTITY), parts, None, torch.device("cpu")))
    return hospitals


def recipe(**federation) -> FederatedHeadsRecipe:
    return FederatedHeadsRecipe.model_validate(
        {
            "model": {"head": "deep", "widths": [16, 8, 8]},
            "training": {"epochs": 1, "batch": 8, "micro_batches": 1, "warmup": 0, "schedule": "cosine"},
            "federation": {"rounds": 4, "min_sites": 2, "quorum": 2, "min_site_notes": 1, "min_notes": 1} | federation,
        }
    )


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
def test_weights_equal_the_flower_engine(tmp_path, strategy):
    sizes, settings = [40, 40, 33, 52], recipe(strategy=strategy, mu=0.5, local_epochs=2)
    grid = simulation_grid(sites(sizes, without=2))
    flower = FlowerFederation(grid, settings).run(tmp_path / "flower").bundle
    vectorized = VectorizedFederation(sites(sizes, without=2), settings).run(tmp_path / "vectorized").bundle
    for name, value in flower.model.net.state_dict().items():
        torch.testing.assert_close(vectorized.model.net.state_dict()[name], value, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(vectorized.decision.threshold, flower.decision.threshold, atol=1e-3)
    assert vectorized.provenance["n_test"] == flower.provenance["n_test"]
    assert vectorized.model.labels == flower.model.labels


def test_weights_equal_the_flower_engine_in_double_precision(tmp_path):
    settings = recipe(rounds=15, local_epochs=2)
    settings = settings.model_copy(update={"training": settings.training.model_copy(update={"precision": "fp64"})})
    grid = simulation_grid(sites([40, 40, 33]))
    flower = FlowerFederation(grid, settings).run(tmp_path / "flower").bundle.model.net.state_dict()
    result = VectorizedFederation(sites([40, 40, 33]), settings).run(tmp_path / "vectorized")
    vectorized = result.bundle.model.net.state_dict()
    for name, value in flower.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(vectorized[name], value, atol=1e-7, rtol=1e-6)


def test_interrupted_run_continues(tmp_path):
    settings = recipe()
    uninterrupted = VectorizedFederation(sites([40, 40]), settings).run(tmp_path / "uninterrupted").bundle

    class StopError(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("round 2/"):
            raise StopError

    with pytest.raises(StopError):
        VectorizedFederation(sites([40, 40]), settings, stop).run(tmp_path / "resumed")
    with pytest.raises(ConfigError, match="other notes"):
        VectorizedFederation(sites([40, 40]), settings).run(tmp_path / "resumed", notes="others")
    with exclusive_output(tmp_path / "resumed"), pytest.raises(OutputError, match="another federation is running"):
        VectorizedFederation(sites([40, 40]), settings).run(tmp_path / "resumed")
    lines = []
    resumed = VectorizedFederation(sites([40, 40]), settings, lines.append).run(tmp_path / "resumed").bundle
    assert "continues after round 2" in lines[0]
    for name, value in uninterrupted.model.net.state_dict().items():
        torch.testing.assert_close(resumed.model.net.state_dict()[name], value, atol=0, rtol=0)


def test_small_site_is_excluded(tmp_path):
    settings, lines = recipe(min_site_notes=10), []
    result = VectorizedFederation(sites([40, 40, 9]), settings, lines.append).run(tmp_path / "three").bundle
    reason = "it has 9 train notes; 10 are needed (federation.min_site_notes)"
    assert lines[0] == f"site-2 is excluded: {reason}"
    assert result.provenance["federation"]["refused"] == {"site-2": reason}
    without = VectorizedFederation(sites([40, 40]), settings).run(tmp_path / "two").bundle.model.net.state_dict()
    for name, value in result.model.net.state_dict().items():
        torch.testing.assert_close(value, without[name], atol=0, rtol=0)
    with pytest.raises(FederationError, match="no site has 10 train notes"):
        VectorizedFederation(sites([9, 9]), settings).run(tmp_path / "none")


@pytest.mark.parametrize(
    "privacy",
    [
        {"record_noise": 1.0},
        {"site_clip": 1.0},
        {"site_clip": 1.0, "site_noise": 1.0},
        {"secure": True},
    ],
)
def test_privacy_is_refused(tmp_path, privacy):
    with pytest.raises(ConfigError, match=r"federation\.privacy\.\w+ must not be set with the vectorized engine"):
        VectorizedFederation(sites([20, 20]), recipe(privacy=privacy)).run(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_unsupported_settings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"federation\.strategy must be fedavg or fedprox"):
        VectorizedFederation(sites([20, 20]), recipe(strategy="krum")).run(tmp_path / "b")
    narrow = recipe().model_copy(update={"labels": LabelSettings(top_k=3)})
    with pytest.raises(ConfigError, match=r"labels\.top_k must not be set in a federation"):
        VectorizedFederation(sites([20, 20]), narrow).run(tmp_path / "b")
    half = recipe()
    half = half.model_copy(update={"training": half.training.model_copy(update={"precision": "bf16"})})
    with pytest.raises(ConfigError, match=r"training\.precision must be"):
        VectorizedFederation(sites([20, 20]), half).run(tmp_path / "b")
    other = sites([20, 20, 20])
    other[2].key, other[2].identity = "other", {"model": "another", "dim": DIM}
    with pytest.raises(FederationError, match="site-2 cannot take part: embedder: model must be 'none'"):
        VectorizedFederation(other, recipe()).run(tmp_path / "b")


FEATURES, LABELS = 6, 5
WIDTHS = {"mlp": [12], "deep": [12, 8, 8], "res": [12, 8, 8]}


def notes(n: int, seed: int, label_mask: bool = False) -> VectorNotes:
    rng = np.random.default_rng(seed)
    vectors = torch.from_numpy(rng.normal(size=(n, FEATURES)).astype(np.float32))
    targets = torch.from_numpy((rng.random((n, LABELS)) < 0.3).astype(np.uint8))
    mask = torch.from_numpy((rng.random(LABELS) < 0.7).astype(np.float32)) if label_mask else None
    return VectorNotes(vectors, targets, mask)


@pytest.mark.parametrize("head", ["mlp", "deep", "res"])
@pytest.mark.parametrize(
    ("sizes", "label_mask", "clip", "mu"),
    [([40, 40, 40], False, 0.0, 0.0), ([33, 40, 47, 40], True, 0.5, 0.1)],
    ids=["equal sites", "different sites"],
)
def test_vectorized_training_equals_train_epochs(head, sizes, label_mask, clip, mu):
    settings = FederatedHeadsRecipe().training.model_copy(update={"batch": 16, "epochs": 6, "clip": clip})
    shape = HeadShape(head=head, widths=WIDTHS[head])
    sites = [notes(n, i, label_mask) for i, n in enumerate(sizes)]
    first = build_head(shape, FEATURES, LABELS, 3)
    alone, losses = [], []
    for site in sites:
        net = build_head(shape, FEATURES, LABELS, 3)
        start = {name: value.detach().clone() for name, value in net.named_parameters()}
        proximal_term = lambda n, s=start: mu / 2 * sum(((p - s[k]) ** 2).sum() for k, p in n.named_parameters())  # noqa: E731
        losses.append(train_epochs(net, site, settings, range(2, 5), seed=7, penalty=proximal_term if mu else None))
        alone.append(net.state_dict())
    stack = {name: torch.stack([value] * len(sites)).clone() for name, value in first.state_dict().items()}
    result = VectorizedSites(sites, settings, 7).train(first, stack, range(2, 5), mu)
    for i, state in enumerate(alone):
        for name, value in state.items():
            torch.testing.assert_close(stack[name][i], value, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(result, losses, atol=1e-6)


def test_different_numbers_of_steps_are_refused():
    settings = FederatedHeadsRecipe().training.model_copy(update={"batch": 16})
    with pytest.raises(ValueError, match="equally many steps"):
        VectorizedSites([notes(16, 0), notes(40, 1)], settings, 0)
