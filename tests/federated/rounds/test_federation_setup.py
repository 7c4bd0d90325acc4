"""Tests of the setup of a federation and its checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from nosology.core import BundleError, Code, ConfigError, DataError, __version__
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.federation_setup import (
    PREPROCESSING,
    ROUND_FILE,
    SETUP_FILE,
    FederationSetup,
    RoundCheckpoint,
    SiteMetadata,
    clear,
    embedder_key,
    incompatible_sites,
    shared_labels,
)
from nosology.models.heads.feature_statistics import Scaler
from nosology.training.checkpoint import read_tensors, write_tensors
from tests.federated.small_hospitals import CODES, DIM, IDENTITY, recipe

A, B = Code("icd10cm", "I10"), Code("icd10cm", "E11.9")
EMBEDDER = {"model": "minilm", "weights": "aa", "dim": 384}
METADATA = SiteMetadata(__version__, embedder_key(EMBEDDER), EMBEDDER, 384, PREPROCESSING, 50, {A: 20, B: 12})


def test_equal_sites_are_compatible():
    assert incompatible_sites({"a": METADATA, "b": METADATA, "c": METADATA}) == {}


def test_incompatible_sites_names_the_difference():
    metadata = {
        "a": METADATA,
        "b": METADATA,
        "other model": replace(METADATA, embedder="k2", identity={"model": "nomic-v1.5", "weights": "bb"}),
        "old": replace(METADATA, package="0.0.1"),
        "reads otherwise": replace(METADATA, preprocessing="lower case"),
        "empty": replace(METADATA, notes=0),
    }
    result = incompatible_sites(metadata)
    assert set(result) == {"other model", "old", "reads otherwise", "empty"}
    assert "model must be 'minilm'; got 'nomic-v1.5'" in result["other model"]
    assert f"package must be nosology {__version__}; got 0.0.1" in result["old"]
    assert "preprocessing must be" in result["reads otherwise"] and "'lower case'" in result["reads otherwise"]
    assert "no training notes" in result["empty"]


def test_difference_of_a_site_cannot_change_the_terminal_of_the_server():
    identity = EMBEDDER | {"\x1b[2J": 1, "model": "x" * 10**6}
    result = incompatible_sites({"a": METADATA, "b": METADATA, "c": replace(METADATA, embedder="k", identity=identity)})
    assert result["c"].startswith("embedder: \ufffd[2J must be None; got 1, model must be") and len(result["c"]) == 2000


def test_tie_between_embedders_is_decided_by_the_first_site():
    other = replace(METADATA, embedder="k2", identity={"model": "x", "weights": "bb"})
    assert set(incompatible_sites({"b": other, "a": METADATA})) == {"b"}
    assert set(incompatible_sites({"a": other, "b": METADATA})) == {"b"}


def test_metadata_round_trips_through_json():
    assert SiteMetadata.from_json(METADATA.to_json()) == METADATA


@pytest.mark.parametrize(
    "wrong",
    [
        {"notes": "many"},
        {"notes": None},
        {"dim": 0},
        {"identity": []},
        {"package": "1\nround 1/100"},
        {"embedder": 7},
        {"codes": [[None, "I10", 3]]},
        {"codes": [["icd10cm", "I10", -3]]},
        {"codes": 5},
        {"more": 1},
        {"embedder": "k1"},
        {"identity": EMBEDDER | {"model": "nomic-v1.5"}},
        {"identity": EMBEDDER | {"dim": 768}, "embedder": embedder_key(EMBEDDER | {"dim": 768})},
        {"dim": 768},
        {"codes": [["icd10", "I10", 3]]},
        {"codes": [["icd10cm", "I10", 51]]},
    ],
)
def test_invalid_metadata_raises(wrong):
    with pytest.raises((ValueError, TypeError)):
        SiteMetadata.from_json(METADATA.to_json() | wrong)


def test_shared_labels_need_min_notes():
    settings = FederationSettings(min_site_notes=10, min_notes=30)
    metadata = {"a": METADATA, "b": replace(METADATA, codes={A: 15})}
    assert shared_labels(metadata, settings).codes == (A,)
    with pytest.raises(DataError, match=r"no code has 99 notes at the sites that report it \(federation\.min_notes\)"):
        shared_labels(metadata, settings.model_copy(update={"min_notes": 99}))


def setup() -> FederationSetup:
    rng = np.random.default_rng(0)
    metadata = {"north": SiteMetadata("1", embedder_key(IDENTITY), IDENTITY, DIM, "none", 40, {CODES[0]: 12})}
    return FederationSetup(recipe(), LabelSpace(CODES), Scaler(rng.normal(size=DIM), rng.random(DIM)), metadata)


def test_setup_round_trips_through_file(tmp_path):
    written = setup()
    assert FederationSetup.load(tmp_path) is None
    written.save(tmp_path)
    read = FederationSetup.load(tmp_path)
    for name in ("recipe", "labels", "metadata", "hash"):
        assert getattr(read, name) == getattr(written, name)
    np.testing.assert_array_equal(read.inputs.scale, written.inputs.scale)


def test_checkpoint_round_trips_through_file(tmp_path):
    weights = {"b": np.ones((2, 3), np.float32), "a": np.zeros(4, np.float32)}
    row = {"round": 3, "loss": 0.1 + 0.2, "micro_f1": None}
    written = RoundCheckpoint(
        "hash", 3, weights, {"m.b": np.full(2, 7.5)}, [row], {"north": "no answer"}, {"sites": {"x": [1]}}
    )
    written.save(tmp_path)
    written.save(tmp_path)
    read = RoundCheckpoint.load(tmp_path, "hash")
    assert list(read.weights) == ["b", "a"] and read.weights["b"].dtype == np.float32
    np.testing.assert_array_equal(read.optimizer_state["m.b"], written.optimizer_state["m.b"])
    assert (read.number, read.history, read.refused, read.privacy) == (3, [row], written.refused, written.privacy)


def test_checkpoint_of_another_setup_is_ignored(tmp_path):
    RoundCheckpoint("hash", 3, {"a": np.zeros(1, np.float32)}).save(tmp_path)
    assert RoundCheckpoint.load(tmp_path, "other") is None


def test_hash_depends_on_labels_and_scaler():
    written = setup()
    fewer = FederationSetup(written.recipe, LabelSpace(CODES[:3]), written.inputs, written.metadata)
    moved = FederationSetup(
        written.recipe, written.labels, Scaler(written.inputs.mean + 1e-12, written.inputs.scale), written.metadata
    )
    assert len({written.hash, fewer.hash, moved.hash}) == 3


@pytest.mark.parametrize("name", [SETUP_FILE, ROUND_FILE])
def test_damaged_file_raises_with_its_name(tmp_path, name):
    setup().save(tmp_path)
    RoundCheckpoint("hash", 3, {"a": np.zeros(100, np.float32)}).save(tmp_path)
    original = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(original[: len(original) // 2])
    with pytest.raises(BundleError, match=name):
        FederationSetup.load(tmp_path)
        RoundCheckpoint.load(tmp_path, "hash")


@pytest.mark.parametrize("name", [SETUP_FILE, ROUND_FILE])
def test_flipped_bits_are_refused(tmp_path, name):
    setup().save(tmp_path)
    weights = {"a": np.zeros(100, np.float32)}
    RoundCheckpoint("hash", 3, weights, privacy={"sites": {"north": [[1.0, 0.5, 12]]}}).save(tmp_path)
    original = (tmp_path / name).read_bytes()
    for bit in range(0, 8 * len(original), 191):
        content = bytearray(original)
        content[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BundleError, match=f"{name} is damaged or of another version: delete"):
            FederationSetup.load(tmp_path) if name == SETUP_FILE else RoundCheckpoint.load(tmp_path, "hash")


def test_checkpoints_of_another_version_are_refused(tmp_path):
    setup().save(tmp_path)
    RoundCheckpoint("hash", 3, {"a": np.zeros(1, np.float32)}).save(tmp_path)
    for path in (tmp_path / SETUP_FILE, tmp_path / ROUND_FILE):
        metadata, tensors = read_tensors(path, "")
        state = json.loads(metadata["state"])
        state |= {"recipe": state["recipe"] | {"old": 1}} if "recipe" in state else {"old": 1}
        write_tensors(path, tensors, "", state=json.dumps(state))
        with pytest.raises(BundleError, match=f"{path.name} is damaged or of another version: delete"):
            FederationSetup.load(tmp_path) if path.name == SETUP_FILE else RoundCheckpoint.load(tmp_path, "hash")


def test_failed_save_keeps_the_last_checkpoint(tmp_path):
    written = RoundCheckpoint("hash", 3, {"a": np.zeros(1, np.float32)})
    written.save(tmp_path)
    with pytest.raises(ValueError):
        RoundCheckpoint("hash", 4, {"a": np.ones(1, np.float32)}, history=[{"loss": float("nan")}]).save(tmp_path)
    assert RoundCheckpoint.load(tmp_path, "hash").number == 3
    assert [path.name for path in tmp_path.iterdir()] == [ROUND_FILE]


def test_resume_refuses_another_recipe_or_other_notes(tmp_path):
    written = replace(setup(), notes="a")
    written.save(tmp_path)
    assert FederationSetup.resume(tmp_path, recipe(rounds=9), "b") is None, "nothing is lost: no round was saved"
    RoundCheckpoint(written.hash, 0, {"a": np.zeros(1, np.float32)}).save(tmp_path)
    assert FederationSetup.resume(tmp_path, written.recipe, "a").hash == written.hash
    with pytest.raises(ConfigError, match="another recipe"):
        FederationSetup.resume(tmp_path, recipe(rounds=9), "a")
    with pytest.raises(ConfigError, match="other notes"):
        FederationSetup.resume(tmp_path, written.recipe, "b")


def test_clear_removes_the_folder(tmp_path):
    folder = tmp_path / "run"
    setup().save(folder)
    clear(folder)
    assert not folder.exists()
