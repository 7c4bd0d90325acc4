"""Scaled dot-product attention over batches whose shape changes with every batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor
from torch.nn import functional

_lock = Lock()
_active = 0  # calls that are inside the context manager, in all threads
_was_enabled = True


@contextmanager
def without_cudnn_sdpa() -> Iterator[None]:
    """Context in which scaled_dot_product_attention uses any kernel except cuDNN's.

    cuDNN builds a plan for each new shape, which is slow for notes of ever different lengths.
    """
    global _active, _was_enabled
    with _lock:  # the flag is global: the first call disables it, the last one restores it
        if not _active:
            _was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _active += 1
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if not _active:
                torch.backends.cuda.enable_cudnn_sdp(_was_enabled)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Attention output (B, H, Q, D); mask: (B, T), True at tokens. A note without tokens attends to position 0."""
    with without_cudnn_sdpa():
        attention_mask = nonempty_mask(mask)[:, None, None]
        return functional.scaled_dot_product_attention(query, key, value, attention_mask, scale=scale)


def nonempty_mask(mask: Tensor) -> Tensor:
    """The mask (B, T) with position 0 of empty notes set to True: a softmax over nothing is not a number."""
    first = torch.zeros_like(mask)
    first[:, 0] = ~mask.any(1)
    return mask | first
