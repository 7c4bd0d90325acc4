"""Attention over batches of ever new lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_lock = Lock()
_inside = 0  # threads and calls that are between
_before = True


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Inside, scaled_dot_product_attention takes any kernel but cuDNN's.

    cuDNN builds a plan for each new shape, and notes have ever new lengths.
    """
    global _inside, _before
    with _lock:  # the switch is one for all threads: the first to come turns it, the last to go turns it back
        if not _inside:
            _before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                torch.backends.cuda.enable_cudnn_sdp(_before)
