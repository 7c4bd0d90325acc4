"""The run folder of a training, BUNDLE.run, with checkpoints and curves until the bundle is written.

Curves go to curves.csv and, if that is installed, to TensorBoard; `ProgressDisplay` writes to standard error.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from nosology.core import ConfigError, DataError, OutputError, __version__
from nosology.core.files import atomic_file, exclusive_output, output_errors, text_sha256
from nosology.core.progress import LOG_SECONDS, print_progress, time_left
from nosology.training.examples import Examples
from nosology.training.recipe_settings import Recipe

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
CURVES = "curves.csv"
EVENTS = "tensorboard"
_MARK = ".nosology-run"
REFIT = "refit"
VECTORS = "embeddings"
WORD_VECTORS = "word_vectors"  # start of the names of files
STATES = "states"

STAGES = ("language_*", "relevance.*", "ranker_*", "classifier_*", "net_*", "part_*")  # folders and files of stages

_NOT_IN_FINGERPRINT = {"training", "decision", "two_stage", "federation", "states"}  # the trainer adds "training"


def process_counts() -> tuple[int, int]:
    """The number of processes per machine and of machines: 1 and 1 unless torchrun has started this process.

    RANK or LOCAL_WORLD_SIZE alone do not count: schedulers and notebooks leave them in the environment.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # as torch.distributed and Fabric recognise torchrun
        return 1, 1
    return _environment_number("LOCAL_WORLD_SIZE", 1), _environment_number("GROUP_WORLD_SIZE", 1)


def is_first_process() -> bool:
    """Whether this process writes the outputs: the only one, or the one with rank 0 under torchrun."""
    return process_counts() == (1, 1) or _environment_number("RANK", 0) == 0


def _environment_number(name: str, default: int) -> int:
    value = os.environ.get(name) or str(default)
    if not value.isdecimal():
        raise ConfigError(f"${name} must be a number, as torchrun sets it; got {value!r}")
    return int(value)


def run_folder(out: str | Path) -> Path:
    """The run folder of a bundle that will be written to `out`."""
    out = Path(out)
    return out.with_name(f"{out.name}.run")


def curve_files(folder: Path) -> dict[str, Path]:
    """The curves in a run folder by their names in the bundle: curves.csv, and curves_STAGE.csv for each stage."""
    stages = [path for stage in STAGES for path in sorted(folder.glob(f"{stage}/{CURVES}"))]
    return {path.name: path for path in folder.glob(CURVES)} | {f"curves_{p.parent.name}.csv": p for p in stages}


@contextmanager
def open_run_folder(out: str | Path, message: str = "") -> Iterator[Path]:
    """The run folder of a bundle, locked while the block runs, and removed if it has no files then.

    A new folder gets a mark: only a folder with the mark is deleted after the run. Of several processes, the first one
    does this. message: of the error if the folder is locked.
    """
    folder = run_folder(out)
    if not is_first_process():
        yield folder
        return
    with exclusive_output(out, message):
        if not folder.exists():
            with output_errors(folder):
                folder.mkdir(parents=True)
                (folder / _MARK).touch()
        try:
            yield folder
        finally:
            if folder.is_dir() and [path.name for path in folder.iterdir()] == [_MARK]:
                shutil.rmtree(folder, ignore_errors=True)


def clear_run_folder(folder: Path, *, marked: bool = False) -> None:
    """Deletes the files of a run, and the folder if it is then empty.

    marked: of a folder that `open_run_folder` did not create, only the files that every training run writes.
    """
    if not folder.is_dir():
        return
    for name in (CHECKPOINT, BEST, CURVES):
        (folder / name).unlink(missing_ok=True)
    for path in (*(folder / EVENTS).glob("events.out.*"), *folder.glob(f"{WORD_VECTORS}*")):
        path.unlink()
    if not marked or (folder / _MARK).exists():
        (folder / _MARK).unlink(missing_ok=True)
        clear_run_folder(folder / REFIT)
        for name in (VECTORS, STATES):
            shutil.rmtree(folder / name, ignore_errors=True)
        for path in [path for stage in STAGES for path in folder.glob(stage)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (folder / EVENTS, folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def fingerprint(recipe: Recipe, *examples: Examples) -> str:
    """Hash of what decides the weights: recipe, corpora, selected notes and package version."""
    settings = recipe.model_dump(mode="json", exclude=_NOT_IN_FINGERPRINT)
    return text_sha256(json.dumps([settings, [part.hash for part in examples], __version__]))


COLUMNS = ("step", "epoch", "loss", "learning_rate", "notes_per_second")  # followed by the metrics on the dev notes


def read_epoch_curves(path: Path, metrics: Sequence[str]) -> dict[str, list[float]]:
    """`train_loss` and those of the metrics that a file of curves has, one number per epoch.

    The loss is the mean over the steps of the epoch; its last step has the metrics.
    """
    curves: dict[str, list[float]] = defaultdict(list)
    losses: dict[int, list[float]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            losses[int(row["epoch"])].append(float(row["loss"]))
            for name in metrics:
                if row.get(name):
                    curves[name].append(float(row[name]))
    return {"train_loss": [fmean(losses[epoch]) for epoch in sorted(losses)]} | curves


class TrainingCurves:
    """curves.csv, one row per step. When a run resumes, the rows after its step are removed."""

    def __init__(self, folder: str | Path, step: int = 0):
        self.path = Path(folder) / CURVES
        self.columns, rows = _read_rows(self.path, step)
        self._rewrite(rows)
        self._board = None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(Path(folder) / EVENTS), purge_step=step + 1)

    def add(self, row: dict[str, Any]) -> None:
        """Adds the row of one step; the last step of an epoch also has the metrics on the dev notes."""
        new = [name for name in row if name not in self.columns]
        if new:  # the first metrics: header and earlier rows get new columns
            self._file.close()
            rows = _read_rows(self.path, row["step"])[1]
            self.columns += new
            self._rewrite([values + [""] * len(new) for values in rows])
        self._writer.writerow([row.get(name, "") for name in self.columns])
        if self._board:
            for name, value in row.items():
                if name not in ("step", "epoch"):
                    self._board.add_scalar(f"{'train' if name in COLUMNS else 'dev'}/{name}", value, row["step"])

    def flush(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from error
        if self._board:
            self._board.flush()

    def close(self) -> None:
        self._file.close()
        if self._board:
            self._board.close()

    def _rewrite(self, rows: list[list[str]]) -> None:
        """Replaces the file and opens it for more rows."""
        with atomic_file(self.path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([self.columns, *rows])
        self._file = self.path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")


def _read_rows(path: Path, step: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows up to a step; a row that a killed run left incomplete is dropped."""
    if not step or not path.exists():
        return list(COLUMNS), []
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except csv.Error as error:
        raise DataError(f"{path} is damaged; delete it to train again") from error
    if tuple(header[: len(COLUMNS)]) != COLUMNS:
        raise DataError(f"{path} must start with the columns {', '.join(COLUMNS)}; delete it to train again")
    complete = [row for row in rows if len(row) == len(header) and re.fullmatch("[0-9]{1,18}", row[0])]
    return header, [row for row in complete if int(row[0]) <= step]


class ProgressDisplay:
    """Epoch, loss, speed and remaining time: a bar on a terminal, elsewhere a line per epoch and every 30 seconds."""

    def __init__(self, title: str, epochs: int, steps: int, first_step: int, *, silent: bool = False):
        self.title, self.epochs, self.steps, self.first_step, self.silent = title, epochs, steps, first_step, silent
        self.started = self._printed = time.monotonic()
        self._bar: Any = None
        if not silent and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
            self._bar = progress.Progress(
                *columns, progress.TextColumn("{task.fields[status]}"), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task(title, total=steps, completed=first_step, status="")
            self._bar.start()

    def update(self, epoch: int, step: int, loss: float, notes_per_second: float) -> None:
        """Moves the bar to a step, or prints a line if the last one is 30 seconds old."""
        status = f"loss {loss:.4g}  {_speed(notes_per_second)}  {self._remaining(step)}"
        if not self._bar and time.monotonic() - self._printed >= LOG_SECONDS:
            self.print_line(f"{self._description(epoch)}, step {step} of {self.steps}  {status}")
        elif self._bar:
            self._bar.update(self._task, completed=step, description=self._description(epoch), status=status)

    def end_epoch(self, epoch: int, step: int, loss: float, metrics: dict[str, float], notes_per_second: float) -> None:
        """Prints the line of an epoch."""
        shown = "".join(f"  {name} {value:.4f}" for name, value in metrics.items())
        speed, remaining = _speed(notes_per_second), self._remaining(step)
        self.print_line(f"{self._description(epoch)}  loss {loss:.4g}{shown}  {speed}  {remaining}")

    def print_line(self, line: str) -> None:
        """Prints one line, above the bar if there is one."""
        self._printed = time.monotonic()
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False)
        elif not self.silent:
            print_progress(line)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()

    def _description(self, epoch: int) -> str:
        return f"{self.title}: epoch {epoch + 1}/{self.epochs}"

    def _remaining(self, step: int) -> str:
        """The remaining time at the speed so far, validation included; early stopping may shorten it."""
        seconds_per_step = (time.monotonic() - self.started) / max(1, step - self.first_step)
        return time_left(seconds_per_step * (self.steps - step))


def _speed(notes_per_second: float) -> str:
    # a large net on a CPU must not show 0
    return f"{notes_per_second:,.0f} notes/s" if notes_per_second >= 10 else f"{notes_per_second:.2g} notes/s"
