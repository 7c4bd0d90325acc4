"""Log of a training run: curves.csv, TensorBoard files if that is installed, and progress on standard error."""

from __future__ import annotations

import csv
import io
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nosology.core import DataError, OutputError
from nosology.core.files import atomic_file
from nosology.training.run_folder import CURVES, EVENTS

COLUMNS = ("step", "epoch", "loss", "learning_rate", "notes_per_second")  # followed by the metrics on the dev notes


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
        self._file.write(_csv_line([row.get(name, "") for name in self.columns]))
        if self._board:
            for name, value in row.items():
                if name not in ("step", "epoch"):
                    self._board.add_scalar(f"{'train' if name in COLUMNS else 'dev'}/{name}", value, row["step"])

    def flush(self) -> None:
        """Writes all rows to the disk."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from error
        if self._board:
            self._board.flush()

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        if self._board:
            self._board.close()

    def _rewrite(self, rows: list[list[str]]) -> None:
        """Replaces the file and opens it for more rows."""
        with atomic_file(self.path) as temporary:
            temporary.write_text("".join(map(_csv_line, [self.columns, *rows])), encoding="utf-8")
        self._file = self.path.open("a", encoding="utf-8", newline="")


def _read_rows(path: Path, step: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows up to a step; a row that a killed run left incomplete is dropped."""
    if not step or not path.exists():
        return list(COLUMNS), []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    if tuple(header[: len(COLUMNS)]) != COLUMNS:
        raise DataError(f"{path} must start with the columns {', '.join(COLUMNS)}; delete it to train again")
    complete = [row for row in rows if len(row) == len(header) and row[0].isdecimal()]
    return header, [row for row in complete if int(row[0]) <= step]


def _csv_line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


class ProgressDisplay:
    """Epoch, step, loss, speed and remaining time: a bar on a terminal, elsewhere one line per epoch."""

    def __init__(self, title: str, epochs: int, steps: int, first_step: int, *, silent: bool = False):
        self.title, self.epochs, self.steps, self.first_step, self.silent = title, epochs, steps, first_step, silent
        self.started = time.monotonic()
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
        """Moves the bar to a step."""
        if self._bar:
            status = f"loss {loss:.4g}  {_speed(notes_per_second)}  {self._remaining(step)}"
            self._bar.update(self._task, completed=step, description=self._description(epoch), status=status)

    def end_epoch(self, epoch: int, step: int, loss: float, metrics: dict[str, float], notes_per_second: float) -> None:
        """Prints the line of an epoch."""
        shown = "".join(f"  {name} {value:.4f}" for name, value in metrics.items())
        speed, remaining = _speed(notes_per_second), self._remaining(step)
        self.print_line(f"{self._description(epoch)}  loss {loss:.4g}{shown}  {speed}  {remaining}")

    def print_line(self, line: str) -> None:
        """Prints one line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False)
        elif not self.silent:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar:
            self._bar.stop()

    def _description(self, epoch: int) -> str:
        return f"{self.title}: epoch {epoch + 1}/{self.epochs}"

    def _remaining(self, step: int) -> str:
        """The remaining time at the speed so far, validation included; early stopping may shorten it."""
        seconds_per_step = (time.monotonic() - self.started) / max(1, step - self.first_step)
        return f"{timedelta(seconds=round(seconds_per_step * (self.steps - step)))} left"


def _speed(notes_per_second: float) -> str:
    # a large net on a CPU must not show 0
    return f"{notes_per_second:,.0f} notes/s" if notes_per_second >= 10 else f"{notes_per_second:.2g} notes/s"
