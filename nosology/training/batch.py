"""Notes of different lengths as one rectangle, with what is asked about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nosology.encoders.vocabulary import PAD

_MULTIPLE = 8  # lengths are rounded up to it: bf16 matrix products want aligned rows


@dataclass(frozen=True)
class Batch:
    """B notes of at most T tokens, and the L labels they are scored against."""

    tokens: Tensor  # (B, T) int64, PAD after each note's end
    lengths: Tensor  # (B,) int64, always on the CPU
    labels: Tensor | None = None  # (L,) int64, on the CPU: the columns that are scored; None: all
    targets: Tensor | None = None  # (B, L) float32, 0 or 1
    notes: Tensor | None = None  # (B,) int64, on the CPU: which of the train notes they are

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; lengths and labels stay, since asking a GPU for them would make it wait."""
        targets = None if self.targets is None else self.targets.to(device, non_blocking=True)
        return replace(self, tokens=self.tokens.to(device, non_blocking=True), targets=targets)


def rectangle(notes: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) and lengths (B,) of notes given as arrays of token ids; a note without a token has length 0."""
    lengths = [len(note) for note in notes]
    width = max(_MULTIPLE, -(-max(lengths) // _MULTIPLE) * _MULTIPLE)
    return padded(notes, width, PAD, np.int64), torch.tensor(lengths, dtype=torch.int64)


def padded(rows: Sequence[np.ndarray], width: int, pad: float, kind: type[np.generic]) -> Tensor:
    """Rows of different lengths as (B, width), with pads after their ends; of numpy alone, whose steps are short."""
    found = np.full((len(rows), width), pad, dtype=kind)
    for target, row in zip(found, rows):
        target[: len(row)] = row
    return torch.from_numpy(found)


def mask(lengths: Tensor, width: int, device: torch.device) -> Tensor:
    """True (B, T) at the tokens of the notes, False after their ends."""
    return torch.arange(width, device=device) < lengths.to(device, non_blocking=True)[:, None]
