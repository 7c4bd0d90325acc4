"""States of notes that an encoder which does not learn has read: each note is read once, not once an epoch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class NoteStates:
    """States by note, on the device they are used on; a note that would pass the limit is read again each time."""

    def __init__(self, limit_gb: float):
        self.limit = int(limit_gb * 2**30)
        self.bytes = 0
        self._states: dict[int, Tensor] = {}

    def states(self, notes: Tensor, lengths: Tensor, width: int, read: Callable[[], Tensor]) -> Tensor:
        """States (B, T, D) of notes (B,), as they are kept or, if one is not, as `read` gives all of them.

        lengths: (B,), on the CPU; width: T. What stands at pads is not the same in both cases.
        """
        names = notes.tolist()
        kept = [self._states.get(name) for name in names]
        if any(state is None for state in kept):
            made = read()
            for name, state, length in zip(names, made, lengths.tolist()):
                self._keep(name, state[:length])
            return made
        whole = kept[0].new_zeros(len(kept), width, kept[0].shape[1])
        for row, state in zip(whole, kept):
            row[: len(state)] = state
        return whole

    def clear(self) -> None:
        """Forgets all: the encoder has begun to learn."""
        self._states.clear()
        self.bytes = 0

    def _keep(self, name: int, state: Tensor) -> None:
        size = state.numel() * state.element_size()
        if name not in self._states and self.bytes + size <= self.limit:
            self._states[name] = state.detach().clone(memory_format=torch.contiguous_format)
            self.bytes += size
