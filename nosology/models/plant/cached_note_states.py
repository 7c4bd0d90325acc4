"""Encoder states of notes in memory: a frozen encoder reads each note once per training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_GPU_MEMORY_SHARE = 0.5  # of the free memory at the first cached state; the rest is for training


class CachedNoteStates:
    """Cached encoder states by note, on the device of the encoder. Notes beyond the memory limit are not cached."""

    def __init__(self, limit_gb: float):
        self.limit = int(limit_gb * 2**30)
        self.bytes = 0
        self._budget = self.limit
        self._states: dict[int, Tensor] = {}

    def states(self, notes: Tensor, lengths: Tensor, width: int, read: Callable[[list[int]], Tensor]) -> Tensor:
        """States (B, T, D) of notes (B,), from the cache or, for rows that are not cached, from `read`.

        lengths: (B,), on the CPU; width: T. The values at padding are undefined.
        """
        cached = {row: self._states[note] for row, note in enumerate(notes.tolist()) if note in self._states}
        missing = [row for row in range(len(notes)) if row not in cached]
        if missing:
            new = read(missing)
            for row, state in zip(missing, new):
                cached[row] = state[: lengths[row]]
                self._store(int(notes[row]), cached[row])
            if len(missing) == len(notes):
                return new
        states = cached[0].new_zeros(len(notes), width, cached[0].shape[1])
        for row, state in cached.items():
            states[row, : len(state)] = state
        return states

    def clear(self) -> None:
        """Empties the cache: the encoder is trained now, or the training has ended."""
        self._states.clear()
        self.bytes = 0

    def _store(self, note: int, state: Tensor) -> None:
        if not self.bytes:
            free = torch.cuda.mem_get_info(state.device)[0] if state.is_cuda else self.limit / _GPU_MEMORY_SHARE
            self._budget = min(self.limit, int(_GPU_MEMORY_SHARE * free))
        if note not in self._states and self.bytes + state.nbytes <= self._budget:
            self._states[note] = state.detach().clone(memory_format=torch.contiguous_format)
            self.bytes += state.nbytes
