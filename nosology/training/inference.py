"""Scoring notes without gradients: device, precision, sizes of batches, and copies that do not stop a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

T = TypeVar("T")

_CPU_TOKENS, _CPU_NOTES = 16_384, 256  # per batch
_GPU_NOTES = 1024
_BYTES_PER_TOKEN = 2**19  # on a GPU: memory per token of a batch in training


def default_device() -> torch.device:
    """A GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """A context in which the net is in evaluation mode without gradients; its mode is restored afterwards."""
    training = net.training
    net.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        net.train(training)


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether nets compute in bf16 on a device; precision: `training.precision` of a recipe, or that of a model."""
    if precision != "auto":
        return precision == "bf16"
    return device.type == "cuda" and torch.cuda.is_bf16_supported(False)


def trained_precision(precision: str, device: torch.device) -> str:
    """The precision of a model that was trained on a device; precision: `training.precision` of the recipe.

    With "auto", a net that was trained in float32 scores notes in float32 on every device. One that was trained in bf16
    stays "auto": on a device without bf16 it scores in float32.
    """
    return "fp32" if precision == "auto" and not uses_bf16(precision, device) else precision


def memory_budget(device: torch.device) -> int:
    """Tokens of a batch, or of a micro-batch of training, that fit in the memory of the device."""
    if device.type != "cuda":
        return _CPU_TOKENS
    return torch.cuda.get_device_properties(device).total_memory // _BYTES_PER_TOKEN


def batch_limits(device: torch.device) -> tuple[int, int]:
    """The largest number of tokens, padding included, and of notes in a batch that is scored."""
    return memory_budget(device), _GPU_NOTES if device.type == "cuda" else _CPU_NOTES


def by_length(lengths: np.ndarray, tokens: int, notes: int) -> Iterator[np.ndarray]:
    """Rows of batches of similar length, the longest first, without notes that have no tokens.

    A batch has at most `tokens` tokens, padding included, and at most `notes` notes, but at least one note.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    start = 0
    while start < len(order):
        size = max(1, min(notes, tokens // int(lengths[order[start]])))
        yield order[start : start + size]
        start += size


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """The items, each after the next one was computed: a GPU then works on the next while this one is used."""
    for item, _ in pairwise(chain(items, (None,))):
        assert item is not None
        yield item


class HostCopy:
    """A copy of a tensor in the memory of the CPU. It is started at once; `numpy` waits until it is complete."""

    def __init__(self, tensor: Tensor):
        self._copied: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        else:
            self._host = tensor.cpu()

    def numpy(self) -> np.ndarray:
        """The values."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.numpy()
