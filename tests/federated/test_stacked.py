"""All sites in one program: the weights of the same federation through Flower."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.core import Code, ConfigError, FederationError, OutputError
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.agreement import key_of
from nosology.federated.rounds.client_app import make_app
from nosology.federated.rounds.federation_server import run_federation
from nosology.federated.rounds.hospital_site import Site
from nosology.federated.rounds.in_process import SITE_NAME, InProcessGrid
from nosology.federated.rounds.saved_rounds import locked
from nosology.federated.rounds.stacked import run_stacked
from nosology.models.heads.coded_vectors import CodedVectors
from nosology.training.recipe_settings import LabelSettings

CODES = [Code("icd10cm", f"A0{i}") for i in range(6)] + [Code("icd10pcs", "0DTJ4ZZ")]
DIM = 8
IDENTITY = {"model": "none", "dim": DIM}


def sites(sizes: list[int], without: int | None = None) -> list[Site]:
    """Sites of so many train notes; the one named by `without` codes no procedures."""
    lean = np.random.default_rng(0).normal(size=(DIM, len(CODES)))
    made = []
    for i, n in enumerate(sizes):
        rng = np.random.default_rng(i + 1)
        parts = {}
        for split, size in (("train", n), ("dev", 20), ("test", 15)):
            vectors = rng.normal(0.2, 0.3, size=(size, DIM)).astype(np.float32)
            true = vectors @ lean + rng.normal(0, 0.3, size=(size, len(CODES))) > 0.4
            true[:, 6] &= i != without
            parts[split] = CodedVectors(vectors, [tuple(c for c, hit in zip(CODES, row) if hit) for row in true])
        made.append(Site(f"site-{i}", IDENTITY, key_of(IDENTITY), parts, None, torch.device("cpu")))
    return made


def recipe(**federation) -> FederatedHeadsRecipe:
    return FederatedHeadsRecipe.model_validate(
        {
            "model": {"head": "deep", "widths": [16, 8, 8]},
            "training": {"epochs": 1, "batch": 8, "micro_batches": 1, "warmup": 0, "schedule": "cosine"},
            "federation": {"rounds": 4, "min_sites": 2, "quorum": 2, "min_site_notes": 1, "min_notes": 1} | federation,
        }
    )


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
def test_the_weights_are_those_of_the_run_through_flower(tmp_path, strategy):
    sizes, told = [40, 40, 33, 52], recipe(strategy=strategy, mu=0.5, local_epochs=2)
    known = {site.name: site for site in sites(sizes, without=2)}
    grid = InProcessGrid(make_app(lambda context, _: known[context.node_config[SITE_NAME]]), known)
    through = run_federation(grid, told, tmp_path / "flower").bundle
    stacked = run_stacked(sites(sizes, without=2), told, tmp_path / "stacked")
    for name, value in through.model.net.state_dict().items():
        torch.testing.assert_close(stacked.model.net.state_dict()[name], value, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(stacked.decision.threshold, through.decision.threshold, atol=1e-3)
    assert stacked.provenance["n_test"] == through.provenance["n_test"]
    assert stacked.model.labels == through.model.labels


def test_in_double_precision_rounding_does_not_grow(tmp_path):
    told = recipe(rounds=15, local_epochs=2)
    told = told.model_copy(update={"training": told.training.model_copy(update={"precision": "fp64"})})
    known = {site.name: site for site in sites([40, 40, 33])}
    grid = InProcessGrid(make_app(lambda context, _: known[context.node_config[SITE_NAME]]), known)
    through = run_federation(grid, told, tmp_path / "flower").bundle.model.net.state_dict()
    stacked = run_stacked(sites([40, 40, 33]), told, tmp_path / "stacked").model.net.state_dict()
    for name, value in through.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(stacked[name], value, atol=1e-7, rtol=1e-6)


def test_a_run_that_stopped_goes_on(tmp_path):
    told = recipe()
    whole = run_stacked(sites([40, 40]), told, tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("round 2/"):
            raise StopError

    with pytest.raises(StopError):
        run_stacked(sites([40, 40]), told, tmp_path / "halves", say=stop)
    with pytest.raises(ConfigError, match="other notes"):
        run_stacked(sites([40, 40]), told, tmp_path / "halves", notes="others")
    with locked(tmp_path / "halves.run"), pytest.raises(OutputError, match="at work"):
        run_stacked(sites([40, 40]), told, tmp_path / "halves")
    lines = []
    halves = run_stacked(sites([40, 40]), told, tmp_path / "halves", say=lines.append)
    assert "goes on after round 2" in lines[0]
    for name, value in whole.model.net.state_dict().items():
        torch.testing.assert_close(halves.model.net.state_dict()[name], value, atol=0, rtol=0)


def test_a_site_that_is_too_small_is_left_out(tmp_path):
    told, lines = recipe(min_site_notes=10), []
    found = run_stacked(sites([40, 40, 9]), told, tmp_path / "three", say=lines.append)
    why = "it has 9 train notes; 10 are needed (federation.min_site_notes)"
    assert lines[0] == f"site-2 is left out: {why}"
    assert found.provenance["federation"]["refused"] == {"site-2": why}
    without = run_stacked(sites([40, 40]), told, tmp_path / "two").model.net.state_dict()
    for name, value in found.model.net.state_dict().items():
        torch.testing.assert_close(value, without[name], atol=0, rtol=0)
    with pytest.raises(FederationError, match="no site has 10 train notes"):
        run_stacked(sites([9, 9]), told, tmp_path / "none")


def test_what_needs_flower_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"federation\.strategy must be fedavg or fedprox"):
        run_stacked(sites([20, 20]), recipe(strategy="krum"), tmp_path / "b")
    narrow = recipe().model_copy(update={"labels": LabelSettings(top_k=3)})
    with pytest.raises(ConfigError, match=r"labels\.top_k must not be set in a federation"):
        run_stacked(sites([20, 20]), narrow, tmp_path / "b")
    half = recipe()
    half = half.model_copy(update={"training": half.training.model_copy(update={"precision": "bf16"})})
    with pytest.raises(ConfigError, match=r"training\.precision must be"):
        run_stacked(sites([20, 20]), half, tmp_path / "b")
    other = sites([20, 20, 20])
    other[2].key, other[2].identity = "other", {"model": "another", "dim": DIM}
    with pytest.raises(FederationError, match="site-2 cannot take part: embedder: model must be 'none'"):
        run_stacked(other, recipe(), tmp_path / "b")
