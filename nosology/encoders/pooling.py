"""From the states of tokens to one vector a text."""

from __future__ import annotations

import torch
from torch import Tensor


def pool(states: Tensor, lengths: Tensor, modes: tuple[str, ...], skip: int = 0) -> Tensor:
    """Vectors (N, D * len(modes)) of texts of lengths (N,), none 0, whose states (T, D) stand one behind another.

    The first `skip` tokens of a text do not count. Sums are taken in float32.
    """
    ends = lengths.cumsum(0)
    starts = ends - lengths
    counted = lengths - skip
    found = []
    for mode in modes:
        if mode == "cls":
            found.append(states[starts + skip].float())
        elif mode == "lasttoken":
            found.append(states[ends - 1].float())
        elif mode == "max":
            found.append(_segments(states, lengths, skip, "max"))
        elif mode == "mean":
            found.append(_segments(states, lengths, skip, "mean"))
        elif mode == "mean_sqrt_len_tokens":
            found.append(_segments(states, lengths, skip, "sum") / counted[:, None].sqrt())
        else:  # weightedmean: a token weighs as much as its number in the text
            number = _number(lengths)[:, None] + 1.0
            total = _segments(states.float() * number, lengths, skip, "sum")
            found.append(total / _segments(number, lengths, skip, "sum"))
    return torch.cat(found, dim=1)


def _segments(states: Tensor, lengths: Tensor, skip: int, reduce: str) -> Tensor:
    if skip:
        states, lengths = states[_number(lengths) >= skip], lengths - skip
    return torch.segment_reduce(states.float(), reduce, lengths=lengths, axis=0, unsafe=True)


def _number(lengths: Tensor) -> Tensor:
    """The number (T,) of each token in its text, from 0."""
    starts = lengths.cumsum(0) - lengths
    total = torch.arange(int(lengths.sum()), device=lengths.device)
    return total - starts.repeat_interleave(lengths)


def pool_windows(vectors: Tensor, windows: Tensor, tokens: Tensor) -> Tensor:
    """Vectors (B, D) of notes of windows (B,) each, from the windows' vectors (N, D), weighted by their tokens (N,)."""
    weights = tokens.to(vectors.dtype)[:, None]
    total = torch.segment_reduce(vectors * weights, "sum", lengths=windows, axis=0, unsafe=True)
    return total / torch.segment_reduce(weights, "sum", lengths=windows, axis=0, unsafe=True)
