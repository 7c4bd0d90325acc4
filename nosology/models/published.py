"""Readers of published weights. Files that contain anything but tensors are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nosology.core import BundleError, ConfigError
from nosology.encoders.tokenizers import UNKNOWN

if TYPE_CHECKING:
    from torch import Tensor

    from nosology.encoders.tokenizers import Vocabulary
    from nosology.encoders.word_encoders import AwdLstm

_LARGEST = 1 << 33  # bytes of a file; the largest that is known has 150 million


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, on the CPU and in float32; a file that wants more than tensors is refused."""
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        raise ConfigError("weights need torch, which is not installed: pip install nosology[train]") from error

    if not path.is_file():
        raise BundleError(f"the checkpoint {path.parent} is not whole: {path.name} is missing")
    if path.stat().st_size > _LARGEST:
        raise BundleError(f"{path} must have less than {_LARGEST >> 30} GB; no model that is read here is as large")
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # a damaged or malicious file can make it raise nearly anything
        raise BundleError(f"{path} cannot be read as weights: it is damaged, or holds more than tensors") from error
    if isinstance(found, dict) and isinstance(found.get("model"), dict):
        found = found["model"]
    if not isinstance(found, dict) or not found:
        raise BundleError(f"{path} must hold tensors by name; got {type(found).__name__}")
    for name, tensor in found.items():
        plain = isinstance(name, str) and isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        if not plain or not tensor.is_floating_point() or tensor.is_meta:
            raise BundleError(f"{path}: {str(name)[:60]!r} must be a dense tensor of floating-point numbers")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise BundleError(f"{path}: {name} must be stored in full")  # else a small file may ask for all memory
        if not torch.isfinite(tensor).all():
            raise BundleError(f"{path}: {name} must hold finite numbers")
    return {name: tensor.detach().to(torch.float32) for name, tensor in found.items()}


def load_language_model(encoder: AwdLstm, vocabulary: Vocabulary, weights: Path, words: Path) -> int:
    """The number of our words that a published AWD-LSTM knows, once its weights are in the encoder.

    weights: as WikiText-103's are published (`0.encoder.weight`, `0.rnns.0.module.weight_ih_l0`, ...), or as the stage
    `language` stores them. words: its vocabulary in its order, one word per line. A word that it does not know starts
    with the mean of all its vectors, the unknown word with that of `xxunk`. The bias of its decoder is not loaded.
    """
    import torch

    own = {name.removeprefix("0."): tensor for name, tensor in tensors_of(weights).items()}
    try:
        lines = words.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"language.words must be a text file with one word per line; cannot read {words}") from error
    theirs = {word.removesuffix("\r"): row for row, word in enumerate(lines)}
    if len(theirs) < len(lines):
        raise ConfigError(f"language.words must have each word once; {words} has {len(lines) - len(theirs)} twice")
    table = own.get("encoder.weight")
    if table is None or table.ndim != 2 or table.shape[1] != encoder.width:
        got = "nothing" if table is None else tuple(table.shape)
        raise BundleError(f"{weights}: encoder.weight must be (words, {encoder.width}); got {got}")
    if len(table) != len(lines):
        raise ConfigError(f"language.words must have a line for each of the {len(table)} vectors; got {len(lines)}")
    known = 0
    with torch.no_grad():
        encoder.encoder.weight[1:] = table.mean(0)
        if "xxunk" in theirs:
            encoder.encoder.weight[UNKNOWN] = table[theirs["xxunk"]]
        for number, word in enumerate(vocabulary.words, 2):
            if word in theirs:
                encoder.encoder.weight[number] = table[theirs[word]]
                known += 1
        for name, parameter in encoder.named_parameters():
            if name == "encoder.weight":
                continue
            given = own.get(name)
            if given is None or given.shape != parameter.shape:
                got = "nothing" if given is None else tuple(given.shape)
                raise BundleError(f"{weights}: {name} must be {tuple(parameter.shape)}; got {got}")
            parameter.copy_(given)
    return known
