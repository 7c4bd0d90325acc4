"""Cached encoder states, on disk and on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.core import DataError
from nosology.encoders import state_cache
from nosology.encoders.append_only_store import INDEX_FILE
from nosology.encoders.state_cache import STATES, CachedStates, DeviceCachedStates, EncoderStateCache, load_on_device

KEY = "c" * 64
TEXTS = [np.arange(n, dtype=np.int32) + 10 * n for n in (3, 7, 1, 0, 5)]


def encode(encoded: list | None = None):
    def generate(texts):
        if encoded is not None:
            encoded.extend(texts)
        for row, text in reversed(list(enumerate(texts))):
            yield np.array([row]), [np.outer(text, np.ones(4)).astype(np.float32) + 0.5]

    return generate


def test_states_are_returned_in_order_without_padding(tmp_path):
    cached = EncoderStateCache(tmp_path, KEY, 4).add(TEXTS, encode())
    for text, batch in zip(TEXTS, (cached[i] for i in range(len(TEXTS)))):
        assert batch.dtype == np.float16 and np.array_equal(batch, np.outer(text, np.ones(4)) + 0.5)
    assert (tmp_path / KEY / STATES).stat().st_size == sum(map(len, TEXTS)) * 4 * 2, "no padding on disk"
    assert isinstance(cached.states, np.memmap)


def test_cached_texts_are_not_encoded_again(tmp_path):
    EncoderStateCache(tmp_path, KEY, 4).add(TEXTS[:3], encode())
    encoded = []
    cached = EncoderStateCache(tmp_path, KEY, 4).add([TEXTS[4], TEXTS[1], TEXTS[4]], encode(encoded))
    assert [len(text) for text in encoded] == [5]
    assert np.array_equal(cached[0], cached[2]) and cached[1][0, 0] == 70.5


def test_padded_batch_is_zero_at_padding(tmp_path):
    cached = EncoderStateCache(tmp_path, KEY, 4).add(TEXTS, encode())
    batch = cached.padded_batch([1, 3, 2], 8).to("cpu")
    assert np.array_equal(batch[0, :7].numpy(), cached[1]) and np.array_equal(batch[2, :1].numpy(), cached[2])
    assert batch.shape == (3, 8, 4) and not batch[0, 7:].any() and not batch[1].any() and not batch[2, 1:].any()
    assert len(cached.padded_batch(np.array([1, 3, 2]), 8).states) == 7 + 0 + 1 + 1  # copied without padding
    assert cached.means()[0].tolist() == [31.5] * 4 and not cached.means()[3].any()
    some = cached.subset(np.array([2, 0]))
    assert len(some) == 2 and np.array_equal(some[1], cached[0])


@pytest.mark.parametrize("name", [STATES, INDEX_FILE])
def test_incomplete_tail_is_truncated(tmp_path, name):
    EncoderStateCache(tmp_path, KEY, 4).add(TEXTS[:2], encode())
    with (tmp_path / KEY / name).open("ab") as file:
        file.write(b"half")
    cache = EncoderStateCache(tmp_path, KEY, 4)
    assert len(cache) == 2
    assert np.array_equal(cache.add(TEXTS, encode())[4], np.outer(TEXTS[4], np.ones(4)) + 0.5)


def test_damaged_state_cache_raises(tmp_path):
    EncoderStateCache(tmp_path, KEY, 4).add(TEXTS[:2], encode())
    with (tmp_path / KEY / STATES).open("r+b") as file:
        file.truncate(8)
    with pytest.raises(DataError, match="damaged"):
        EncoderStateCache(tmp_path, KEY, 4)
    with pytest.raises(DataError, match="width 5"):
        EncoderStateCache(tmp_path, KEY, 5)


@pytest.mark.parametrize("bit", range(0, 12 * 4 * 16, 61))
def test_flipped_bit_is_encoded_again(tmp_path, bit):
    EncoderStateCache(tmp_path, KEY, 4).add(TEXTS, encode())
    path = tmp_path / KEY / STATES
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    encoded = []
    cached = EncoderStateCache(tmp_path, KEY, 4).add(TEXTS, encode(encoded))
    assert len(encoded) == 1
    for row, text in enumerate(TEXTS):
        assert np.array_equal(cached[row], np.outer(text, np.ones(4)) + 0.5)


ARRAY = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float16)
CACHED = CachedStates(ARRAY, np.array([[30, 7], [3, 0], [3, 5], [30, 7], [20, 1], [8, 0], [8, 12]]))  # two are equal


@pytest.mark.parametrize("texts", [1, 2, 256])
def test_batch_on_device_equals_batch_from_disk(texts, monkeypatch):
    monkeypatch.setattr(state_cache, "_TEXTS_PER_COPY", texts)
    loaded = DeviceCachedStates(CACHED, "cpu")
    assert loaded.states.shape == (7 + 5 + 1 + 12 + 1, 4) and loaded.states[:-1].nbytes == CACHED.nbytes
    for rows, width in (([0, 1, 2], 8), ([6, 5, 4, 3], 12), ([1, 5], 3), (list(range(7)), 16)):
        batch = loaded.padded_batch(rows, width).to("cpu")
        assert batch.dtype == torch.float16 and torch.equal(batch, CACHED.padded_batch(rows, width).to("cpu"))


def test_states_are_loaded_only_if_they_fit_on_the_gpu(monkeypatch):
    assert load_on_device(CACHED, torch.device("cpu"), 100.0) is None
    monkeypatch.setattr(state_cache, "DeviceCachedStates", lambda cached, device: "there")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    needed = CACHED.nbytes
    for free, gigabytes, expected in (
        (2 * needed, 1.0, "there"),
        (2 * needed - 2, 1.0, None),
        (9 * needed, needed / 1e9, "there"),
        (9 * needed, 0.9 * needed / 1e9, None),
        (9 * needed, 0.0, None),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 10 * needed))
        assert load_on_device(CACHED, torch.device("cuda"), gigabytes) == expected


def test_out_of_memory_on_the_gpu_returns_none(monkeypatch):
    def full(cached, device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(state_cache, "DeviceCachedStates", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**12, 10**12))
    assert load_on_device(CACHED, torch.device("cuda"), 1.0) is None
