"""Token states of reports by the encoder of HMHAN, in batches that fit into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from nosology.core.progress import progress
from nosology.encoders.transformer import WindowedTransformer
from nosology.training.data_loader import pad_notes
from nosology.training.inference import by_length, default_device, evaluating, uses_bf16

_BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # padding included; more do not fit into the cache of a CPU
_BATCH_REPORTS = 256


def report_batch_limits(device: torch.device) -> tuple[int, int]:
    """The largest number of tokens, padding included, and of reports in a batch that is encoded."""
    return _BATCH_TOKENS.get(device.type, _BATCH_TOKENS["cpu"]), _BATCH_REPORTS


def encoder_fingerprint(encoder: WindowedTransformer) -> str:
    """A hash of all that determines the states of an encoder in full precision: configuration, window, weights."""
    digest = hashlib.sha256(repr(sorted(encoder.to_json().items(), key=str)).encode())
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def state_cache_key(encoder: WindowedTransformer, precision: str) -> str:
    """The key of the states that `encode_texts` returns on this machine."""
    return encoder_fingerprint(encoder) + ("-bf16" if uses_bf16(precision, default_device()) else "-fp32")


def encode_texts(
    encoder: WindowedTransformer, texts: Sequence[np.ndarray], precision: str
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Rows and states (T, D), float16, of texts given as token ids, in batches of similar length.

    precision: `training.precision` of the recipe.
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    device = default_device()
    encoder.to(device)
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        yield empty, [np.zeros((0, encoder.width), np.float16) for _ in empty]
    bf16 = uses_bf16(precision, device)
    with evaluating(encoder), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for rows in progress(list(by_length(lengths, *report_batch_limits(device))), "states", unit="batches"):
            tokens, sizes = pad_notes([texts[row] for row in rows])
            states = encoder(tokens.to(device), sizes).half().cpu().numpy()
            yield rows, [states[i, : lengths[row]] for i, row in enumerate(rows)]
