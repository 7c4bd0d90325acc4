"""DualLAAT checkpoints as its authors publish them: config.json, token2id.json and pytorch_model.bin.

What differs in the authors' program and changes a score: padding takes part like a word and has a vector; a note is
padded to max_note_length, a description to the longest description of the list; a convolution of width k sees k // 2
zeros on both sides; a code is the final states of both directions, or the maximum over all positions; a word that is
not in token2id.json is <UNK>. Words of notes consist of a-z and 0-9 without separate numbers; descriptions are split at
whitespace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nosology.core import BundleError, Code, ConfigError, __version__
from nosology.core.files import sha256
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import Vocabulary, WordTokenizer
from nosology.evaluation.decision import UNTUNED, Decision, DecisionSettings
from nosology.models.dual_laat.dual_laat_settings import DualLaatRecipe, DualLaatSettings
from nosology.models.published import tensors_of
from nosology.training.recipe_settings import WordVectorSettings

if TYPE_CHECKING:
    from torch import Tensor

    from nosology.models.bundle import Bundle
    from nosology.models.dual_laat.dual_laat_model import DualLaatNet

CONFIG, WORDS, WEIGHTS = "config.json", "token2id.json", "pytorch_model.bin"
_MAX_COUNT = 32_768  # words; the authors' notes have 4,000
_SPECIALS = ("<PAD>", "<UNK>")
_THEIR_NAMES = {
    "text_encoder": "encoder_text",
    "code_encoder": "encoder_code",
    "text_projections": "projection_text_layers",
    "code_projections": "projection_code_layers",
    "classifier": "final_layer",
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of the authors of DualLAAT."""

    net: DualLaatNet
    tokenizer: WordTokenizer
    config: dict[str, Any]  # config.json


def import_checkpoint(folder: str | Path) -> Checkpoint:
    """The checkpoint of a folder; BundleError if a file is missing or wrong.

    Sizes are read from the weights and must agree with config.json. No code of the folder is run: files of weights that
    contain anything but tensors are refused.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder with a DualLAAT checkpoint ({CONFIG}, {WORDS}, {WEIGHTS})")
    config, words = _read_object(folder / CONFIG), _read_object(folder / WORDS)
    weights = tensors_of(folder / WEIGHTS)
    import torch

    from nosology.models.dual_laat.dual_laat_model import DualLaatNet

    settings = _settings(folder / CONFIG, config, weights)
    words_in_table, size = weights["embedding.weight"].shape
    with torch.device("meta"):
        net = DualLaatNet(settings, words_in_table, size)
    state = _our_weights(folder / WEIGHTS, weights, net.state_dict())
    vocabulary, rows = _vocabulary(folder / WORDS, words, words_in_table)
    state["embedding.weight"] = state["embedding.weight"][rows].contiguous()
    net.load_state_dict(state, assign=True)
    length = _count(folder / CONFIG, config, "max_note_length", 4000)
    return Checkpoint(net.eval(), WordTokenizer(vocabulary, length, reference_padding=True), config)


def import_bundle(folder: str | Path, codes: Sequence[tuple[Code, str]], threshold: float = UNTUNED) -> Bundle:
    """A bundle with the weights of a checkpoint for these codes, given with their descriptions."""
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold must be from 0 to 1; got {threshold}")
    checkpoint = import_checkpoint(folder)
    import numpy as np

    from nosology.models.bundle import Bundle
    from nosology.models.dual_laat.dual_laat_model import DualLaat

    net, tokenizer = checkpoint.net, checkpoint.tokenizer
    empty = DualLaat(LabelSpace(()), np.zeros(0, dtype=np.int64), tokenizer, net, net.settings, precision="fp32")
    recipe = DualLaatRecipe(
        model=net.settings,
        vectors=WordVectorSettings(size=net.embedding.embedding_dim, max_words=tokenizer.limit),
        decision=DecisionSettings(threshold=threshold),
    )
    provenance = {
        "imported": "a DualLAAT checkpoint of its authors",
        "weights": sha256(Path(folder) / WEIGHTS),
        "config": checkpoint.config,
        "corpora": [],
        "package": f"nosology {__version__}",
    }
    return Bundle(empty.with_codes(codes), Decision(threshold), recipe.model_dump(mode="json"), provenance)


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=_reject_constant)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate could not be saved in the bundle
    except FileNotFoundError as error:
        raise BundleError(f"the checkpoint {path.parent} is incomplete: {path.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read or is not JSON") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} must hold an object; got {type(value).__name__}")
    return value


def _settings(path: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> DualLaatSettings:
    """The settings of the net, from the sizes of its weights; BundleError if config.json has other sizes."""
    kind = config.get("encoder_type", "rnn")
    if kind not in ("rnn", "cnn"):
        raise BundleError(f"{path}: encoder_type must be rnn or cnn; got {kind!r}")
    heads = sum(name.startswith("projection_text_layers.") and name.endswith(".weight") for name in weights)
    words, size = _sizes(path, weights, "embedding.weight", 2)
    projection = _sizes(path, weights, "projection_text_layers.0.weight", 2)[0]
    sizes = {"vocab_size": words, "embedding_dim": size, "num_mha_heads": heads, "projection_dim": projection}
    if kind == "cnn":
        width, _, kernel = _sizes(path, weights, "encoder_text.weight", 3)
        sizes |= {"num_filters": width, "kernel_size": kernel}
    else:
        cell, layers = config.get("rnn_type", "lstm"), config.get("rnn_num_layers", 1)
        if cell != "gru" or layers != 1:
            raise BundleError(f"{path}: rnn must be one layer of gru; got {layers!r} of {cell!r}")
        width, kernel = _sizes(path, weights, "encoder_text.weight_hh_l0", 2)[1], 10
        sizes["rnn_hidden_size"] = width
    for name, expected in sizes.items():
        if name in config and config[name] != expected:
            raise BundleError(f"{path}: {name} must be {expected}, as the weights have it; got {config[name]!r}")
    if projection != width:
        raise BundleError(f"{path}: projection_dim must be the width of the encoder, {width}; got {projection}")
    values = {
        "encoder": "conv" if kind == "cnn" else "gru",
        "width": width,
        "kernel": kernel,
        "heads": heads,
        "dropout": config.get("dropout", 0.0),
        "max_description": _count(path, config, "max_code_length", 48),
        "reference_padding": True,
    }
    try:
        return DualLaatSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(f"{path}: {'.'.join(map(str, first['loc']))} {first['msg'].lower()}") from error


def _sizes(path: Path, weights: dict[str, Tensor], name: str, dimensions: int) -> tuple[int, ...]:
    """The sizes of a tensor; BundleError if it is missing, empty or has another number of dimensions."""
    if name not in weights:
        raise BundleError(f"{path.parent / WEIGHTS} is no DualLAAT model: {name} is missing")
    sizes = tuple(weights[name].shape)
    if len(sizes) != dimensions or 0 in sizes:
        raise BundleError(f"{path.parent / WEIGHTS}: {name} must have {dimensions} sizes above 0; got {sizes}")
    return sizes


def _our_weights(path: Path, weights: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of our net; BundleError unless they have exactly the names and sizes of `state`."""
    names = {_their_name(name): name for name in state}
    if missing := next((name for name in names if name not in weights), None):
        raise BundleError(f"{path} is no DualLAAT model: {missing} is missing")
    if more := next((name for name in weights if name not in names), None):
        raise BundleError(f"{path} is no DualLAAT model: it has no place for {more[:60]!r}")
    for theirs, ours in names.items():
        expected, sizes = tuple(state[ours].shape), tuple(weights[theirs].shape)
        if sizes != expected:
            raise BundleError(f"{path}: {theirs} must have the sizes {expected}; got {sizes}")
    return {ours: weights[theirs] for theirs, ours in names.items()}


def _their_name(name: str) -> str:
    """The name of a weight of our net in a checkpoint of the authors."""
    first, *rest = name.split(".")
    return ".".join([_THEIR_NAMES.get(first, first), *(part for part in rest if part not in ("cell", "conv"))])


def _vocabulary(path: Path, words: dict[str, Any], n: int) -> tuple[Vocabulary, list[int]]:
    """The vocabulary of a checkpoint, and the row of its embedding for each id of ours (V,).

    Ids stay the same if <PAD> is 0 and <UNK> is 1; otherwise these two are moved to the front.
    """
    if missing := next((name for name in _SPECIALS if name not in words), None):
        raise BundleError(f"{path} must give {', '.join(_SPECIALS)} a number; {missing} is missing")
    numbers = list(words.values())
    if not all(type(number) is int for number in numbers) or sorted(numbers) != list(range(n)):
        raise BundleError(f"{path} must give each of the {n} rows of embedding.weight to one word")
    others = sorted((number, word) for word, number in words.items() if word not in _SPECIALS)
    rows = [words[name] for name in _SPECIALS] + [number for number, _ in others]
    return Vocabulary([word for _, word in others]), rows


def _count(path: Path, config: dict[str, Any], name: str, default: int) -> int:
    """A positive number of config.json."""
    value = config.get(name, default)
    if type(value) is not int or not 0 < value <= _MAX_COUNT:
        raise BundleError(f"{path}: {name} must be a whole number from 1 to {_MAX_COUNT:,}; got {value!r}")
    return value
