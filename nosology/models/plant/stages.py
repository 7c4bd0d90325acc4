"""What the stages of a training have made: tensors in a folder, each under a fingerprint of all it was made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nosology.core import ConfigError
from nosology.core.files import atomic_file
from nosology.training.run_folder import BEST, CHECKPOINT


@dataclass(frozen=True)
class Stages:
    """The stages of one training set in a folder; a stage's own loop writes to the folder of its name."""

    folder: Path
    ground: str  # the fingerprint of what all of them stand on

    def kept(self, name: str, made_of: list, make: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors of a stage, read if they were made of the same, else made, given the fingerprint, and written.

        made_of: all that decides the tensors besides the ground, as JSON has it.
        """
        path = self.folder / f"{name}.safetensors"
        told = hashlib.sha256(json.dumps([self.ground, made_of], sort_keys=True).encode()).hexdigest()
        if (found := _read(path, told)) is not None:
            return found
        tensors = make(told)
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as aside:
            aside.write_bytes(save({k: v.contiguous() for k, v in tensors.items()}, metadata={"told": told}))
        for done in (CHECKPOINT, BEST):  # of the loop that has made it: three times as large, and no more needed
            (self.folder / name / done).unlink(missing_ok=True)
        return tensors


def file_hash(path: str) -> str:
    """The SHA-256 of a file's content; nothing for no file."""
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path} must be a file that can be read: {error.strerror or error}") from error


def _read(path: Path, told: str) -> dict[str, Tensor] | None:
    """The tensors of a file, None if there is none of this fingerprint or it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("told") != told:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
