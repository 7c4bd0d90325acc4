"""What an embedder does to a text's vector after pooling: layers that its folder holds, unit length."""

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


class After(nn.Module):
    """x -> activation(W x + b) for each layer, then x / |x| if asked for; all in float32."""

    def __init__(self, folders: Sequence[Path], normalise: bool):
        super().__init__()
        self.normalise, self.width = normalise, 0  # 0: as wide as what comes in
        self.weights, self.biases, self.activations = nn.ParameterList(), nn.ParameterList(), []
        for folder in folders:
            try:
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                arrays = load_file(folder / "model.safetensors")
                weight = arrays["linear.weight"].float()
            except Exception as error:  # no such file, damaged, a pickle in its place
                raise ConfigError(f"{folder} must hold a layer as config.json and model.safetensors") from error
            name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
            if name not in _ACTIVATIONS or config.get("use_residual"):
                raise ConfigError(f"the activation of {folder} must be one of {', '.join(_ACTIVATIONS)}; got {name}")
            bias = arrays.get("linear.bias", torch.zeros(len(weight))).float()
            self.weights.append(nn.Parameter(weight, requires_grad=False))
            self.biases.append(nn.Parameter(bias, requires_grad=False))
            self.activations.append(_ACTIVATIONS[name])
            self.width = len(weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors (B, E) of vectors (B, D)."""
        for weight, bias, activation in zip(self.weights, self.biases, self.activations):
            vectors = activation(functional.linear(vectors, weight, bias))
        return functional.normalize(vectors) if self.normalise else vectors
