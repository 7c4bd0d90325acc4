"""Readers of published weights. Files that contain anything but tensors are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nosology.core import BundleError, ConfigError
from nosology.encoders.tokenizers import SPECIALS, UNKNOWN

if TYPE_CHECKING:
    from torch import Tensor

    from nosology.encoders.tokenizers import Vocabulary
    from nosology.encoders.word_encoders import AwdLstm

_MAX_BYTES = 1 << 33  # of a file; known files have at most 150 million


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, on the CPU and in float32; a file with anything else is rejected."""
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        raise ConfigError("weights need torch, which is not installed: pip install 'nosology[train]'") from error

    if not path.is_file():
        raise BundleError(f"the checkpoint {path.parent} is incomplete: {path.name} is missing")
    if path.stat().st_size > _MAX_BYTES:
        raise BundleError(f"{path} must have less than {_MAX_BYTES >> 30} GB; no model that is read here is as large")
    try:
        content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # a damaged or malicious file can make it raise nearly anything
        raise BundleError(f"{path} cannot be read as weights: it is damaged, or holds more than tensors") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not content:
        raise BundleError(f"{path} must hold tensors by name; got {type(content).__name__}")
    for name, tensor in content.items():
        plain = isinstance(name, str) and isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        if not plain or not tensor.is_floating_point() or tensor.is_meta:
            raise BundleError(f"{path}: {str(name)[:60]!r} must be a dense tensor of floating-point numbers")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise BundleError(f"{path}: {name} must be stored in full")  # else a small file could take all memory
        if not torch.isfinite(tensor).all():
            raise BundleError(f"{path}: {name} must hold finite numbers")
    return {name: tensor.detach().to(torch.float32) for name, tensor in content.items()}


def load_language_model(encoder: AwdLstm, vocabulary: Vocabulary, weights: Path, words: Path) -> int:
    """The number of words of the vocabulary that a published AWD-LSTM knows; its weights are loaded into the encoder.

    weights: as WikiText-103's are published (`0.encoder.weight`, `0.rnns.0.module.weight_ih_l0`, ...), or as the stage
    `language` stores them. words: its vocabulary in its order, one word per line. A word that it does not know starts
    with the mean of all vectors, the unknown word with the vector of `xxunk`. The bias of its decoder is not loaded.
    """
    import torch

    tensors = {name.removeprefix("0."): tensor for name, tensor in tensors_of(weights).items()}
    try:
        lines = words.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"language.words must be a text file with one word per line; cannot read {words}") from error
    rows = {word.removesuffix("\r"): row for row, word in enumerate(lines)}
    if len(rows) < len(lines):
        raise ConfigError(f"language.words must have each word once; {words} has {len(lines) - len(rows)} twice")
    parameters = {name: parameter for name, parameter in encoder.named_parameters() if name != "encoder.weight"}
    table = tensors.get("encoder.weight")
    if table is None or table.ndim != 2 or table.shape[1] != encoder.width:
        raise BundleError(f"{weights}: encoder.weight must be (words, {encoder.width}); got {_shape(table)}")
    if len(table) != len(lines):
        raise ConfigError(f"language.words must have a line for each of the {len(table)} vectors; got {len(lines)}")
    for name, parameter in parameters.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != parameter.shape:
            raise BundleError(f"{weights}: {name} must be {tuple(parameter.shape)}; got {_shape(tensor)}")
    known = {number: rows[word] for number, word in enumerate(vocabulary.words, SPECIALS) if word in rows}
    with torch.no_grad():
        embedding = encoder.encoder.weight
        embedding[1:] = table.mean(0)
        if "xxunk" in rows:
            embedding[UNKNOWN] = table[rows["xxunk"]]
        embedding[list(known)] = table[list(known.values())]
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return len(known)


def _shape(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else str(tuple(tensor.shape))
