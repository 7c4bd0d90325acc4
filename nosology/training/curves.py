"""Curves of a training: curves.csv in the run folder and, if that is installed, TensorBoard."""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from nosology.core import DataError, OutputError
from nosology.core.files import atomic_file
from nosology.training.run_folder import CURVES, EVENTS

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
    return {"train_loss": [fmean(losses[epoch]) for epoch in sorted(losses)]} | dict(curves)


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
