"""The curves of a training run: curves.csv with one row a step, and TensorBoard's files where that is installed."""

from __future__ import annotations

import csv
import io
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nosology.core import DataError, OutputError
from nosology.core.files import atomic_file
from nosology.training.run_folder import CURVES, EVENTS

COLUMNS = ("step", "epoch", "loss", "learning_rate", "notes_per_second")  # and then the metrics on dev


class Curves:
    """Rows that are added one by one; those after the step at which a run goes on are cut off first."""

    def __init__(self, folder: str | Path, step: int = 0):
        self.path = Path(folder) / CURVES
        self.columns, rows = _kept(self.path, step)
        self._replace(rows)
        self._board = None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(Path(folder) / EVENTS), purge_step=step + 1)

    def add(self, row: dict[str, Any]) -> None:
        """Adds one step: the columns, and in the last step of an epoch the metrics on dev."""
        new = [name for name in row if name not in self.columns]
        if new:  # the first metrics: the header grows, and the rows so far with it
            self._file.close()
            rows = _kept(self.path, row["step"])[1]
            self.columns += new
            self._replace([kept + [""] * len(new) for kept in rows])
        self._file.write(_line([row.get(name, "") for name in self.columns]))
        if self._board:
            for name, value in row.items():
                if name not in ("step", "epoch"):
                    self._board.add_scalar(f"{'train' if name in COLUMNS else 'dev'}/{name}", value, row["step"])

    def flush(self) -> None:
        """Brings all rows to the disk; a checkpoint must never be ahead of its curves."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from error
        if self._board:
            self._board.flush()

    def close(self) -> None:
        """Ends both files."""
        self._file.close()
        if self._board:
            self._board.close()

    def _replace(self, rows: list[list[str]]) -> None:
        """Writes the file anew with these rows and leaves it open for more."""
        with atomic_file(self.path) as aside:
            aside.write_text("".join(map(_line, [self.columns, *rows])), encoding="utf-8")
        self._file = self.path.open("a", encoding="utf-8", newline="")


def _kept(path: Path, step: int) -> tuple[list[str], list[list[str]]]:
    """The header and the rows up to a step; a row that was cut short by a kill is behind it."""
    if not step or not path.exists():
        return list(COLUMNS), []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    if tuple(header[: len(COLUMNS)]) != COLUMNS:
        raise DataError(f"{path} must begin with the columns of a training; delete it, or train anew")
    whole = [row for row in rows if len(row) == len(header) and row[0].isdecimal()]
    return header, [row for row in whole if int(row[0]) <= step]


def _line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
