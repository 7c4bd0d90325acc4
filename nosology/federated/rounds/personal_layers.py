"""Personal layers: weights that each site trains for itself and keeps (`federation.personal`).

They are in no message of a site. The server sends their initial values once, with the setup. A site keeps them in the
state of its context and in a file, and uses them when it trains and evaluates. The bundle of the server has their
initial values and names them as missing; a site completes it with its own (`complete_bundle`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nosology.core import BundleError, ConfigError, DataError
from nosology.models.bundle import Bundle
from nosology.models.neural import NeuralModel
from nosology.training.checkpoint import read_tensors, write_tensors

Arrays = dict[str, np.ndarray]

PERSONAL = "personal/"  # before the name of a weight, in a record that has other arrays too


def personal_names(personal: Sequence[str], head: Sequence[str], weights: Iterable[str]) -> list[str]:
    """The names of the weights that stay at the sites.

    personal: beginnings of names; "head" stands for `head`. ConfigError if one matches nothing, or if nothing is left.
    """
    weights, chosen = list(weights), set[str]()
    for prefix in personal:
        found = {name for name in weights if name.startswith(tuple(head) if prefix == "head" else prefix)}
        if not found or not prefix:
            parts = sorted({name.partition(".")[0] for name in weights})
            raise ConfigError(
                f'federation.personal must be "head" or the beginning of the name of a weight ({", ".join(parts)}); '
                f"got {prefix!r}"
            )
        chosen |= found
    if len(chosen) == len(weights):
        raise ConfigError("federation.personal must leave some weights to share; got all of them")
    return [name for name in weights if name in chosen]


def mark(arrays: Mapping[str, np.ndarray], prefix: str = PERSONAL) -> Arrays:
    """The arrays with a prefix before their names."""
    return {prefix + name: array for name, array in arrays.items()}


def marked(arrays: Mapping[str, np.ndarray], prefix: str = PERSONAL) -> Arrays:
    """The arrays that `mark` has given this prefix, under their own names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _path(folder: Path, setup: str) -> Path:
    return folder / f"{setup}.safetensors"


def save_personal(folder: Path, setup: str, number: int, arrays: Arrays) -> None:
    """Writes the personal layers of a site after a round. setup: hash of labels and inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    write_tensors(_path(folder, setup), tensors, "", state=json.dumps({"round": number}))


def load_personal(folder: Path, setup: str, until: int | None = None) -> Arrays:
    """The personal layers that a site has saved; empty if there are none, or none of a round up to `until`."""
    path = _path(folder, setup)
    if not path.is_file():
        return {}
    try:
        metadata, tensors = read_tensors(path, "")
        number = int(json.loads((metadata or {})["state"])["round"])
    except (DataError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} has no personal layers of this version: delete it to start with new ones") from error
    if until is not None and number > until:
        return {}  # of an earlier run with the same labels and inputs
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def complete_bundle(bundle: Bundle, folder: Path) -> Bundle:
    """The bundle of the server with the personal layers that a site has saved in a folder."""
    federation = bundle.provenance.get("federation", {})
    missing = bundle.missing_layers
    if not missing:
        raise ConfigError("the bundle must have personal layers that are missing (federation.personal); got none")
    arrays = load_personal(folder, setup := federation["personal"]["setup"])
    if set(arrays) != set(missing):
        raise DataError(f"{_path(folder, setup)} must have the personal layers of the bundle; got {len(arrays)}")
    net = getattr(bundle.model, "net", None)
    assert isinstance(net, nn.Module)
    state = net.state_dict() | {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise BundleError(f"{_path(folder, setup)} has layers of other sizes than the bundle") from error
    if isinstance(bundle.model, NeuralModel):
        bundle.model.weights_changed()
    federation = federation | {"personal": {"missing": [], "setup": setup}}
    return replace(bundle, provenance=bundle.provenance | {"federation": federation})
