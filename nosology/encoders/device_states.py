"""States of texts on a GPU, where they fit: a batch is gathered there, and the host sends nothing but places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from nosology.core.progress import progress
from nosology.encoders.state_cache import Places

_TEXTS = 256  # that are sent together
_FREE = 0.5  # of the free memory; the rest is for the training


@dataclass(frozen=True)
class Gathered:
    """The states (B, T, D) of a batch, which are put together on the device when the batch goes there."""

    states: Tensor  # (tokens + 1, D) of all texts, on the device
    index: Tensor  # (B, T) int64, on the CPU

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Tensor:
        """The states (B, T, D) on a device."""
        index = self.index.to(self.states.device, non_blocking=non_blocking)
        return embedding(index, self.states).to(device)

    def pin_memory(self) -> Gathered:
        """The same with places that a GPU copies while the program goes on."""
        return replace(self, index=self.index.pin_memory())


class DeviceStates:
    """The states of some texts, in their order, on one device; texts that are alike have theirs once."""

    def __init__(self, places: Places, device: torch.device | str):
        texts, row = np.unique(places.places, axis=0, return_inverse=True)
        ends = np.cumsum(texts[:, 1])
        self.starts, self.lengths = (ends - texts[:, 1])[row.ravel()], texts[row.ravel(), 1]
        self.after = int(ends[-1])  # the row of zeros that stands after the end of every text
        self.states = torch.zeros(self.after + 1, places.width, dtype=torch.float16, device=device)
        for first in progress(range(0, len(texts), _TEXTS), "states to the GPU", unit="batches"):
            some = slice(first, first + _TEXTS)
            part = np.concatenate([places.states[start : start + n] for start, n in texts[some].tolist()])
            end = int(ends[some][-1])
            self.states[end - len(part) : end] = torch.from_numpy(part)

    def rectangle(self, rows: Sequence[int], width: int) -> Gathered:
        """The states (B, width, D) of some texts, 0 after their ends."""
        chosen, place = np.asarray(rows), np.arange(width)
        starts, lengths = self.starts[chosen, None], self.lengths[chosen, None]
        return Gathered(self.states, torch.from_numpy(np.where(place < lengths, starts + place, self.after)))


def on_device(places: Places, device: torch.device, gigabytes: float) -> DeviceStates | None:
    """The states on a GPU; None on a CPU, and where they are more than so many gigabytes or half of what is free."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()  # what torch holds for later would not count as free
    free, _ = torch.cuda.mem_get_info(device)
    if places.nbytes > min(gigabytes * 1e9, _FREE * free):
        return None
    try:
        return DeviceStates(places, device)
    except torch.OutOfMemoryError:  # another program took it in the meantime
        return None
