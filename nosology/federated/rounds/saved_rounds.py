"""A federation's rounds on disk, so that a server that was killed goes on where it was.

Two files, each whole or absent: agreement.safetensors, written once, with what was decided before the first round, and
round.safetensors, written after each round. What is not an array is JSON in their headers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from nosology.core import BundleError, ConfigError
from nosology.core.files import atomic_file
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds import folder_lock
from nosology.federated.rounds.agreement import Facts
from nosology.federated.rounds.hospital_site import Arrays
from nosology.models.heads.coded_vectors import new_head
from nosology.models.heads.feature_statistics import Scaler
from nosology.models.heads.heads_net import HeadNet
from nosology.models.heads.vector_loop import working_type

AGREEMENT, ROUND = "agreement.safetensors", "round.safetensors"
HISTORY, PLOT = "history.csv", "history.png"  # written at the end, on their way into the bundle


@dataclass(frozen=True, eq=False)
class Agreement:
    """What was decided before the first round."""

    recipe: FederatedHeadsRecipe
    labels: LabelSpace
    scaler: Scaler
    facts: dict[str, Facts]  # of the sites that it was decided with
    notes: str = ""  # which notes are at which site, as a hash; empty where the server does not know

    @property
    def hash(self) -> str:
        """A hash of what the sites were told."""
        told = (self.labels.hash.encode(), self.scaler.mean.tobytes(), self.scaler.scale.tobytes())
        return hashlib.sha256(b"".join(told)).hexdigest()[:16]

    def head(self) -> HeadNet:
        """A head with the weights before the first round."""
        return new_head(self.recipe.model, len(self.scaler.mean), len(self.labels), self.recipe.seed)

    def first_weights(self) -> Arrays:
        """Its weights, of the type that is computed with."""
        kind = working_type(self.recipe.training)
        return {name: tensor.to(kind).numpy() for name, tensor in self.head().state_dict().items()}

    def save(self, folder: Path) -> None:
        """Writes it."""
        described = {
            "recipe": self.recipe.model_dump(mode="json"),
            "labels": self.labels.to_json(),
            "facts": {site: told.to_json() for site, told in self.facts.items()},
            "notes": self.notes,
        }
        _write(folder / AGREEMENT, {"mean": self.scaler.mean, "scale": self.scaler.scale}, described)

    @classmethod
    def of_run(cls, folder: Path, recipe: FederatedHeadsRecipe, notes: str) -> Agreement | None:
        """The agreement of a run that is to go on, None if no round was saved; ConfigError if that is another run."""
        found = cls.load(folder)
        if found is None or SavedRound.load(folder, found.hash) is None:
            return None
        for same, what in ((found.recipe == recipe, "of another recipe"), (found.notes == notes, "with other notes")):
            if not same:
                raise ConfigError(f"{folder} holds a run {what}: finish that one or delete the folder")
        return found

    @classmethod
    def load(cls, folder: Path) -> Agreement | None:
        """The agreement in a folder, None if there is none."""
        if (read := _read(folder / AGREEMENT)) is None:
            return None
        arrays, described = read
        return cls(
            FederatedHeadsRecipe.model_validate(described["recipe"]),
            LabelSpace(described["labels"]),
            Scaler(arrays["mean"], arrays["scale"]),
            {site: Facts.from_json(told) for site, told in described["facts"].items()},
            described.get("notes", ""),
        )


@dataclass(frozen=True, eq=False)
class SavedRound:
    """A federation after a round."""

    agreed: str  # the agreement's hash
    number: int  # rounds done
    weights: Arrays
    moments: Arrays = field(default_factory=dict)  # the server's
    history: list[dict[str, Any]] = field(default_factory=list)  # a row a round
    refused: dict[str, str] = field(default_factory=dict)  # sites that were last refused, and why
    privacy: dict[str, Any] = field(default_factory=dict)  # the state of the accountants

    def save(self, folder: Path) -> None:
        """Writes it over the round before."""
        arrays = {f"weights/{name}": array for name, array in self.weights.items()}
        arrays |= {f"moments/{name}": array for name, array in self.moments.items()}
        rest = ("agreed", "number", "history", "refused", "privacy")
        _write(folder / ROUND, arrays, {name: getattr(self, name) for name in rest})

    @classmethod
    def load(cls, folder: Path, agreed: str) -> SavedRound | None:
        """The last round of an agreement in a folder, None if there is none."""
        if (read := _read(folder / ROUND)) is None:
            return None
        arrays, described = read
        if described["agreed"] != agreed:
            return None
        parts: dict[str, Arrays] = {"weights": {}, "moments": {}}
        for name, array in arrays.items():
            part, _, own = name.partition("/")
            parts[part][own] = array
        order = described.pop("order")
        return cls(weights={name: parts["weights"][name] for name in order}, moments=parts["moments"], **described)


def clear(folder: Path) -> None:
    """Removes what a federation has written, and the folder if nothing else is in it."""
    for name in (ROUND, AGREEMENT, HISTORY, PLOT):
        (folder / name).unlink(missing_ok=True)
    _remove_empty(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder of a federation for the time that it runs; an empty one is gone then."""
    with folder_lock.locked(folder, "federation"):
        try:
            yield
        finally:
            (folder / folder_lock.LOCK).unlink(missing_ok=True)
            _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _write(path: Path, arrays: Mapping[str, np.ndarray], described: dict[str, Any]) -> None:
    order = [name.partition("/")[2] for name in arrays if name.startswith("weights/")]
    header = {"state": json.dumps(described | ({"order": order} if order else {}), allow_nan=False)}
    packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata=header)
    with atomic_file(path) as aside:
        aside.write_bytes(packed)


def _read(path: Path) -> tuple[Arrays, dict[str, Any]] | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            described = json.loads(file.metadata()["state"])
            return {name: file.get_tensor(name) for name in file.keys()}, described  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} is damaged: delete {path.parent} to begin anew") from error
