"""States of notes that an encoder which does not learn has read: each note is read once, not once an epoch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_FREE = 0.5  # of the memory that a GPU has free when the first state is kept; the rest is for the training


class NoteStates:
    """States by note, on the device they are used on; a note that would pass the limit is read again each time."""

    def __init__(self, limit_gb: float):
        self.limit = int(limit_gb * 2**30)
        self.bytes = 0
        self._room = self.limit
        self._states: dict[int, Tensor] = {}

    def states(self, notes: Tensor, lengths: Tensor, width: int, read: Callable[[list[int]], Tensor]) -> Tensor:
        """States (B, T, D) of notes (B,), as they are kept or as `read` gives those of the rows that are not.

        lengths: (B,), on the CPU; width: T. What stands at pads is not the same in both cases.
        """
        kept = [self._states.get(name) for name in notes.tolist()]
        missing = [row for row, state in enumerate(kept) if state is None]
        if missing:
            made = read(missing)
            for row, state in zip(missing, made):
                kept[row] = state[: lengths[row]]
                self._keep(int(notes[row]), kept[row])
            if len(missing) == len(kept):
                return made
        whole = kept[0].new_zeros(len(kept), width, kept[0].shape[1])
        for row, state in zip(whole, kept):
            row[: len(state)] = state
        return whole

    def clear(self) -> None:
        """Forgets all: the encoder has begun to learn, or all is learned."""
        self._states.clear()
        self.bytes = 0

    def _keep(self, name: int, state: Tensor) -> None:
        if not self.bytes:
            free = torch.cuda.mem_get_info(state.device)[0] if state.is_cuda else self.limit / _FREE
            self._room = min(self.limit, int(_FREE * free))
        size = state.numel() * state.element_size()
        if name not in self._states and self.bytes + size <= self._room:
            self._states[name] = state.detach().clone(memory_format=torch.contiguous_format)
            self.bytes += size
