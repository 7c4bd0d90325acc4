"""What server and sites fix before the first round, and the checkpoint after each round.

setup.safetensors is written once, round.safetensors after each round, both atomically. Everything but arrays is JSON in
the header of the file, with a SHA-256 of all. A server that was killed continues after the last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.core import SYSTEMS, BundleError, Code, ConfigError, DataError, __version__
from nosology.core.errors import printable
from nosology.core.files import json_sha256
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederatedRecipe, FederationSettings, read_federated_recipe
from nosology.federated.rounds.learner import FederatedLearner, LabelRows, learner_of
from nosology.federated.rounds.personal_layers import Arrays, mark, marked, personal_names
from nosology.training.checkpoint import read_tensors, write_tensors

PREPROCESSING = "text as given, standardised vectors"  # of heads
COMPATIBILITY = ("package", "embedder", "dim", "preprocessing")  # must be equal at all sites
_MAX_REASON = 2000  # characters of what differs between sites
_MAX_NUMBER = 10**9  # notes of a site, or dimensions
SETUP_FILE, ROUND_FILE = "setup.safetensors", "round.safetensors"
HISTORY, PLOT = "history.csv", "history.png"  # written at the end and moved into the bundle


@dataclass(frozen=True)
class SiteMetadata:
    """What a site reports before the first round."""

    package: str  # version of nosology
    embedder: str  # hash of the identity
    identity: dict[str, Any]  # of the embedder, or of the tokenizer of words
    dim: int  # of the vectors of notes or words
    preprocessing: str
    notes: int  # for training
    codes: dict[Code, int]  # training notes per code, of codes with at least min_site_notes notes

    @property
    def compatibility(self) -> list[str]:
        """The values of `COMPATIBILITY`."""
        return [self.package, self.embedder, str(self.dim), self.preprocessing]

    def to_json(self) -> dict[str, Any]:
        """The metadata as JSON."""
        return asdict(self) | {"codes": [[*code, count] for code, count in sorted(self.codes.items())]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SiteMetadata:
        """The metadata of `to_json`; ValueError, KeyError or TypeError for anything else."""
        codes = {Code(system, code): count for system, code, count in value["codes"]}
        metadata = cls(**(value | {"codes": codes}))
        texts = [
            metadata.package,
            metadata.embedder,
            metadata.preprocessing,
            *(part for code in codes for part in code),
        ]
        valid = all(isinstance(text, str) and text.isprintable() for text in texts)
        numbers = [metadata.dim, metadata.notes, *codes.values()]
        valid = valid and isinstance(metadata.identity, dict) and all(type(number) is int for number in numbers)
        if not valid or min([metadata.dim, *codes.values()]) < 1 or max(numbers) > _MAX_NUMBER:
            raise ValueError("site metadata must be texts, a dict and whole numbers")
        if metadata.embedder != embedder_key(metadata.identity) or metadata.identity.get("dim") != metadata.dim:
            raise ValueError("key and dim must be those of the embedder's identity")
        if max(codes.values(), default=0) > metadata.notes or {code.system for code in codes} - set(SYSTEMS):
            raise ValueError("codes must be of known systems and of no more notes than the site has")
        return metadata


def embedder_key(identity: dict[str, Any]) -> str:
    """The key of an embedder, the same as `Embedder.key`."""
    return json_sha256(identity)


def incompatible_sites(metadata: Mapping[str, SiteMetadata], preprocessing: str = PREPROCESSING) -> dict[str, str]:
    """Why sites cannot take part, by site. preprocessing: of the learner.

    The package must be the server's. The embedder must be that of most sites; in a tie, that of the first site by name.
    """
    in_order = [metadata[site] for site in sorted(metadata)]
    if not in_order:
        return {}
    most_common = Counter(site.embedder for site in in_order).most_common(1)[0][0]  # in a tie: the first one
    reference = next(site for site in in_order if site.embedder == most_common)
    in_order = sorted(metadata.items())
    reasons = {site: _differences(site_metadata, reference, preprocessing) for site, site_metadata in in_order}
    return {site: printable("; ".join(parts))[:_MAX_REASON] for site, parts in reasons.items() if parts}


def _differences(site: SiteMetadata, reference: SiteMetadata, preprocessing: str) -> list[str]:
    """Why a site is incompatible with the reference site."""
    reasons = []
    if site.package != __version__:
        reasons.append(f"package must be nosology {__version__}; got {site.package}")
    if site.embedder != reference.embedder or site.dim != reference.dim:
        parts = [
            f"{name} must be {reference.identity.get(name)!r}; got {site.identity.get(name)!r}"
            for name in sorted(reference.identity.keys() | site.identity.keys())
            if reference.identity.get(name) != site.identity.get(name)
        ]
        what = "tokenizer" if "tokenizer" in reference.identity else "embedder"
        reasons.append(f"{what}: {', '.join(parts or [f'dim must be {reference.dim}; got {site.dim}'])}")
    if site.preprocessing != preprocessing:
        reasons.append(f"preprocessing must be {preprocessing!r}; got {site.preprocessing!r}")
    if site.notes < 1:
        reasons.append("it has no training notes")
    return reasons


def too_few_notes(notes: int, minimum: int) -> str:
    """Why a site with too few train notes is refused."""
    return f"it has {notes} train notes; {minimum} are needed (federation.min_site_notes)"


def shared_labels(metadata: Mapping[str, SiteMetadata], settings: FederationSettings) -> LabelSpace:
    """The codes to train: those with at least `min_notes` notes at the sites that report them."""
    counts: Counter[Code] = Counter()
    for site in metadata.values():
        counts.update(site.codes)
    codes = sorted(code for code, count in counts.items() if count >= settings.min_notes)
    if not codes:
        raise DataError(
            f"no code has {settings.min_notes} notes at the sites that report it (federation.min_notes), or "
            f"{settings.min_site_notes} at a site (federation.min_site_notes): lower them, or add notes"
        )
    return LabelSpace(codes)


def reported_codes(
    notes: Iterable[Iterable[Code]], code_list: frozenset[Code] | None, min_site_notes: int
) -> dict[Code, int]:
    """The number of notes with each code that a site uses and that at least `min_site_notes` of its notes have.

    notes: the codes of each. code_list: the codes that the site uses; None: all.
    """
    counts = Counter(code for note in notes for code in set(note) if code_list is None or code in code_list)
    return {code: count for code, count in counts.items() if count >= min_site_notes}


def setup_hash(labels: LabelSpace, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> str:
    """A hash of labels and shared inputs. Sites compute it too, so a server cannot tell them different ones."""
    in_order = sorted(arrays.items())  # a file does not keep the order of arrays
    described = [[name, str(array.dtype), list(array.shape)] for name, array in in_order]
    header = json.dumps([labels.to_json(), described, values], sort_keys=True)
    return hashlib.sha256(b"".join([header.encode(), *(array.tobytes() for _, array in in_order)])).hexdigest()


@dataclass(frozen=True, eq=False)
class FederationSetup:
    """Recipe, labels and shared inputs of a federation, fixed before the first round."""

    recipe: FederatedRecipe
    labels: LabelSpace
    inputs: Any  # what all sites use to turn notes into inputs of the net: a scaler of vectors, or words
    metadata: dict[str, SiteMetadata]  # of the sites that took part in the setup
    notes: str = ""  # hash of the notes of each site; empty where the server does not know them

    @property
    def hash(self) -> str:
        """A hash of labels, inputs and the personal layers that all sites start with."""
        arrays, values = self.learner.pack_inputs(self.inputs)
        return setup_hash(self.labels, arrays | mark(self.personal), values)

    @property
    def learner(self) -> FederatedLearner:
        """The learner of the recipe."""
        return learner_of(self.recipe)

    @property
    def label_counts(self) -> np.ndarray:
        """The reported train notes of each label (L,)."""
        sites = self.metadata.values()
        return np.array([sum(site.codes.get(code, 0) for site in sites) for code in self.labels.codes], dtype=np.int64)

    def with_learned(self, arrays: Arrays) -> FederationSetup:
        """The setup of the phase after these arrays were learned in pretraining."""
        return replace(self, inputs=self.learner.add_learned(self.inputs, arrays)) if arrays else self

    def initial_weights(self) -> Arrays:
        """The weights before the first round of a phase, without personal layers."""
        weights = self.learner.initial_weights(self)
        return {name: array for name, array in weights.items() if name not in self.personal}

    @cached_property
    def personal(self) -> Arrays:
        """The personal layers before the first round of the net; empty without `federation.personal`."""
        learner = self.learner
        if not (personal := self.recipe.federation.personal) or learner.is_pretraining(self.inputs):
            return {}
        weights = learner.initial_weights(self)
        return {name: weights[name] for name in personal_names(personal, learner.head, weights)}

    def check_personal(self) -> None:
        """Raises ConfigError for personal layers that the net does not have, before anything is trained."""
        if personal := self.recipe.federation.personal:
            personal_names(personal, self.learner.head, self.learner.weight_names(self))

    @property
    def label_rows(self) -> LabelRows:
        """Which shared weights have one row per label."""
        names = self.learner.label_rows(self).names
        return LabelRows(tuple(name for name in names if name not in self.personal), len(self.labels))

    def save(self, folder: Path) -> None:
        """Writes setup.safetensors."""
        arrays, values = self.learner.pack_inputs(self.inputs)
        header = {
            "recipe": self.recipe.model_dump(mode="json"),
            "inputs": values,
            "labels": self.labels.to_json(),
            "metadata": {site: metadata.to_json() for site, metadata in self.metadata.items()},
            "notes": self.notes,
        }
        _write(folder / SETUP_FILE, arrays, header)

    @classmethod
    def resume(cls, folder: Path, recipe: FederatedRecipe, notes: str) -> FederationSetup | None:
        """The setup of a run that can be continued; None if no round was saved; ConfigError if it is another run."""
        saved = cls.load(folder)
        if saved is None or RoundCheckpoint.load(folder, saved.hash) is None:
            return None
        for same, what in ((saved.recipe == recipe, "of another recipe"), (saved.notes == notes, "with other notes")):
            if not same:
                raise ConfigError(f"{folder} holds a run {what}: finish that run or delete the folder")
        return saved

    @classmethod
    def load(cls, folder: Path) -> FederationSetup | None:
        """The setup in a folder; None if there is none."""
        if (content := _read(folder / SETUP_FILE)) is None:
            return None
        arrays, header = content
        with _other_version(folder / SETUP_FILE):
            recipe = read_federated_recipe(header["recipe"])
            return cls(
                recipe,
                LabelSpace(header["labels"]),
                learner_of(recipe).unpack_inputs(arrays, header["inputs"]),
                {site: SiteMetadata.from_json(metadata) for site, metadata in header["metadata"].items()},
                header["notes"],
            )


@dataclass(frozen=True, eq=False)
class RoundCheckpoint:
    """The state of a federation after a round."""

    setup_hash: str  # before any pretraining
    number: int  # of rounds done
    weights: Arrays
    optimizer_state: Arrays = field(default_factory=dict)  # of the server
    history: list[dict[str, Any]] = field(default_factory=list)  # one row per round
    refused: dict[str, str] = field(default_factory=dict)  # sites refused in the last round, and why
    privacy: dict[str, Any] = field(default_factory=dict)  # state of the privacy accountants
    learned: Arrays = field(default_factory=dict)  # in pretraining

    def save(self, folder: Path) -> None:
        """Replaces round.safetensors."""
        arrays = mark(self.weights, "weights/")
        arrays |= mark(self.optimizer_state, "optimizer/") | mark(self.learned, "learned/")
        names = ("setup_hash", "number", "history", "refused", "privacy")
        header = {name: getattr(self, name) for name in names}
        _write(folder / ROUND_FILE, arrays, header | {"order": list(self.weights)})

    @classmethod
    def load(cls, folder: Path, setup_hash: str) -> RoundCheckpoint | None:
        """The last checkpoint of a setup in a folder; None if there is none."""
        content = _read(folder / ROUND_FILE)
        if content is None or content[1].get("setup_hash") != setup_hash:
            return None
        arrays, header = content
        state, learned = (marked(arrays, prefix) for prefix in ("optimizer/", "learned/"))
        with _other_version(folder / ROUND_FILE):
            weights = {name: arrays[f"weights/{name}"] for name in header.pop("order")}  # safetensors sorts by name
            return cls(weights=weights, optimizer_state=state, learned=learned, **header)


def clear(folder: Path) -> None:
    """Removes the files of a federation, and the folder if it is empty then."""
    for name in (ROUND_FILE, SETUP_FILE, HISTORY, PLOT):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _write(path: Path, arrays: Mapping[str, np.ndarray], header: dict[str, Any]) -> None:
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    write_tensors(path, tensors, "", state=json.dumps(header, allow_nan=False))


def _read(path: Path) -> tuple[Arrays, dict[str, Any]] | None:
    if not path.is_file():
        return None
    with _other_version(path):
        metadata, tensors = read_tensors(path, "")
        if metadata is None:
            raise ValueError("another version")
        return {name: tensor.numpy() for name, tensor in tensors.items()}, dict(json.loads(metadata["state"]))


@contextmanager
def _other_version(path: Path) -> Iterator[None]:
    """Raises BundleError if what is in a file cannot be read, or is not what this version writes."""
    try:
        yield
    except (DataError, ConfigError, LookupError, TypeError, ValueError) as error:
        raise BundleError(f"{path} is damaged or of another version: delete {path.parent} to start again") from error
