"""An append-only folder of records with a hash as key: the base of the caches of embeddings and encoder states.

    FOLDER/<manifest>   what produced the data
    FOLDER/<data>       the payloads, concatenated
    FOLDER/index.bin    (N,) records, each starting with the SHA-256 of its key
    FOLDER/lock         held while data is appended; contains the committed sizes of data and index in bytes

Appends are atomic: the index record is written after its payload is on disk. The next process that opens the folder
truncates what a killed process left behind, but never anything that was committed.
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

INDEX_FILE, LOCK_FILE = "index.bin", "lock"


class AppendOnlyStore:
    """Rows by hash. A subclass names the files, the dtype of a record and the end of consistent data."""

    manifest_file: ClassVar[str]
    data_file: ClassVar[str]
    record_dtype: ClassVar[np.dtype]  # with a field hash, V32

    def __init__(self, folder: Path, manifest: dict[str, Any], fixed: Sequence[str]):
        """Opens or creates the folder. fixed: keys of the manifest that must agree with those of an existing folder."""
        self.folder = folder
        self._rows: dict[bytes, int] = {}
        self._known = 0  # records that are in _rows
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._check_manifest(manifest, fixed)
                self._truncate_tail()
        except OSError as error:
            raise OutputError(f"cannot use the cache {self.folder}: {error.strerror or error}") from error
        self._refresh()

    def __len__(self) -> int:
        return self._known

    @property
    def records(self) -> np.ndarray:
        """The index (N,) of `record_dtype`, memory-mapped."""
        return self._map(INDEX_FILE, self.record_dtype, (self._known,))

    def _consistent_end(self) -> tuple[int, int]:
        """The number of data bytes and of records that belong together; the rest is an incomplete tail."""
        raise NotImplementedError

    def _append_missing(self, keys: Sequence[bytes], build: Callable[[list[int]], tuple[bytes, np.ndarray]]) -> None:
        """Appends the rows whose key (SHA-256) is missing; build: payload and records (n,) of the rows at indices."""
        try:
            with self._locked():
                self._truncate_tail()  # of a process that was killed since the folder was opened
                self._refresh()
                data, records = build([i for i, key in enumerate(keys) if key not in self._rows])
                for name, content in ((self.data_file, data), (INDEX_FILE, records.tobytes())):
                    with (self.folder / name).open("ab") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                self._commit(self._size(self.data_file), self._size(INDEX_FILE))
        except OSError as error:
            raise OutputError(f"cannot write {self.folder}: {error.strerror or error}") from error
        self._refresh()

    def _refresh(self) -> None:
        """Reads the records that were appended since the last call, also by other processes."""
        total = self._size(INDEX_FILE) // self.record_dtype.itemsize
        if total > self._known:
            hashes = self._map(INDEX_FILE, self.record_dtype, (total,))[self._known :]["hash"].tobytes()
            for i in range(total - self._known):
                self._rows.setdefault(hashes[32 * i : 32 * i + 32], self._known + i)
            self._known = total

    def _truncate_tail(self) -> None:
        """Truncates what a killed process left half-written; DataError if committed data is missing."""
        names = (self.data_file, INDEX_FILE)
        missing = [name for name in names if not (self.folder / name).exists()]
        if missing and any(map(self._size, names)):  # both files are created before either is written to
            raise DataError(f"{self.folder} is damaged: {missing[0]} is missing; restore it or remove the folder")
        for name in names:
            (self.folder / name).touch()
        end, records = self._consistent_end()
        sizes = end, records * self.record_dtype.itemsize
        if any(size < committed for size, committed in zip(sizes, self._committed())):
            raise DataError(f"{self.folder} is damaged: {self.data_file} or {INDEX_FILE} is cut off; remove the folder")
        for name, size in zip(names, sizes):
            if self._size(name) != size:
                os.truncate(self.folder / name, size)
        self._commit(*sizes)

    def _commit(self, *sizes: int) -> None:
        """Writes the committed sizes of data and index."""
        (self.folder / LOCK_FILE).write_text("{} {}".format(*sizes))

    def _committed(self) -> list[int]:
        """The committed sizes; zeros if the lock file contains none or a half-written line."""
        sizes = (self.folder / LOCK_FILE).read_text().split()
        return [int(size) for size in sizes] if len(sizes) == 2 and all(map(str.isdecimal, sizes)) else [0, 0]

    def _check_manifest(self, manifest: dict[str, Any], fixed: Sequence[str]) -> None:
        path = self.folder / self.manifest_file
        if not path.exists():
            write_json(path, manifest)
            return
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            actual = {name: content[name] for name in fixed}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged or was written by another program") from error
        expected = {name: manifest[name] for name in fixed}
        if actual != expected:
            texts = (", ".join(f"{name} {value}" for name, value in part.items()) for part in (expected, actual))
            raise DataError(f"{path} must contain {'; got '.join(texts)}")

    def _size(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def _map(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        if not shape[0]:
            return np.zeros(shape, dtype=dtype)  # an empty file cannot be mapped
        return np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / LOCK_FILE).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
