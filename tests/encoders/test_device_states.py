import numpy as np
import pytest
import torch

from nosology.encoders import state_cache as device_states
from nosology.encoders.state_cache import CachedStates, DeviceCachedStates, load_on_device

STATES = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float16)
PLACES = CachedStates(STATES, np.array([[30, 7], [3, 0], [3, 5], [30, 7], [20, 1], [8, 0], [8, 12]]))  # two are alike


@pytest.mark.parametrize("texts", [1, 2, 256])
def test_a_batch_is_gathered_as_it_is_read_from_disk(texts, monkeypatch):
    monkeypatch.setattr(device_states, "_TEXTS_PER_COPY", texts)
    kept = DeviceCachedStates(PLACES, "cpu")
    assert kept.states.shape == (7 + 5 + 1 + 12 + 1, 4) and kept.states[:-1].nbytes == PLACES.nbytes
    for rows, width in (([0, 1, 2], 8), ([6, 5, 4, 3], 12), ([1, 5], 3), (list(range(7)), 16)):
        found = kept.padded_batch(rows, width).to("cpu")
        assert found.dtype == torch.float16 and np.array_equal(found.numpy(), PLACES.padded_batch(rows, width))


def test_states_go_to_a_gpu_that_has_room_for_them(monkeypatch):
    assert load_on_device(PLACES, torch.device("cpu"), 100.0) is None
    monkeypatch.setattr(device_states, "DeviceCachedStates", lambda places, device: "there")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    needed = PLACES.nbytes
    for free, gigabytes, expected in (
        (2 * needed, 1.0, "there"),
        (2 * needed - 2, 1.0, None),
        (9 * needed, needed / 1e9, "there"),
        (9 * needed, 0.9 * needed / 1e9, None),
        (9 * needed, 0.0, None),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 10 * needed))
        assert load_on_device(PLACES, torch.device("cuda"), gigabytes) == expected


def test_a_gpu_that_another_program_has_filled_is_left_alone(monkeypatch):
    def full(places, device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(device_states, "DeviceCachedStates", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**12, 10**12))
    assert load_on_device(PLACES, torch.device("cuda"), 1.0) is None
