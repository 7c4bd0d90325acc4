"""Cache of the results of training stages: tensors in a folder, each with the fingerprint of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nosology.core import ConfigError, DataError
from nosology.core.files import json_sha256, sha256
from nosology.training.checkpoint import read_tensors, write_tensors
from nosology.training.run_folder import BEST, CHECKPOINT


@dataclass(frozen=True)
class StageCache:
    """Results of the stages of one training set. The run folder of stage NAME is folder/NAME."""

    folder: Path
    fingerprint: str  # of what all stages depend on

    def get_or_compute(self, name: str, inputs: list, compute: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors of a stage: read if they were computed from the same inputs, else computed and written.

        inputs: JSON values on which the tensors depend, besides the common fingerprint. compute: gets the fingerprint
        of the stage.
        """
        path = self.folder / f"{name}.safetensors"
        fingerprint = json_sha256([self.fingerprint, inputs])
        if (cached := _read_cached(path, fingerprint)) is not None:
            return cached
        tensors = compute(fingerprint)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, fingerprint)
        for checkpoint in (CHECKPOINT, BEST):  # of the stage: three times as large, and no longer needed
            (self.folder / name / checkpoint).unlink(missing_ok=True)
        return tensors


def file_hash(path: str) -> str:
    """The SHA-256 of a file; an empty string for an empty path."""
    if not path:
        return ""
    try:
        return sha256(Path(path))
    except OSError as error:
        raise ConfigError(f"{path} must be a readable file: {error.strerror or error}") from error


def _read_cached(path: Path, fingerprint: str) -> dict[str, Tensor] | None:
    """The tensors of a file; None if it does not exist, has another fingerprint or is not readable."""
    try:
        metadata, tensors = read_tensors(path, fingerprint)
    except DataError:
        return None
    return None if metadata is None else tensors
