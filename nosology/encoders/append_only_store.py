"""An append-only folder of records with a hash as key: the base of the caches of embeddings and encoder states.

    FOLDER/<manifest>   what produced the data
    FOLDER/<data>       the payloads, concatenated
    FOLDER/index.bin    (N,) records, each starting with the SHA-256 of its key
    FOLDER/digests.bin  (N,) SHA-256 of each record with its payload; checked when a row is used
    FOLDER/lock         held while data is appended; contains the committed sizes of data and index in bytes

Appends are atomic: the index record is written after its payload is on disk. The next process that opens the folder
truncates what a killed process left behind, but never anything that was committed. A damaged row is computed and
appended again; of two rows with the same key, the last one counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nosology.core import DataError, OutputError
from nosology.core.files import check_results_folder, write_json
from nosology.core.progress import progress

INDEX_FILE, DIGEST_FILE, LOCK_FILE = "index.bin", "digests.bin", "lock"
_DIGEST = np.dtype("V32")


def check_cache_folder(folder: str | Path) -> None:
    """OutputError if a folder is an output of another command, or has files and no folder with a hash as its name."""
    check_results_folder(folder, own=["[0-9a-f]" * 16 + "*"])


class AppendOnlyStore:
    """Rows by hash. A subclass names the files, the dtype of a record and the end of consistent data."""

    manifest_file: ClassVar[str]
    data_file: ClassVar[str]
    record_dtype: ClassVar[np.dtype]  # with a field hash, V32

    def __init__(self, folder: Path, manifest: dict[str, Any], fixed: Sequence[str]):
        """Opens or creates the folder. fixed: keys of the manifest that must agree with those of an existing folder."""
        check_cache_folder(folder.parent)
        self.folder = folder
        self._rows: dict[bytes, int] = {}
        self._known = 0  # records that are in _rows
        self._maps: dict[str, np.ndarray] = {}  # the last memory map of each file
        self._is_damaged = False  # a damaged row was found
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

    def _payload_range(self, row: int, record: np.void) -> tuple[int, int]:
        """Start and end of the payload of a record in the data file, in bytes."""
        raise NotImplementedError

    def _is_intact(self, key: bytes) -> bool:
        """Whether there is a row with this key and its digest is right; a damaged row is forgotten, with one line."""
        if (row := self._rows.get(key)) is None:
            return False
        if self._digest(row) == self._map(DIGEST_FILE, _DIGEST, (self._known,))[row].tobytes():
            return True
        if not self._is_damaged:
            print(f"{self.folder} is damaged: the damaged entries are computed again", file=sys.stderr, flush=True)
        self._is_damaged = True
        del self._rows[key]
        return False

    def _digest(self, row: int) -> bytes:
        """The SHA-256 of a record with its payload, both as they are on disk."""
        record = self._map(INDEX_FILE, self.record_dtype, (self._size(INDEX_FILE) // self.record_dtype.itemsize,))[row]
        start, end = self._payload_range(row, record)
        payload = self._map(self.data_file, np.dtype(np.uint8), (self._size(self.data_file),))[start:end]
        return hashlib.sha256(record.tobytes() + payload.tobytes()).digest()

    def _append_missing(self, keys: Sequence[bytes], build: Callable[[list[int]], tuple[bytes, np.ndarray]]) -> None:
        """Appends the rows whose key (SHA-256) is missing; build: payload and records (n,) of the rows at indices."""
        try:
            with self._locked():
                self._truncate_tail()  # of a process that was killed since the folder was opened
                self._refresh()
                data, records = build([i for i, key in enumerate(keys) if key not in self._rows])
                start, digests = self._size(self.data_file), b""
                for row, record in enumerate(records, self._known):
                    first, end = self._payload_range(row, record)
                    digests += hashlib.sha256(record.tobytes() + data[first - start : end - start]).digest()
                # A record that is in the index must have its payload and its digest.
                contents = {self.data_file: data, DIGEST_FILE: digests, INDEX_FILE: records.tobytes()}
                for name, content in contents.items():
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
                self._rows[hashes[32 * i : 32 * i + 32]] = self._known + i  # the last: it replaces a damaged row
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
        self._complete_digests(records)
        self._commit(*sizes)

    def _complete_digests(self, records: int) -> None:
        """Truncates the digests of a killed process; adds those of rows that version 0.1 has written."""
        known = self._size(DIGEST_FILE) // _DIGEST.itemsize
        if known < records:
            with (self.folder / DIGEST_FILE).open("ab") as file:
                file.truncate(known * _DIGEST.itemsize)
                for row in progress(range(known, records), f"hashing {self.folder.name[:8]}", unit="entries"):
                    file.write(self._digest(row))
        elif self._size(DIGEST_FILE) != records * _DIGEST.itemsize:
            os.truncate(self.folder / DIGEST_FILE, records * _DIGEST.itemsize)

    def _commit(self, *sizes: int) -> None:
        """Writes the committed sizes of data and index."""
        (self.folder / LOCK_FILE).write_text("{} {}".format(*sizes))

    def _committed(self) -> list[int]:
        """The committed sizes; zeros if the lock file contains none, a half-written line or other bytes."""
        sizes = re.fullmatch(rb"(\d{1,18}) (\d{1,18})", (self.folder / LOCK_FILE).read_bytes())
        return [int(size) for size in sizes.groups()] if sizes else [0, 0]

    def _check_manifest(self, manifest: dict[str, Any], fixed: Sequence[str]) -> None:
        path = self.folder / self.manifest_file
        if not path.exists():
            write_json(path, manifest)
            return
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            actual = {name: content[name] for name in fixed}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
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
        known = self._maps.get(name)
        if known is None or known.shape != shape or known.dtype != dtype:
            known = self._maps[name] = np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape)
        return known

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / LOCK_FILE).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
