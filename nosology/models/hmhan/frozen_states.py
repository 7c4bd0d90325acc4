"""The states that an encoder gives, as they go into the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch

from nosology.core.progress import progress
from nosology.encoders.transformer import WindowedTransformer
from nosology.models.neural import by_length, default_device, evaluating
from nosology.training.data_loader import pad_notes

_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # of a batch, pads included


def encoder_key(encoder: WindowedTransformer) -> str:
    """A name for all that decides the states of an encoder: shape, window, weights."""
    digest = hashlib.sha256(repr(sorted(encoder.to_json().items(), key=str)).encode())
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def encoded(encoder: WindowedTransformer, texts: list[np.ndarray]) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Rows and states (T, D), float16, of texts given as piece numbers, in batches of like length."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    device = default_device()
    gpu = device.type == "cuda"
    encoder.to(device)
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        yield empty, [np.zeros((0, encoder.width), np.float16) for _ in empty]
    batches = by_length(lengths, _TOKENS["cuda" if gpu else "cpu"], 256)
    with evaluating(encoder), torch.autocast(device.type, torch.bfloat16, enabled=gpu):
        for rows in progress(list(batches), "states", unit="batches"):
            batch = pad_notes([texts[row] for row in rows])
            states = encoder(batch[0].to(device), batch[1]).half().cpu().numpy()
            yield rows, [states[i, : lengths[row]] for i, row in enumerate(rows)]
