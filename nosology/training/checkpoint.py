"""Checkpoints of a training run: one safetensors file, written atomically, and one with the best weights."""

from __future__ import annotations

import hashlib
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
from nosology.core.files import atomic_file, check_depth
from nosology.training.run_folder import BEST, CHECKPOINT

_METADATA = "nosology"  # the only metadata key: the order of several keys, and so the bytes of the file, would vary


@dataclass(frozen=True)
class TrainingState:
    """Position of a run. curves.csv has one row per step, so `step` is also the position in it."""

    epoch: int = 0  # the current one, counted from 0
    epoch_steps: int = 0  # taken in this epoch
    step: int = 0  # steps taken in all
    best_score: float | None = None  # on the dev notes
    epochs_without_improvement: int = 0


class Checkpoints:
    """The checkpoint and the best weights of one run, in a folder.

    A checkpoint with another fingerprint is of another recipe, corpus or version. It is ignored, and the run starts
    from the beginning: if you change a recipe and train again, you want the new recipe.
    """

    def __init__(self, folder: str | Path, fingerprint: str):
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.path, self.best = self.folder / CHECKPOINT, self.folder / BEST

    def prepare(self) -> None:
        """Creates the folder and deletes temporary files of a killed run."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (CHECKPOINT, BEST):
                for temporary in self.folder.glob(f".{name}.*.partial"):
                    temporary.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {self.folder}: {error.strerror or error}") from error

    def save(self, net: nn.Module, optimizer: torch.optim.Optimizer, state: TrainingState) -> None:
        """Writes weights, optimizer state and position."""
        tensors = {f"net.{name}": value for name, value in named_tensors(net).items()}
        tensors |= {f"optimizer.{key}.{name}": value for name, key, value in optimizer_tensors(net, optimizer)}
        write_tensors(self.path, tensors, self.fingerprint, state=asdict(state))

    def load(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState | None:
        """The position of the checkpoint, after net and optimizer are restored; None if this run has none."""
        if not self.path.exists():
            return None
        metadata, tensors = read_tensors(self.path, self.fingerprint)
        if metadata is None:
            return None
        _copy_tensors(net, _with_prefix(tensors, "net."), self.path)
        load_optimizer_tensors(net, optimizer, _with_prefix(tensors, "optimizer."))
        return TrainingState(**metadata["state"])

    def save_best(self, net: nn.Module, summary: dict[str, Any]) -> None:
        """Writes the weights and their summary, e.g. epoch and metrics."""
        write_tensors(self.best, named_tensors(net), self.fingerprint, summary=summary)

    def load_best(self, net: nn.Module) -> dict[str, Any]:
        """The summary of the best weights, after they are loaded."""
        metadata, tensors = read_tensors(self.best, self.fingerprint)
        if metadata is None:
            raise DataError(f"{self.best} is of another training run; delete {self.folder} to train again")
        _copy_tensors(net, tensors, self.best)
        return metadata["summary"]


def named_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers of a net by name; shared tensors once."""
    persistent = net.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in net.named_buffers() if name in persistent)
    return dict(net.named_parameters()) | dict(buffers)


def optimizer_tensors(net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, Tensor]]:
    """The optimizer state as (parameter name, key, tensor)."""
    for name, parameter in net.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield name, key, value


def load_optimizer_tensors(net: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restores the optimizer state from tensors named "KEY.PARAMETER"; the optimizer moves them to its device."""
    names = {parameter: name for name, parameter in net.named_parameters()}
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    index = {names[parameter]: i for i, parameter in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        key, parameter_name = name.split(".", 1)
        state.setdefault(index[parameter_name], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _copy_tensors(net: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copies tensors of a file into the net."""
    targets = named_tensors(net)
    if targets.keys() != tensors.keys() or any(targets[name].shape != value.shape for name, value in tensors.items()):
        raise DataError(f"{path} is of another net; delete it to train again")
    with torch.no_grad():
        for name, value in tensors.items():
            targets[name].copy_(value)


def write_tensors(path: Path, tensors: dict[str, Tensor], fingerprint: str, **metadata: Any) -> None:
    """Writes tensors with their fingerprint and JSON metadata to a safetensors file."""
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    described = {"fingerprint": fingerprint} | metadata
    described["sha256"] = _digest(on_cpu, described)
    content = save(on_cpu, metadata={_METADATA: json.dumps(described)})
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)  # save_file would not raise OSError when the disk is full


def read_tensors(path: Path, fingerprint: str) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """Metadata and tensors of a file; None and nothing if it has another fingerprint."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = json.loads((file.metadata() or {}).get(_METADATA, "{}"))
            check_depth(metadata)
            if metadata.get("fingerprint") != fingerprint:
                return None, {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, ValueError, AttributeError, RecursionError, SafetensorError) as error:
        raise DataError(f"cannot read the checkpoint {path} ({error}); delete it to train again") from error
    if metadata.pop("sha256", None) != _digest(tensors, metadata):
        raise DataError(f"the checkpoint {path} is damaged; delete it to train again")
    return metadata, tensors


def _digest(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> str:
    """The SHA-256 of metadata, names, types, shapes and values."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():  # an empty tensor has no bytes to view
            digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
