"""Pooling: from the states of tokens to one vector per text, with the layers that sentence-transformers adds after it.

Texts are packed: the states (T, D) of all texts are concatenated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from nosology.core import ConfigError

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": functional.gelu,
}


def pool(states: Tensor, lengths: Tensor, modes: tuple[str, ...], skip: int = 0) -> Tensor:
    """Vectors (N, D * len(modes)) of packed texts with states (T, D) and lengths (N,), none 0.

    The first `skip` tokens of each text are ignored. Sums are in float32.
    """
    ends = lengths.cumsum(0)
    starts = ends - lengths
    counts = lengths - skip
    vectors = []
    for mode in modes:
        if mode == "cls":
            vectors.append(states[starts + skip].float())
        elif mode == "lasttoken":
            vectors.append(states[ends - 1].float())
        elif mode == "max":
            vectors.append(_reduce(states, lengths, skip, "max"))
        elif mode == "mean":
            vectors.append(_reduce(states, lengths, skip, "mean"))
        elif mode == "mean_sqrt_len_tokens":
            vectors.append(_reduce(states, lengths, skip, "sum") / counts[:, None].sqrt())
        else:  # weightedmean: the weight of a token is its position in the text, from 1
            position = _positions(lengths)[:, None] + 1.0
            total = _reduce(states.float() * position, lengths, skip, "sum")
            vectors.append(total / _reduce(position, lengths, skip, "sum"))
    return torch.cat(vectors, dim=1)


def _reduce(states: Tensor, lengths: Tensor, skip: int, reduce: str) -> Tensor:
    if skip:
        states, lengths = states[_positions(lengths) >= skip], lengths - skip
    return torch.segment_reduce(states.float(), reduce, lengths=lengths, axis=0, unsafe=True)


def _positions(lengths: Tensor) -> Tensor:
    """The position (T,) of each token in its text, from 0."""
    starts = lengths.cumsum(0) - lengths
    total = torch.arange(int(lengths.sum()), device=lengths.device)
    return total - starts.repeat_interleave(lengths)


def pool_windows(vectors: Tensor, windows: Tensor, tokens: Tensor) -> Tensor:
    """Vectors (B, D) of notes: means of the vectors (N, D) of their windows, weighted by the tokens (N,) of each.

    windows: (B,) number of windows of each note.
    """
    weights = tokens.to(vectors.dtype)[:, None]
    total = torch.segment_reduce(vectors * weights, "sum", lengths=windows, axis=0, unsafe=True)
    return total / torch.segment_reduce(weights, "sum", lengths=windows, axis=0, unsafe=True)


class DenseNormalize(nn.Module):
    """The modules after pooling: x -> activation(W x + b) per Dense folder, then optionally x / |x|, in float32."""

    def __init__(self, folders: Sequence[Path], normalise: bool):
        super().__init__()
        self.normalise = normalise
        self.width = 0  # of the output; 0: that of the input
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.activations: list[Callable[[Tensor], Tensor]] = []
        for folder in folders:
            try:
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                arrays = load_file(folder / "model.safetensors")
                weight = arrays["linear.weight"].float()
            except Exception as error:  # a missing or damaged file, or pickled weights
                raise ConfigError(f"{folder} must contain a layer as config.json and model.safetensors") from error
            name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
            if name not in _ACTIVATIONS or config.get("use_residual"):
                raise ConfigError(f"the activation of {folder} must be one of {', '.join(_ACTIVATIONS)}; got {name}")
            bias = arrays.get("linear.bias", torch.zeros(len(weight))).float()
            self.weights.append(nn.Parameter(weight, requires_grad=False))
            self.biases.append(nn.Parameter(bias, requires_grad=False))
            self.activations.append(_ACTIVATIONS[name])
            self.width = len(weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors (B, E) of pooled vectors (B, D)."""
        for weight, bias, activation in zip(self.weights, self.biases, self.activations):
            vectors = activation(functional.linear(vectors, weight, bias))
        return functional.normalize(vectors) if self.normalise else vectors
