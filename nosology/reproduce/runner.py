"""Runs of a study, each in its own process.

    OUT/runs/<key>.json      the result of a run, written atomically: a second call runs only what is missing
    OUT/runs/<key>[.<name>].safetensors    its predictions (predictions.py)
    OUT/failed/<key>.json    why a run failed; the next call tries it again
    OUT/logs/<key>.log       the output of a failed run
    OUT/work/<key>/          checkpoints and bundle of a run; deleted when it ends, unless `keep_bundles`

A key ends with a hash of corpora, recipe and options. run_process.py has the processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from nosology.config import load_recipe
from nosology.core import SPLITS, SYSTEMS, Code, ConfigError, DataError, Note
from nosology.core.files import json_sha256, write_json
from nosology.core.parallel import cores
from nosology.core.settings import Settings
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.corpora.splits import split_corpus
from nosology.models.registry import REGISTRY
from nosology.reproduce.run_process import COMMAND, RunServer, Task
from nosology.training.recipe_settings import Recipe

_POLL = 0.05  # seconds

Results = Mapping[str, dict[str, Any]]  # by the key of the run


class StudySettings(Settings):
    """Settings that the studies of all papers share."""

    seeds: int = Field(5, ge=1)  # runs per row, each with the next seed
    patients: int = Field(100, ge=1)  # of the simulated hospital
    rows: int | None = Field(None, ge=1)  # of each table that are run, the first ones; None: all
    recipe: dict[str, dict[str, Any]] = Field(default_factory=dict)  # kind of model -> changes to its recipes

    @field_validator("recipe")
    @classmethod
    def _has_kinds(cls, changes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if unknown := ", ".join(sorted(changes.keys() - REGISTRY.keys())):
            raise ValueError(f"must name kinds of models: {', '.join(REGISTRY)}; got {unknown}")
        return changes

    @model_validator(mode="after")
    def _have_valid_recipes(self) -> Self:
        """Loads each recipe, so that a wrong one is refused before anything runs, also if no wanted table uses it."""
        for setting, (name, kind) in self.recipes().items():
            if (loaded := self.load(name).kind) != (kind or loaded):
                raise ConfigError(f"{setting} must be a recipe of kind {kind}; got {name!r}, of kind {loaded}")
        return self

    def recipes(self) -> dict[str, tuple[str, str]]:
        """The recipes of a study: setting -> the name of its recipe and the kind that it must have; empty: any."""
        return {}

    def run_settings(self, tables: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """The recipe and the settings of runs of these tables: what a user must not set."""
        yield from ()

    def check_tables(self, tables: Collection[str]) -> None:
        """Raises ConfigError if a change to a recipe is a setting of one of these tables."""
        for name, settings in self.run_settings(tables):
            self.load(name, *settings)

    def load(self, name: str, *settings: str) -> Recipe:
        """The recipe of a name with this study's changes and then the settings of a run."""
        kind = load_recipe(name).kind
        changes = dict(flatten(self.recipe.get(kind, {})))
        for key in changes.keys() & {item.partition("=")[0] for item in settings}:
            raise ConfigError(f"recipe.{kind}.{key} must not be set: the table sets it")
        return load_recipe(name, [*(f"{key}={json.dumps(value)}" for key, value in changes.items()), *settings])


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`section.key` and value of each value of nested tables; an empty table is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@dataclass(frozen=True)
class Run:
    """One experiment: a function of a recipe, corpora and options that returns metrics."""

    names: tuple[str, ...]  # for titles and the key, such as corpus, model and setting
    function: str  # "module:function": takes a Task, returns a JSON object with "metrics"
    recipe: Recipe
    corpora: tuple[Corpus, ...]
    repeat: int = 0  # number of the seed or of the split
    options: Mapping[str, Any] = field(default_factory=dict)  # JSON, part of the key
    cache_group: str = ""  # the first run of a group fills a cache, so the others wait for it

    @cached_property
    def key(self) -> str:
        """The name of the run's files; it changes with all that the result depends on."""
        inputs = [self.function, self.recipe.model_dump(mode="json"), [corpus.hash for corpus in self.corpora]]
        return "-".join([*map(slug, self.names), f"{self.repeat:02d}", digest(*inputs, dict(self.options))])

    @property
    def title(self) -> str:
        """The run in a line of progress."""
        return f"{', '.join(self.names)}, run {self.repeat + 1}"


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._]+", "_", name).strip("._") or "x"


def digest(*parts: Any) -> str:
    """A short hash of JSON values."""
    return json_sha256(parts)[:8]


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Runner:
    """Executes runs as processes. If a run crashes or is killed, its reason is saved and the others continue."""

    out: Path
    cache: Path
    jobs: int = 1
    keep_bundles: bool = False
    command: Sequence[str] = COMMAND

    def results(self, runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
        """The results that exist, by key; the files of predictions with their paths."""
        results = {
            run.key: value for run in runs if (value := read_json_or_none(self._path("runs", run.key))) is not None
        }
        for result in results.values():
            for entry in result.get("predictions", {}).values():
                entry["file"] = str(self.out / "runs" / entry["file"])
        return results

    def failures(self, runs: Iterable[Run]) -> dict[str, str]:
        """The reasons why runs without a result failed, by key."""
        reasons = {run.key: read_json_or_none(self._path("failed", run.key)) for run in runs}
        done = self.results(runs)
        return {key: str(reason.get("why")) for key, reason in reasons.items() if reason and key not in done}

    def work(self, runs: Sequence[Run], report: Callable[[str], None] = lambda line: None) -> dict[str, str]:
        """The `failures` after all runs that have no result yet were executed."""
        results = self.results(runs)
        for key in results:  # of a run that ended after its study was killed
            self._clear(key)
        waiting = [run for run in runs if run.key not in results]
        report(f"{len(runs)} runs: {len(results)} are done, {len(waiting)} to do")
        seconds = [result.get("seconds", 0.0) for result in results.values()]
        for number, run in enumerate(self._processes(waiting), 1):
            if result := self.results([run]).get(run.key):
                seconds.append(result["seconds"])
                f1 = result["metrics"].get("micro_f1")  # a run that counts notes has none
                outcome = f"{'' if f1 is None else f'micro F1 {f1:.4f}, '}{seconds[-1]:.0f} s"
            else:
                outcome = f"failed: {self.failures([run]).get(run.key)}"
            left = (len(waiting) - number) * fmean(seconds) / self.jobs if seconds else 0
            rest = f"; about {left / 60:.0f} min left" if left > 90 else f"; about {left:.0f} s left" if left else ""
            report(f"[{number}/{len(waiting)}] {run.title}: {outcome}{rest}")
        return self.failures(runs)

    def _processes(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Each run when its process has ended."""
        waiting, running, idle = list(runs), dict[str, tuple[Run, RunServer]](), list[RunServer]()
        filled = {""}  # cache groups whose first run has ended
        try:
            while waiting or running:
                busy = {run.cache_group for run, _ in running.values()} - filled
                ready = [run for run in waiting if run.cache_group not in busy]
                if ready and len(running) < self.jobs:
                    waiting.remove(ready[0])
                    running[ready[0].key] = ready[0], self._start(ready[0], idle)
                    continue
                codes = {key: server.exit_code() for key, (_, server) in running.items()}
                ended = {key: code for key, code in codes.items() if code is not None}
                for key, code in ended.items():
                    run, server = running.pop(key)
                    idle.append(server)
                    self._end(key, code)
                    filled.add(run.cache_group)
                    yield run
                if not ended:
                    time.sleep(_POLL)
        finally:
            for server in (*idle, *(server for _, server in running.values())):
                server.end()

    def _start(self, run: Run, idle: list[RunServer]) -> RunServer:
        """The server that executes a run: an idle one, else a new one."""
        log, result, failure = (self._path(kind, run.key) for kind in ("logs", "runs", "failed"))
        log.parent.mkdir(parents=True, exist_ok=True)
        for stale in (result, failure, *self._predictions(run.key)):
            stale.unlink(missing_ok=True)
        recipe, corpora = run.recipe.model_dump(mode="json"), [str(corpus.folder.resolve()) for corpus in run.corpora]
        paths = [str(path.resolve()) for path in (self.out / "work" / run.key, self.cache, result, failure, log)]
        task = Task(run.function, recipe, corpora, dict(run.options), *paths, keep_bundles=self.keep_bundles)
        threads = str(max(1, cores() // self.jobs))  # more threads than cores slow each other down
        environment = {"OMP_NUM_THREADS": threads} | os.environ
        log.write_bytes(b"")
        while idle and not idle[-1].is_alive():
            idle.pop().end()
        server = idle.pop() if idle else RunServer(self.command, environment, log)
        server.start(task)
        return server

    def _end(self, key: str, code: int) -> None:
        if read_json_or_none(self._path("runs", key)) is not None:
            self._clear(key)
            return
        for path in self._predictions(key):
            path.unlink()
        if read_json_or_none(self._path("failed", key)) is None:
            why = f"it ended with code {code} and no result"
            if code < 0:
                name = signal.Signals(-code).name
                why = "it was killed: did memory run out?" if name == "SIGKILL" else f"it was ended by {name}"
            write_json(self._path("failed", key), {"why": why})

    def _clear(self, key: str) -> None:
        for kind in ("failed", "logs"):
            self._path(kind, key).unlink(missing_ok=True)

    def _predictions(self, key: str) -> list[Path]:
        return list((self.out / "runs").glob(f"{key}.*safetensors"))  # a key has no special character of patterns

    def _path(self, kind: str, key: str) -> Path:
        return self.out / kind / f"{key}.{'log' if kind == 'logs' else 'json'}"


@contextmanager
def enough_patients(patients: int) -> Iterator[None]:
    """A context in which a corpus that is too small is an error that names the setting `patients`."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise DataError(f"the simulated hospital is too small: patients must be more than {patients}") from error


def simulated_corpus(
    folder: Path, patients: int, *, seed: int, years: tuple[int, int], systems: Collection[str] = SYSTEMS
) -> Corpus:
    """The coded discharge notes of a simulated hospital, split by patient; written once."""
    out, whole = folder.with_name(f"{folder.name}-{patients}"), folder.with_name(f"{folder.name}-{patients}-whole")
    if not out.exists():
        notes = (
            replace(note, codes=tuple(code for code in note.codes if code.system in systems), evidence=())
            for note in simulate_notes(patients, seed, years=years)
        )
        source = {"kind": "simulated", "patients": patients, "seed": seed, "years": list(years)}
        with enough_patients(patients):
            write_corpus((note for note in notes if note.codes), whole, source=source, filters=[], counts={})
            split_corpus(whole, out, ratios=(0.7, 0.1, 0.2))
    return Corpus.open(out)


def part_of(corpus: Corpus, out: Path, chosen: Callable[[Note], bool]) -> Corpus:
    """The chosen notes of a corpus, written once; `out` gets a hash of the corpus in its name."""
    out = out.with_name(f"{out.name}-{digest(corpus.hash)}")
    if not out.exists():
        notes = (note for note in corpus.notes() if chosen(note))
        write_corpus(notes, out, source=corpus.manifest["source"], filters=corpus.manifest["filters"], counts={})
    return Corpus.open(out)


def part_with_codes(corpus: Corpus, codes: Collection[Code], out: Path) -> Corpus:
    """The notes that have one of these codes, without their other codes; written once."""
    out = out.with_name(f"{out.name}-{digest(corpus.hash, sorted(map(list, codes)))}")
    if not out.exists():
        chosen = ((note, tuple(code for code in note.codes if code in codes)) for note in corpus.notes())
        notes = (replace(note, codes=kept, evidence=()) for note, kept in chosen if kept)
        write_corpus(notes, out, source=corpus.manifest["source"], filters=corpus.manifest["filters"], counts={})
    return Corpus.open(out)


def check_splits(corpus: Corpus) -> None:
    """Raises DataError if a corpus has no train, dev or test notes."""
    for split in SPLITS:
        if split not in corpus.manifest["counts"]["splits"]:
            raise DataError(f"{corpus.folder} has no {split} notes: `nosology corpus split` makes them")
