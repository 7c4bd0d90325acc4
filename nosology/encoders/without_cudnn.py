"""Attention over batches of ever new lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Inside, scaled_dot_product_attention takes any kernel but cuDNN's.

    cuDNN builds a plan for each new shape, a tenth of a second on an H200, and notes have ever new lengths: training
    waited for plans longer than for anything else.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
