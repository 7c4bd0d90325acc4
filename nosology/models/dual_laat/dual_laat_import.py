"""DualLAAT checkpoints as its authors publish them: config.json, token2id.json and pytorch_model.bin.

What their program does, as far as a score depends on it: pads are words like any other, with a vector of their own; a
note is filled up to max_note_length, a description to the longest one of the list; a convolution of width k sees k // 2
zeros before and after that; a code is the final states of both directions, or the maximum over all positions; a word
that is not in token2id.json is <UNK>. Words of notes are of a-z and 0-9 without lone numbers; a description is cut at
blanks.
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

CONFIG, WORDS, WEIGHTS = "config.json", "token2id.json", "pytorch_model.bin"
_LONGEST = 32_768  # words; the authors' notes have 4,000
_SPECIALS = ("<PAD>", "<UNK>")
_GRU = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(frozen=True)
class Details:
    """What else a checkpoint says about itself."""

    max_note_length: int  # words
    size: int  # of a word vector
    config: dict[str, Any]  # config.json as it is


def import_checkpoint(folder: str | Path) -> tuple[DualLaatSettings, Vocabulary, dict[str, Tensor], Details]:
    """The shape, vocabulary and weights of a checkpoint, the weights by the names that `DualLaatNet` gives them.

    Sizes are read from the weights and must be those of config.json. Nothing in the folder is run: weights that are
    more than tensors are refused, with a BundleError as for everything else that is missing or wrong.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder with a DualLAAT checkpoint ({CONFIG}, {WORDS}, {WEIGHTS})")
    config, words = _read_object(folder / CONFIG), _read_object(folder / WORDS)
    weights = tensors_of(folder / WEIGHTS)
    shape = _settings(folder / CONFIG, config, weights)
    _check_shapes(folder / WEIGHTS, weights, shape)
    vocabulary, rows = _vocabulary(folder / WORDS, words, len(weights["embedding.weight"]))
    state = {_our_name(name): tensor for name, tensor in weights.items()}
    state["embedding.weight"] = state["embedding.weight"][rows].contiguous()
    length = _count(folder / CONFIG, config, "max_note_length", 4000)
    return shape, vocabulary, state, Details(length, weights["embedding.weight"].shape[1], config)


def import_bundle(folder: str | Path, codes: Sequence[tuple[Code, str]], threshold: float = UNTUNED) -> Bundle:
    """A coder of these codes, each with its description, with the weights of a checkpoint and the authors' reading."""
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold must be from 0 to 1; got {threshold}")
    shape, vocabulary, state, details = import_checkpoint(folder)
    import numpy as np

    from nosology.models.bundle import Bundle
    from nosology.models.dual_laat import dual_laat_model as dual_laat
    from nosology.models.dual_laat.dual_laat_net import DualLaatNet

    net = DualLaatNet(shape, len(vocabulary), details.size)
    net.load_state_dict(state)
    tokenizer = WordTokenizer(vocabulary, details.max_note_length, reference_padding=True)
    empty = dual_laat.DualLaat(LabelSpace(()), np.zeros(0, dtype=np.int64), tokenizer, net.eval(), shape)
    recipe = DualLaatRecipe(
        model=shape,
        vectors=WordVectorSettings(size=details.size, max_words=details.max_note_length),
        decision=DecisionSettings(threshold=threshold),
    )
    provenance = {
        "imported": "a DualLAAT checkpoint of its authors",
        "weights": sha256(Path(folder) / WEIGHTS),
        "config": details.config,
        "corpora": [],
        "package": f"nosology {__version__}",
    }
    return Bundle(empty.with_codes(list(codes)), Decision(threshold), recipe.model_dump(mode="json"), provenance)


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=_reject_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be written again
    except FileNotFoundError as error:
        raise BundleError(f"the checkpoint {path.parent} is not whole: {path.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read or is not JSON") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} must hold an object; got {type(value).__name__}")
    return value


def _settings(path: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> DualLaatSettings:
    """The shape of the net by its weights, as far as they and config.json agree."""
    kind = config.get("encoder_type", "rnn")
    if kind not in ("rnn", "cnn"):
        raise BundleError(f"{path}: encoder_type must be rnn or cnn; got {kind!r}")
    heads = sum(name.startswith("projection_text_layers.") and name.endswith(".weight") for name in weights)
    embedding = _tensor_shape(path, weights, "embedding.weight", 2)
    projection = _tensor_shape(path, weights, "projection_text_layers.0.weight", 2)
    expected = {"vocab_size": embedding[0], "embedding_dim": embedding[1], "num_mha_heads": heads}
    expected["projection_dim"] = projection[0]
    if kind == "cnn":
        filters, _, kernel = _tensor_shape(path, weights, "encoder_text.weight", 3)
        width, expected = filters, expected | {"num_filters": filters, "kernel_size": kernel}
    else:
        cell, layers = config.get("rnn_type", "lstm"), config.get("rnn_num_layers", 1)
        if cell != "gru" or layers != 1:
            raise BundleError(f"{path}: rnn must be one layer of gru; got {layers!r} of {cell!r}")
        width, kernel = _tensor_shape(path, weights, "encoder_text.weight_hh_l0", 2)[1], 10
        expected["rnn_hidden_size"] = width
    for name, found in expected.items():
        if name in config and config[name] != found:
            raise BundleError(f"{path}: {name} must be {found}, as the weights have it; got {config[name]!r}")
    if projection[0] != width:
        raise BundleError(f"{path}: projection_dim must be the width of the encoder, {width}; got {projection[0]}")
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


def _tensor_shape(path: Path, weights: dict[str, Tensor], name: str, sides: int) -> tuple[int, ...]:
    """The sizes of a tensor that must be there and have so many sides, none of them empty."""
    if name not in weights:
        raise BundleError(f"{path.parent / WEIGHTS} is no DualLAAT model: {name} is missing")
    sizes = tuple(weights[name].shape)
    if len(sizes) != sides or 0 in sizes:
        raise BundleError(f"{path.parent / WEIGHTS}: {name} must have {sides} sizes above 0; got {sizes}")
    return sizes


def _check_shapes(path: Path, weights: dict[str, Tensor], shape: DualLaatSettings) -> None:
    """Refuses weights that the net does not have, lacks or has in another size."""
    size = weights["embedding.weight"].shape[1]
    states = shape.width * (2 if shape.encoder == "gru" else 1)
    joined = shape.heads * states
    wanted: dict[str, tuple[int, ...]] = {"embedding.weight": tuple(weights["embedding.weight"].shape)}
    for side in ("text", "code"):
        if shape.encoder == "gru":
            sizes = [(3 * shape.width, size), (3 * shape.width, shape.width), (3 * shape.width,), (3 * shape.width,)]
            for end in ("l0", "l0_reverse"):
                wanted |= {f"encoder_{side}.{part}_{end}": form for part, form in zip(_GRU, sizes)}
        else:
            wanted[f"encoder_{side}.weight"] = (shape.width, size, shape.kernel)
            wanted[f"encoder_{side}.bias"] = (shape.width,)
        for head in range(shape.heads):
            wanted[f"projection_{side}_layers.{head}.weight"] = (shape.width, states)
            wanted[f"projection_{side}_layers.{head}.bias"] = (shape.width,)
    wanted |= {"final_layer.0.weight": (joined, joined), "final_layer.0.bias": (joined,)}
    wanted |= {"final_layer.2.weight": (1, joined), "final_layer.2.bias": (1,)}
    if missing := next((name for name in wanted if name not in weights), None):
        raise BundleError(f"{path} is no DualLAAT model: {missing} is missing")
    if more := next((name for name in weights if name not in wanted), None):
        raise BundleError(f"{path} is no DualLAAT model: it has no place for {more[:60]!r}")
    for name, form in wanted.items():
        if tuple(weights[name].shape) != form:
            raise BundleError(f"{path}: {name} must have the sizes {form}; got {tuple(weights[name].shape)}")


def _vocabulary(path: Path, words: dict[str, Any], n: int) -> tuple[Vocabulary, list[int]]:
    """The vocabulary of a checkpoint, and which row of its embedding each number of ours takes, (V,).

    Numbers stay as they are where the pad is 0 and the unknown word 1; else these two are moved to the front.
    """
    if missing := next((name for name in _SPECIALS if name not in words), None):
        raise BundleError(f"{path} must give {', '.join(_SPECIALS)} a number; {missing} is missing")
    numbers = list(words.values())
    if not all(type(number) is int for number in numbers) or sorted(numbers) != list(range(n)):
        raise BundleError(f"{path} must give each of the {n} rows of embedding.weight to one word")
    front = [words[name] for name in _SPECIALS]
    others = sorted((number, word) for word, number in words.items() if word not in _SPECIALS)
    return Vocabulary([word for _, word in others]), front + [number for number, _ in others]


def _our_name(name: str) -> str:
    """The name of a weight in our net."""
    first, _, rest = name.partition(".")
    if first in ("encoder_text", "encoder_code"):
        part = "conv" if rest in ("weight", "bias") else "cell"
        return f"{first.removeprefix('encoder_')}_encoder.{part}.{rest}"
    ours = {
        "projection_text_layers": "text_projections",
        "projection_code_layers": "code_projections",
        "final_layer": "classifier",
    }
    return f"{ours.get(first, first)}.{rest}"


def _count(path: Path, config: dict[str, Any], name: str, otherwise: int) -> int:
    """A number of config.json that counts something."""
    value = config.get(name, otherwise)
    if type(value) is not int or not 0 < value <= _LONGEST:
        raise BundleError(f"{path}: {name} must be a whole number from 1 to {_LONGEST:,}; got {value!r}")
    return value
