"""A trained coder as a folder: weights as safetensors, the rest JSON, nothing that can run code when loaded.

bundle.json names the kind, the decision, the recipe, what made it, and a checksum of every other file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nosology.core import SYSTEMS, BundleError, ConfigError, __version__
from nosology.core.files import atomic_folder, sha256, write_json
from nosology.core.model import Model
from nosology.evaluation.decision import Decision
from nosology.models.registry import REGISTRY, load_class

MANIFEST = "bundle.json"
DAY_ONE = "day-one"  # the name of the coder that needs no training and no folder
FORMAT = 1
_FIELDS = {"kind": str, "files": dict, "decision": dict, "recipe": dict, "provenance": dict, "labels_hash": str}


@dataclass(frozen=True)
class Bundle:
    """A model with its decision, its recipe and its provenance."""

    model: Model
    decision: Decision
    recipe: dict[str, Any]
    provenance: dict[str, Any]

    def with_threshold(self, threshold: float | None) -> Bundle:
        """This bundle with one threshold for every code; unchanged where None is given."""
        return self if threshold is None else replace(self, decision=Decision(threshold))

    def save(self, folder: str | Path, also: Mapping[str, Path] | None = None) -> None:
        """Writes the bundle, whole or not at all; also: files to keep beside the model, by the names they get."""
        with atomic_folder(folder, marker=MANIFEST) as aside:
            self.model.save(aside)
            for name, path in (also or {}).items():
                shutil.copy(path, aside / name)
            manifest = {
                "format": FORMAT,
                "package": f"nosology {__version__}",
                "kind": self.model.kind,
                "n_codes": len(self.model.labels),
                "labels_hash": self.model.labels.hash,
                "decision": self.decision.to_json(),
                "recipe": self.recipe,
                "provenance": self.provenance,
                "files": {path.name: sha256(path) for path in sorted(aside.iterdir())},
            }
            write_json(aside / MANIFEST, manifest)

    @classmethod
    def load(cls, folder: str | Path) -> Bundle:
        """The bundle in a folder, or the untrained one; BundleError if anything is missing, changed or unknown."""
        if is_day_one(folder):
            from nosology.models.lexicon.day_one import day_one

            return day_one()
        folder = Path(folder)
        manifest = read_manifest(folder)
        kind = manifest["kind"]
        if kind not in REGISTRY:
            raise BundleError(f"{folder / MANIFEST}: kind must be one of {', '.join(REGISTRY)}; got {kind!r}")
        for name, digest in manifest["files"].items():
            if Path(name).name != name or not (folder / name).is_file():
                raise BundleError(f"the bundle {folder} is not whole: {name} is missing")
            if sha256(folder / name) != digest:
                raise BundleError(f"the bundle {folder} is damaged: {name} is not the file that was saved")
        model_class = load_class(kind, "model")
        try:
            model: Model = model_class.load(folder)
            decision = Decision.from_json(manifest["decision"])
        except Exception as error:  # whatever a damaged file makes a loader raise, the user needs one sentence
            raise BundleError(f"the bundle {folder} cannot be read: {type(error).__name__}") from error
        if model.labels.hash != manifest["labels_hash"]:
            raise BundleError(f"the bundle {folder} is damaged: its codes are not those of {MANIFEST}")
        return cls(model, decision, manifest["recipe"], manifest["provenance"])


def is_day_one(name: str | Path) -> bool:
    """Whether a name means the coder that is there without training; a folder of that name goes before it."""
    return str(name) == DAY_ONE and not Path(name).is_dir()


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """bundle.json of a folder, with all that it must hold; BundleError if there is none of a known format."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise BundleError(f"{folder} is no bundle: it holds no {MANIFEST} (make one with `nosology train`)")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BundleError(f"{path} is damaged: it is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{path}: format must be {FORMAT}; this bundle is of another version of nosology or damaged")
    for name, kind in _FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise BundleError(f"{path} is damaged: {name} is missing or no {kind.__name__}")
    return manifest


NEWEST = ("icd10cm", "icd10pcs")  # the code systems of the newest ICD version


def suggested_systems(model: Model, systems: Collection[str] = (), *, given: bool = False) -> set[str]:
    """The systems named; without any, those of the newest version where the model has learned to choose within one.

    given: the user has named the codes themselves, and then means all of them.
    """
    known = set(model.labels.systems)
    if unknown := sorted(set(systems) - set(SYSTEMS)):
        raise ConfigError(f"system must be one of {', '.join(SYSTEMS)}; got {', '.join(unknown)}")
    if systems:
        if not known & set(systems):
            named = ", ".join(sorted(known))
            raise ConfigError(f"system must be one that the coder knows: {named}; got {', '.join(systems)}")
        return set(systems)
    newest = known & set(NEWEST)
    return newest if newest and not given and model.within_versions else known
