"""A folder of things that are found by a hash and only ever added to: what the caches of vectors and states are.

    FOLDER/<manifest>   what made them
    FOLDER/<data>       the things, one behind another
    FOLDER/index.bin    (N,) records, each beginning with the SHA-256 that a thing is found by
    FOLDER/lock         held by whoever adds; the bytes of data and index that were whole then

A record is written after its thing is on disk, so that what the index names is there. A tail that a killed program left
behind is cut off by the next one that opens the folder; nothing is cut off that was whole once.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nosology.core import DataError, OutputError
from nosology.core.files import write_json

INDEX, LOCK = "index.bin", "lock"


class AppendOnly:
    """Rows by hash; a kind says what its files are called, what a record holds, and where its data ends."""

    manifest: ClassVar[str]
    data: ClassVar[str]
    record: ClassVar[np.dtype]  # with a field hash, V32

    def __init__(self, folder: Path, made_by: dict[str, Any], fixed: Sequence[str]):
        """made_by: what the manifest says. fixed: what of it a folder that is there already must say too."""
        self.folder = folder
        self._rows: dict[bytes, int] = {}
        self._known = 0  # records that are in _rows
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._check(made_by, fixed)
                self._cut_tail()
        except OSError as error:
            raise OutputError(f"cannot use the cache {self.folder}: {error.strerror or error}") from error
        self._look()

    def __len__(self) -> int:
        return self._known

    @property
    def records(self) -> np.ndarray:
        """The index, a view of the file: (N,) of `record`."""
        return self._map(INDEX, self.record, (self._known,))

    def _whole(self) -> tuple[int, int]:
        """How many bytes of the data and how many records belong together; what is behind them is a tail."""
        raise NotImplementedError

    def _add(self, names: Sequence[bytes], made: Callable[[list[int]], tuple[bytes, np.ndarray]]) -> None:
        """Adds those of the names (SHA-256) that are not there; made: data and records (n,) of these, by number."""
        try:
            with self._locked():
                self._cut_tail()  # of one that was killed since the folder was opened
                self._look()
                data, records = made([i for i, name in enumerate(names) if name not in self._rows])
                for place, content in ((self.data, data), (INDEX, records.tobytes())):
                    with (self.folder / place).open("ab") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                self._keep(self._size(self.data), self._size(INDEX))
        except OSError as error:
            raise OutputError(f"cannot write {self.folder}: {error.strerror or error}") from error
        self._look()

    def _look(self) -> None:
        """Takes note of the records that were added since."""
        whole = self._size(INDEX) // self.record.itemsize
        if whole > self._known:
            fresh = self._map(INDEX, self.record, (whole,))[self._known :]["hash"].tobytes()
            for i in range(whole - self._known):
                self._rows.setdefault(fresh[32 * i : 32 * i + 32], self._known + i)
            self._known = whole

    def _cut_tail(self) -> None:
        """Cuts off what a killed program left half-written; DataError if more than that would go."""
        places = (self.data, INDEX)
        missing = [place for place in places if not (self.folder / place).exists()]
        if missing and any(map(self._size, places)):  # both are there before either is written to
            raise DataError(f"{self.folder} is damaged: its {missing[0]} is gone; bring that back or remove the folder")
        for place in places:
            (self.folder / place).touch()
        end, records = self._whole()
        sizes = end, records * self.record.itemsize
        if any(size < kept for size, kept in zip(sizes, self._kept())):
            raise DataError(f"{self.folder} is damaged: {self.data} or {INDEX} has lost its end; remove the folder")
        for place, size in zip(places, sizes):
            if self._size(place) != size:
                os.truncate(self.folder / place, size)
        self._keep(*sizes)

    def _keep(self, *sizes: int) -> None:
        """Writes down what is whole now."""
        (self.folder / LOCK).write_text("{} {}".format(*sizes))

    def _kept(self) -> list[int]:
        """What was whole when it was last written down; a folder or a half-written line that does not say: nothing."""
        told = (self.folder / LOCK).read_text().split()
        return [int(size) for size in told] if len(told) == 2 and all(map(str.isdecimal, told)) else [0, 0]

    def _check(self, made_by: dict[str, Any], fixed: Sequence[str]) -> None:
        path = self.folder / self.manifest
        if not path.exists():
            write_json(path, made_by)
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            given = {name: found[name] for name in fixed}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged or of another program") from error
        if given != (wanted := {name: made_by[name] for name in fixed}):
            told = (", ".join(f"{name} {value}" for name, value in said.items()) for said in (wanted, given))
            raise DataError(f"{path} must say {'; got '.join(told)}")

    def _size(self, place: str) -> int:
        path = self.folder / place
        return path.stat().st_size if path.exists() else 0

    def _map(self, place: str, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        if not shape[0]:
            return np.zeros(shape, dtype=kind)  # an empty file cannot be mapped
        return np.memmap(self.folder / place, dtype=kind, mode="r", shape=shape)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / LOCK).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
