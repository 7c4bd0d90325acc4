"""Where a training run stands, on disk: one safetensors file, whole or absent, and the best weights beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nosology.core import DataError, OutputError
from nosology.core.files import atomic_file
from nosology.training.run_folder import BEST, CHECKPOINT

_ABOUT = "nosology"  # the one key of the files' metadata; a second would make their order, and so the bytes, vary


@dataclass(frozen=True)
class State:
    """How far a run has come. Curves are one row a step, so `step` is the position in them too."""

    epoch: int = 0  # under way, counted from 0
    done: int = 0  # steps of it
    step: int = 0  # steps in all
    best: float | None = None  # score on dev
    waited: int = 0  # epochs since the best


class Checkpoints:
    """The checkpoint and the best weights of one run, in a folder.

    A checkpoint with another fingerprint belongs to another recipe, corpus or version. Whoever changes a recipe and
    trains again wants the new one trained, so it is passed over and the run begins anew.
    """

    def __init__(self, folder: str | Path, fingerprint: str):
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.path, self.best = self.folder / CHECKPOINT, self.folder / BEST

    def prepare(self) -> None:
        """Makes the folder and clears away what a killed run was writing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (CHECKPOINT, BEST):
                for litter in self.folder.glob(f".{name}.*.partial"):
                    litter.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {self.folder}: {error.strerror or error}") from error

    def save(self, net: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Writes weights, optimiser moments and state."""
        tensors = {f"net.{name}": value for name, value in weights(net).items()}
        tensors |= {f"optimizer.{key}.{name}": value for name, key, value in moments(net, optimizer)}
        _write(self.path, tensors, {"fingerprint": self.fingerprint, "state": asdict(state)})

    def load(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> State | None:
        """The state of the checkpoint, once weights and moments are put back; None if there is none of this run."""
        if not self.path.exists():
            return None
        about, tensors = _read(self.path, self.fingerprint)
        if about is None:
            return None
        _put(net, {name[4:]: value for name, value in tensors.items() if name.startswith("net.")}, self.path)
        put_moments(net, optimizer, {name[10:]: value for name, value in tensors.items() if name[:10] == "optimizer."})
        return State(**about["state"])

    def save_best(self, net: nn.Module, found: dict[str, Any]) -> None:
        """Writes the weights, and what is said of them."""
        _write(self.best, weights(net), {"fingerprint": self.fingerprint, "found": found})

    def load_best(self, net: nn.Module) -> dict[str, Any]:
        """What was said of the best weights, once they are put back."""
        about, tensors = _read(self.best, self.fingerprint)
        if about is None:
            raise DataError(f"{self.best} is of another training run; delete {self.folder} to train anew")
        _put(net, tensors, self.best)
        return about["found"]


def weights(net: nn.Module) -> dict[str, Tensor]:
    """The parameters and the lasting buffers of a net by name; what is shared, once."""
    lasting = net.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in net.named_buffers() if name in lasting)
    return dict(net.named_parameters()) | dict(buffers)


def moments(net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, Tensor]]:
    """The optimiser's tensors of each parameter: its name, theirs, and the tensor."""
    for name, parameter in net.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield name, key, value


def _put(net: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copies tensors into the net's own."""
    own = weights(net)
    if own.keys() != tensors.keys() or any(own[name].shape != value.shape for name, value in tensors.items()):
        raise DataError(f"{path} holds another net; delete it to train anew")
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)


def put_moments(net: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Gives the optimiser its tensors back; it moves them to where it wants them."""
    names = {parameter: name for name, parameter in net.named_parameters()}
    place = {names[parameter]: i for i, parameter in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        key, parameter = name.split(".", 1)
        state.setdefault(place[parameter], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    packed = save(held, metadata={_ABOUT: json.dumps(about)})
    with atomic_file(path) as aside:
        aside.write_bytes(packed)  # save_file would not say OSError when the disk is full


def _read(path: Path, fingerprint: str) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """What the file says of itself and its tensors; None and nothing if its fingerprint is another."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "{}"))
            if about.get("fingerprint") != fingerprint:
                return None, {}
            names = file.keys()
            return about, {name: file.get_tensor(name) for name in names}
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"cannot read the checkpoint {path} ({error}); delete it to train anew") from error
