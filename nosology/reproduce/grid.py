"""A grid: every embedder with every head, in every setting, on every corpus; each run in a process of its own.

The tables of paper 000 are 6 embedders x 3 heads x (1 central + 1 federated + 10 splits) = 216 runs a corpus, 432 on
its two. The paper says 252 and writes 6 x 3 x 2 + 6 x 3 x 10, which is 216; 252 is what the central and federated runs
of both corpora (72) and the splits of one (180) make.

    FOLDER/runs/<id>.json       the result of a run, whole or absent: a second call runs what is missing
    FOLDER/failed/<id>.json     why a run has none; it is tried again
    FOLDER/logs/<id>.log        what a failed run printed
    FOLDER/corpora/             the corpora with the codes that count, with sites and with each random split
    FOLDER/bundles/             the coders, while they are trained, or for good if they are to be kept
    FOLDER/tables.md, tables.csv, plot.png

An id ends with a hash of what the result follows from: the notes with their splits and sites, the recipe, and the files
of an embedder that is a folder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nosology.core import SPLITS, ConfigError, DataError
from nosology.core.files import json_sha256, text_sha256
from nosology.corpora.corpus import Corpus
from nosology.corpora.splits import site_corpus, split_corpus
from nosology.encoders.embedder_config import EmbedderSettings, folder_fingerprint
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.reproduce.grid_settings import GridSettings

Recipes = Mapping[tuple[str, str], FederatedHeadsRecipe]  # by embedder and head


@dataclass(frozen=True)
class Run:
    """One coder: trained, measured, and written down."""

    corpus: str  # its name in the tables
    embedder: str
    head: str
    setting: str
    split: int | None  # which of the random ones; None: the corpus's own
    notes: Corpus
    recipe: FederatedHeadsRecipe
    extra: tuple = ()  # what else the result follows from

    @cached_property
    def id(self) -> str:
        """The run's name: the same as long as its result would be."""
        recipe = self.recipe.model_dump(mode="json", exclude={"vectors"})
        if self.setting != "federated":
            del recipe["federation"]
        told = json.dumps([self.notes.hash, self.setting, recipe, self.extra], sort_keys=True)
        number = [] if self.split is None else [f"{self.split:02d}"]
        parts = [self.corpus, self.embedder, self.head, self.setting, *number]
        return "-".join([*map(_slug, parts), text_sha256(told)[:8]])

    @property
    def title(self) -> str:
        """The run in words."""
        number = "" if self.split is None else f" {self.split + 1}"
        return f"{self.corpus}, {self.embedder}, {self.head}, {self.setting.removesuffix('s')}{number}"


@dataclass(frozen=True)
class Folder:
    """Where a grid keeps what it makes."""

    path: Path

    def result(self, name: str) -> Path:
        """The file of a run's result."""
        return self.path / "runs" / f"{name}.json"

    def failure(self, name: str) -> Path:
        """The file that says why a run failed."""
        return self.path / "failed" / f"{name}.json"

    def log(self, name: str) -> Path:
        """What a run printed."""
        return self.path / "logs" / f"{name}.log"

    def bundle(self, name: str) -> Path:
        """The folder of a run's coder."""
        return self.path / "bundles" / name

    def found(self, runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
        """The results that are there, by run."""
        return {run.id: found for run in runs if (found := read(self.result(run.id))) is not None}

    def failures(self, runs: Sequence[Run]) -> dict[str, str]:
        """Why runs without a result have none, as far as they were tried."""
        told = {run.id: read(self.failure(run.id)) for run in runs if read(self.result(run.id)) is None}
        return {name: str(one.get("why")) for name, one in told.items() if one}


def read(path: Path) -> dict[str, Any] | None:
    """The JSON of a file, None if there is none; a damaged one is none too."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def prepare(grid: GridSettings, corpora: Sequence[Path], folder: Folder) -> dict[str, tuple[Corpus, list[Corpus]]]:
    """Each corpus by name, with the codes that count and with sites, and its random splits; made once.

    All settings learn the same codes: those of which each site can get some notes.
    """
    opened = [Corpus.open(path) for path in corpora]
    if len({corpus.hash for corpus in opened}) < len(opened):
        raise ConfigError("each corpus must be given once")
    names = [_slug(corpus.folder.resolve().name) for corpus in opened]
    prepared: dict[str, tuple[Corpus, list[Corpus]]] = {}
    for corpus, name in zip(opened, names):
        if names.count(name) > 1:
            name = f"{name}-{corpus.hash[:6]}"
        for split in SPLITS:
            if set(grid.settings) - {"splits"} and split not in corpus.manifest["counts"]["splits"]:
                raise DataError(f"{corpus.folder} has no {split} notes: `nosology corpus split` makes them")
        whole = _with_sites(grid, corpus, folder.path / "corpora", name)
        prepared[name] = whole, _with_splits(grid, whole, folder.path / "corpora", name)
    return prepared


def _with_sites(grid: GridSettings, corpus: Corpus, place: Path, name: str) -> Corpus:
    settings, told = grid.sites, grid.sites.model_dump(exclude={"stacked"})
    out = place / f"{name}-sites-{_digest(corpus.hash, grid.seed, told)}"
    if not out.exists():
        site_corpus(
            corpus.folder,
            out,
            settings.count,
            skew=settings.skew,
            alpha=settings.alpha,
            exponent=settings.exponent,
            seed=grid.seed,
            min_notes=settings.notes,
        )
    return Corpus.open(out)


def _with_splits(grid: GridSettings, corpus: Corpus, place: Path, name: str) -> list[Corpus]:
    if "splits" not in grid.settings:
        return []
    out = place / f"{name}-splits-{_digest(corpus.hash, grid.seed, grid.splits.model_dump())}"
    parts = [out / f"split-{number:02d}" for number in range(grid.splits.count)]
    if not all(part.exists() for part in parts):
        shutil.rmtree(out, ignore_errors=True)
        split_corpus(corpus.folder, out, ratios=grid.splits.ratios, seed=grid.seed, k=grid.splits.count)
    return [Corpus.open(part) for part in parts]


def plan(grid: GridSettings, recipes: Recipes, prepared: Mapping[str, tuple[Corpus, list[Corpus]]]) -> list[Run]:
    """The runs of a grid, in the order in which they are done."""
    runs = []
    short = [Path(embedder).name for embedder in grid.embedders]
    called = {name: Path(name).name if short.count(Path(name).name) == 1 else name for name in grid.embedders}
    settings = {embedder: recipe.embedder for (embedder, _), recipe in recipes.items()}
    files = {embedder: _files(its) for embedder, its in settings.items()}  # read once: they may have many gigabytes
    for corpus, (whole, splits) in prepared.items():
        for (embedder, head), recipe in recipes.items():
            named, extra = (corpus, called[embedder], head), (grid.top, *files[embedder])
            if "central" in grid.settings:
                runs.append(Run(*named, "central", None, whole, recipe, extra))
            if "federated" in grid.settings:
                _check_sites(grid, recipe)
                runs.append(Run(*named, "federated", None, whole, recipe, (*extra, grid.sites.stacked)))
            if "splits" in grid.settings:
                runs += [Run(*named, "splits", i, part, recipe, extra) for i, part in enumerate(splits)]
    return runs


def _files(settings: EmbedderSettings) -> tuple[str, ...]:
    """What tells the files of an embedder that is a folder from those that it held before; nothing of any other."""
    try:
        return tuple(filter(None, [folder_fingerprint(settings)]))
    except Exception:  # files of others can be damaged in any way
        return ()  # its runs will say what is wrong with it


def _check_sites(grid: GridSettings, recipe: FederatedHeadsRecipe) -> None:
    wanted = recipe.federation.min_sites
    if wanted > grid.sites.count:  # the federation would wait for them
        raise ConfigError(f"recipe.federation.min_sites must be at most sites.count, {grid.sites.count}; got {wanted}")


def _digest(*parts: Any) -> str:
    return json_sha256(parts)[:8]


def _slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "_", name).strip("._") or "x"
