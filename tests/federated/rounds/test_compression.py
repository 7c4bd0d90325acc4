"""Tests of compressed updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.compression import compress, compressed_names, decompress, from_bf16, to_bf16
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import make_content, pack_message, unpack_message
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.rounds.test_word_learner import corpus, recipe, run, sites_of  # noqa: F401 (a fixture)

FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=20)
BF16 = FederationSettings(compression="bf16")
TOP_K, LOW_RANK = FederationSettings(compression="top_k", top_k=0.1), FederationSettings(compression="low_rank", rank=3)


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"matrix": (40, 50), "filters": (30, 8, 3), "small": (2, 2), "bias": (7,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def exchanged(after, initial, federation, residual=None):
    """The weights that the server reads, and what the site keeps."""
    packed, left_out = compress(after, initial, federation, residual or {})
    assert packed.keys() == compressed_names(initial, federation)
    return {name: decompress(packed, name, first, federation) for name, first in initial.items()}, left_out


@given(FLOATS)
def test_bf16_is_that_of_torch(values):
    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bf16(to_bf16(array)), expected)


def test_change_of_a_weight_keeps_eight_bits():
    rng = np.random.default_rng(0)
    initial = {"a": rng.normal(size=(40, 50)).astype(np.float32), "b": rng.normal(size=7)}
    after = {name: array + 1e-3 * rng.normal(size=array.shape).astype(array.dtype) for name, array in initial.items()}
    read, left_out = exchanged(after, initial, BF16)
    assert left_out == {}
    for name, first in initial.items():
        change = after[name].astype(float) - first
        assert read[name].dtype == first.dtype and (read[name] != first).all()
        within = 1e-6 if name == "a" else 1e-12
        np.testing.assert_allclose(read[name] - first.astype(float), change, rtol=2**-8, atol=within)


@pytest.mark.parametrize("federation", [BF16, TOP_K, LOW_RANK], ids=lambda each: each.compression)
def test_unchanged_weights_stay_exactly(federation):
    first = random_weights()
    for name, array in exchanged(first, first, federation)[0].items():
        np.testing.assert_array_equal(array, first[name])


def test_top_k_sends_the_largest_changes():
    initial, after = random_weights(0), random_weights(1)
    read, _ = exchanged(after, initial, TOP_K)
    change, sent = after["matrix"] - initial["matrix"], read["matrix"] != initial["matrix"]
    assert sent.sum() == 200 and np.abs(change[sent]).min() >= np.abs(change[~sent]).max()
    np.testing.assert_allclose(read["matrix"][sent], after["matrix"][sent], rtol=0, atol=2**-7 * np.abs(change).max())
    np.testing.assert_allclose(read["bias"], after["bias"], rtol=0, atol=0.05)  # not sparse


def test_low_rank_is_the_best_approximation():
    """As good as the singular value decomposition up to bf16 and 2% of its error; exact if the change has the rank."""
    initial, after = random_weights(0), random_weights(1)
    rng = np.random.default_rng(2)
    after["filters"] = initial["filters"] + (rng.normal(size=(30, 2)) @ rng.normal(size=(2, 24))).reshape(30, 8, 3)
    read, _ = exchanged(after, initial, LOW_RANK)
    change = after["matrix"].astype(float) - initial["matrix"]
    values = np.linalg.svd(change, compute_uv=False)
    error = np.linalg.norm(read["matrix"] - after["matrix"])
    assert error <= 1.02 * np.linalg.norm(values[3:]) < 0.97 * np.linalg.norm(values)
    np.testing.assert_allclose(read["filters"], after["filters"], rtol=0, atol=0.1)
    np.testing.assert_allclose(read["small"], after["small"], rtol=0, atol=0.05)  # two matrices would be larger


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([TOP_K, LOW_RANK]), st.integers(0, 100))
def test_error_feedback_loses_nothing(federation, seed):
    """What was sent in all rounds and what is left out add up to all changes."""
    initial, residual = random_weights(seed), {}
    sent = {name: np.zeros(array.shape) for name, array in initial.items()}
    wanted = {name: np.zeros(array.shape) for name, array in initial.items()}
    for number in range(3):
        after = random_weights(seed + number + 1)
        read, residual = exchanged(after, initial, federation, residual)
        for name, array in read.items():
            sent[name] += array.astype(float) - initial[name]
            wanted[name] += after[name].astype(float) - initial[name]
        initial = read
    assert residual.keys() >= {"matrix", "filters"} and "bias" not in residual
    for name, left in residual.items():
        np.testing.assert_allclose(sent[name] + left, wanted[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("matrix/indices", np.zeros(200, np.uint32), "ascending positions below 2000"),
        ("matrix/indices", np.arange(1900, 2100, dtype=np.uint32), "ascending positions below 2000"),
        ("matrix/indices", np.arange(199, dtype=np.uint32), "must be compressed"),
        ("matrix/values", np.zeros(200, np.float32), "must be compressed"),
    ],
)
def test_invalid_positions_are_refused(part, value, reason):
    initial = random_weights()
    packed, _ = compress(random_weights(1), initial, TOP_K, {})
    assert reason in decompress(packed | {part: value}, "matrix", initial["matrix"], TOP_K)


@pytest.mark.parametrize(("setting", "share"), [("top_k", 0.1), ("low_rank", 0.35)])
def test_sites_learn_from_compressed_updates(corpus, tmp_path, setting, share):  # noqa: F811
    """DualLAAT with vectors of size 8: top_k 0.05 sends 0.3 bytes per weight, rank 2 about 1 of 4 bytes."""
    rounds = ("federation.rounds=3", "federation.local_epochs=3")
    expected = run(corpus, recipe("dual_laat", *rounds), tmp_path / "plain")
    chosen = recipe("dual_laat", *rounds, f"federation.compression={setting}", "federation.rank=2")
    sites = sites_of(corpus, chosen)
    result = FlowerFederation(simulation_grid(sites), chosen).run(tmp_path / setting)
    assert not result.refused and [row["refused"] for row in result.history] == [0, 0, 0]
    assert result.history[0]["bytes_from_sites"] < share * expected.history[0]["bytes_from_sites"]
    assert result.history[0]["bytes_to_sites"] == pytest.approx(expected.history[0]["bytes_to_sites"], abs=300)
    losses = [row["loss"] for row in result.history]
    assert losses[2] < losses[0] and losses[2] == pytest.approx(expected.history[2]["loss"], abs=0.15)


def test_message_of_a_large_update_is_sent_in_chunks():
    """A packed message of more than two chunks is inflated to the same arrays."""
    size = 2 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE // 4 + 1000
    weights = {"a": np.random.default_rng(0).normal(size=size).astype(np.float32), "b": np.arange(5.0)}
    packed = pack_message(make_content(weights, round=3))
    objects = get_all_nested_objects(packed)
    chunks = [each for each in objects.values() if type(each).__name__ == "ArrayChunk"]
    largest = max(len(each.deflate()) for each in objects.values())
    assert len(chunks) == 3 and largest < FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 1000
    deflated = {object_id: each.deflate() for object_id, each in objects.items()}
    inflated = inflate_object_from_contents(packed.object_id, deflated)
    for name, array in unpack_message(inflated).array_records["arrays"].items():
        assert isinstance(array, Array)
        np.testing.assert_array_equal(array.numpy(), weights[name])
