"""A bundle: a trained coder as a folder of safetensors and JSON files. Loading it runs no code of the bundle.

bundle.json has the kind, decision, recipe and provenance, a checksum of every other file and one of its own values.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from nosology.core import SYSTEMS, BundleError, ConfigError, __version__
from nosology.core.files import atomic_folder, check_output_folder, json_sha256, read_json, sha256, write_json
from nosology.core.model import Model
from nosology.evaluation.decision import Decision
from nosology.models.registry import REGISTRY, load_class
from nosology.models.weights_check import has_nan

MANIFEST = "bundle.json"
DAY_ONE = "day-one"  # name of the built-in coder; it needs no training and has no folder
FORMAT = 1
_DIGEST = "digest"  # of the other values of the manifest
NEWEST = ("icd10cm", "icd10pcs")  # the code systems of the newest ICD version
_FIELDS = {"kind": str, "files": dict, "decision": dict, "recipe": dict, "provenance": dict, "labels_hash": str}
_PROVENANCE = {"trained_on": str, "corpora": dict}  # lists of these
_KEYS = {*_FIELDS, "format", "package", "n_codes", _DIGEST}


@dataclass(frozen=True)
class Bundle:
    """A model with its decision, its recipe and its provenance."""

    model: Model
    decision: Decision
    recipe: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def missing_layers(self) -> list[str]:
        """The weights that only the sites of a federation have (`federation.personal`); empty if there are none."""
        federation = self.provenance.get("federation") or {}
        return list((federation.get("personal") or {}).get("missing", []))

    def with_threshold(self, threshold: float | None) -> Bundle:
        """This bundle with one threshold for all codes; None: unchanged."""
        return self if threshold is None else replace(self, decision=Decision(threshold))

    def save(self, folder: str | Path, also: Mapping[str, Path] | None = None) -> None:
        """Writes the bundle atomically; also: more files for the folder, by their names in it."""
        with atomic_folder(folder, marker=MANIFEST, files=_files_of_bundle(folder)) as temporary:
            self.model.save(temporary)
            for name, path in (also or {}).items():
                shutil.copy(path, temporary / name)
            manifest = {
                "format": FORMAT,
                "package": f"nosology {__version__}",
                "kind": self.model.kind,
                "n_codes": len(self.model.labels),
                "labels_hash": self.model.labels.hash,
                "decision": self.decision.to_json(),
                "recipe": self.recipe,
                "provenance": self.provenance,
                "files": {path.relative_to(temporary).as_posix(): sha256(path) for path in _files(temporary)},
            }
            write_json(temporary / MANIFEST, manifest)
            # Of the values as they will be read: JSON makes lists of tuples and names of numbers.
            write_json(temporary / MANIFEST, manifest | {_DIGEST: _digest(read_json(temporary / MANIFEST))})

    @classmethod
    def load(cls, folder: str | Path) -> Bundle:
        """The bundle in a folder, or day-one; BundleError if anything is missing, changed or unknown."""
        if is_day_one(folder):
            from nosology.models.lexicon.lexicon_model import day_one

            return day_one()
        folder = Path(folder)
        manifest = read_manifest(folder)
        kind = _kind(manifest)
        if kind not in REGISTRY:
            raise BundleError(f"{folder / MANIFEST}: kind must be one of {', '.join(REGISTRY)}; got {kind!r}")
        for name, digest in manifest["files"].items():
            if not _is_inside(name) or not (folder / name).is_file():
                raise BundleError(f"the bundle {folder} is incomplete: {name} is missing")
            if sha256(folder / name) != digest:
                raise BundleError(f"the bundle {folder} is damaged: {name} is not the file that was saved")
            if name.endswith(".safetensors") and has_nan(folder / name):
                raise BundleError(f"the bundle {folder} is damaged: {name} has weights that are not numbers (NaN)")
        model_class = load_class(kind, "model")
        try:
            model: Model = model_class.load(folder)
            decision, labels_hash = Decision.from_json(manifest["decision"]), model.labels.hash
        except Exception as error:  # a damaged file can make a loader raise nearly anything
            raise BundleError(f"the bundle {folder} cannot be read: {type(error).__name__}") from error
        if labels_hash != manifest["labels_hash"]:
            raise BundleError(f"the bundle {folder} is damaged: its codes are not those of {MANIFEST}")
        # Older bundles have no digest. A changed name of the digest is an unknown key.
        if manifest.get(_DIGEST, _digest(manifest)) != _digest(manifest) or manifest.keys() - _KEYS:
            raise BundleError(f"{folder / MANIFEST} is damaged or was changed: its digest is not that of its content")
        return cls(model, decision, manifest["recipe"], manifest["provenance"])


def _files(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _is_inside(name: str) -> bool:
    """Whether a name of the manifest is a relative path without "..", as `save` writes it."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.as_posix() == name


def _kind(manifest: dict[str, Any]) -> str:
    """The kind of a bundle. In version 0.2 the kind `reports` was `hmhan` with word features."""
    words = manifest["recipe"].get("words")
    has_words = isinstance(words, dict) and bool(words.get("features"))
    return "reports" if manifest["kind"] == "hmhan" and has_words else manifest["kind"]


def _digest(manifest: dict[str, Any]) -> str:
    return json_sha256({name: value for name, value in manifest.items() if name != _DIGEST})


def check_bundle_folder(folder: str | Path) -> None:
    """OutputError if a bundle must not be written to this folder."""
    check_output_folder(folder, marker=MANIFEST, files=_files_of_bundle(folder))


def _files_of_bundle(folder: str | Path) -> list[str]:
    """The files of the bundle in a folder; the usual ones if there is no readable bundle."""
    try:
        return list(read_manifest(folder)["files"])
    except BundleError:
        return ["model.json", "model.safetensors", "curves*.csv", "history.csv", "history.png"]


def is_day_one(name: str | Path) -> bool:
    """Whether a name means the built-in coder; a folder of that name takes precedence."""
    return str(name) == DAY_ONE and not Path(name).is_dir()


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """bundle.json of a folder; BundleError if it is missing, damaged or of another format."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise BundleError(f"{folder} is no bundle: it holds no {MANIFEST} (make one with `nosology train`)")
    try:
        manifest = read_json(path)
    except (ValueError, OSError) as error:
        raise BundleError(f"{path} is damaged: it is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{path}: format must be {FORMAT}; this bundle is of another version of nosology or damaged")
    for name, kind in _FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise BundleError(f"{path} is damaged: {name} is missing or no {kind.__name__}")
    for name, kind in _PROVENANCE.items():
        values = manifest["provenance"].get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise BundleError(f"{path} is damaged: {name} of its provenance is no list of {kind.__name__}")
    return manifest


def suggested_systems(model: Model, systems: Collection[str] = (), *, given: bool = False) -> set[str]:
    """The code systems to suggest: `systems`, or all of the model.

    Without `systems`, a model that was trained within ICD versions suggests the newest version only. given: the user
    has listed the codes, and all of them are meant.
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
