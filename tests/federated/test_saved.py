"""Rounds on disk are whole, and what is read is what was written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nosology.core import BundleError, ConfigError, OutputError
from nosology.core.label_space import LabelSpace
from nosology.federated.rounds.agreement import Facts, key_of
from nosology.federated.rounds.saved_rounds import AGREEMENT, ROUND, Agreement, SavedRound, clear, locked
from nosology.models.heads.feature_statistics import Scaler
from tests.federated.worlds import CODES, DIM, IDENTITY, recipe


def agreement() -> Agreement:
    rng = np.random.default_rng(0)
    facts = {"north": Facts("1", key_of(IDENTITY), IDENTITY, DIM, "none", 40, {CODES[0]: 12})}
    return Agreement(recipe(), LabelSpace(CODES), Scaler(rng.normal(size=DIM), rng.random(DIM)), facts)


def test_an_agreement_is_read_as_it_was_written(tmp_path):
    made = agreement()
    assert Agreement.load(tmp_path) is None
    made.save(tmp_path)
    read = Agreement.load(tmp_path)
    assert (read.recipe, read.labels, read.facts, read.hash) == (made.recipe, made.labels, made.facts, made.hash)
    np.testing.assert_array_equal(read.scaler.scale, made.scaler.scale)


def test_a_round_is_read_as_it_was_written(tmp_path):
    weights = {"b": np.ones((2, 3), np.float32), "a": np.zeros(4, np.float32)}
    row = {"round": 3, "loss": 0.1 + 0.2, "micro_f1": None}
    made = SavedRound(
        "hash", 3, weights, {"m.b": np.full(2, 7.5)}, [row], {"north": "no answer"}, {"sites": {"x": [1]}}
    )
    made.save(tmp_path)
    made.save(tmp_path)
    read = SavedRound.load(tmp_path, "hash")
    assert list(read.weights) == ["b", "a"] and read.weights["b"].dtype == np.float32
    np.testing.assert_array_equal(read.moments["m.b"], made.moments["m.b"])
    assert (read.number, read.history, read.refused, read.privacy) == (3, [row], made.refused, made.privacy)


def test_a_round_of_another_agreement_is_passed_over(tmp_path):
    SavedRound("hash", 3, {"a": np.zeros(1, np.float32)}).save(tmp_path)
    assert SavedRound.load(tmp_path, "other") is None


def test_other_labels_or_another_scaler_are_another_agreement():
    made = agreement()
    fewer = Agreement(made.recipe, LabelSpace(CODES[:3]), made.scaler, made.facts)
    moved = Agreement(made.recipe, made.labels, Scaler(made.scaler.mean + 1e-12, made.scaler.scale), made.facts)
    assert len({made.hash, fewer.hash, moved.hash}) == 3


@pytest.mark.parametrize("name", [AGREEMENT, ROUND])
def test_a_damaged_file_is_named(tmp_path, name):
    agreement().save(tmp_path)
    SavedRound("hash", 3, {"a": np.zeros(100, np.float32)}).save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BundleError, match=name):
        Agreement.load(tmp_path)
        SavedRound.load(tmp_path, "hash")


def test_nothing_half_written_takes_the_place_of_a_round(tmp_path):
    made = SavedRound("hash", 3, {"a": np.zeros(1, np.float32)})
    made.save(tmp_path)
    with pytest.raises(ValueError):
        SavedRound("hash", 4, {"a": np.ones(1, np.float32)}, history=[{"loss": float("nan")}]).save(tmp_path)
    assert SavedRound.load(tmp_path, "hash").number == 3
    assert [path.name for path in tmp_path.iterdir()] == [ROUND]


def test_only_the_run_that_was_begun_goes_on(tmp_path):
    made = replace(agreement(), notes="a")
    made.save(tmp_path)
    assert Agreement.of_run(tmp_path, recipe(rounds=9), "b") is None, "nothing is lost: no round was saved"
    SavedRound(made.hash, 0, {"a": np.zeros(1, np.float32)}).save(tmp_path)
    assert Agreement.of_run(tmp_path, made.recipe, "a").hash == made.hash
    with pytest.raises(ConfigError, match="another recipe"):
        Agreement.of_run(tmp_path, recipe(rounds=9), "a")
    with pytest.raises(ConfigError, match="other notes"):
        Agreement.of_run(tmp_path, made.recipe, "b")


def test_a_folder_is_for_one_federation_at_a_time(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        with pytest.raises(OutputError, match="another federation is at work"), locked(folder):
            pass
        agreement().save(folder)
    assert [path.name for path in folder.iterdir()] == [AGREEMENT]
    with locked(folder):
        clear(folder)
    assert not folder.exists()
    with locked(folder):
        pass
    assert not folder.exists()


def test_a_cleared_folder_is_gone(tmp_path):
    folder = tmp_path / "run"
    agreement().save(folder)
    clear(folder)
    assert not folder.exists()
