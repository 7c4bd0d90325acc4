"""States of tokens on disk, each text once, at its true length: what a frozen encoder says need not be asked twice.

    CACHE/<key>/encoder.json   what made the states
    CACHE/<key>/states.f16     (tokens of all texts, D) float16, little-endian, one text behind another
    CACHE/<key>/index.bin      (N,) records: SHA-256 of the text's tokens, where its states begin, how many there are
    CACHE/<key>/lock           held by whoever adds to it

A text's record is written after its states are on disk. A tail that a killed program left behind is cut off by the next
one that opens the cache. States are read through a memory map: the system keeps in memory what is used most.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import DataError, OutputError
from nosology.core.files import write_json

MANIFEST, STATES, INDEX, LOCK = "encoder.json", "states.f16", "index.bin", "lock"
FORMAT = 1
RECORD = np.dtype([("hash", "V32"), ("start", "<u8"), ("tokens", "<u4")])
_HALF = np.dtype("<f2")

Encode = Callable[[list[np.ndarray]], Iterator[tuple[np.ndarray, list[np.ndarray]]]]  # -> rows, states (T, D) of each


class StateCache:
    """The states of one encoder in a cache folder."""

    def __init__(self, folder: str | Path, key: str, width: int):
        self.folder, self.key, self.width = Path(folder) / key, key, width
        self._places: dict[bytes, tuple[int, int]] = {}
        self._known = 0  # records that are in _places
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._check({"format": FORMAT, "key": key, "width": width})
                self._cut_tail()
        except OSError as error:
            raise OutputError(f"cannot use the cache {self.folder}: {error.strerror or error}") from error
        self._look()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return self._size(STATES)

    def add(self, texts: Sequence[np.ndarray], encode: Encode) -> Places:
        """Where the states of texts are, given as arrays of token ids; those that are not there yet are made first.

        encode: rows and states, batch by batch, of texts in an order of its own.
        """
        names = [_name(text) for text in texts]
        missing = {name: text for name, text in zip(names, texts) if name not in self._places}
        waiting = list(missing)
        for rows, states in encode(list(missing.values())) if missing else ():
            self._append([waiting[row] for row in rows], states)
        found = [self._places[name] for name in names]
        return Places(self._map(), np.array(found, dtype=np.int64).reshape(-1, 2))

    def _append(self, names: Sequence[bytes], states: Sequence[np.ndarray]) -> None:
        """Writes a batch: first the states, then, when they are on disk, the index."""
        try:
            with self._locked():
                self._cut_tail()
                self._look()
                new = [i for i, name in enumerate(names) if name not in self._places]
                lengths = np.array([len(states[i]) for i in new], dtype=np.int64)
                records = np.zeros(len(new), dtype=RECORD)
                records["hash"] = np.frombuffer(b"".join(names[i] for i in new), dtype="V32")
                records["start"] = self._size(STATES) // self._row + np.cumsum(lengths) - lengths
                records["tokens"] = lengths
                whole = b"".join(np.ascontiguousarray(states[i], dtype=_HALF).tobytes() for i in new)
                for place, data in ((STATES, whole), (INDEX, records.tobytes())):
                    with (self.folder / place).open("ab") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self.folder}: {error.strerror or error}") from error
        self._look()

    def _look(self) -> None:
        """Takes note of the records that were added since."""
        whole = self._size(INDEX) // RECORD.itemsize
        if whole > self._known:
            fresh = np.fromfile(self.folder / INDEX, dtype=RECORD, offset=self._known * RECORD.itemsize)
            for record in fresh[: whole - self._known]:
                self._places.setdefault(record["hash"].tobytes(), (int(record["start"]), int(record["tokens"])))
            self._known = whole

    def _cut_tail(self) -> None:
        """Cuts off what a killed program left half-written."""
        for place in (STATES, INDEX):
            (self.folder / place).touch()
        kept = self._size(INDEX) // RECORD.itemsize * RECORD.itemsize
        end = 0
        if kept:
            [last] = np.fromfile(self.folder / INDEX, dtype=RECORD, count=1, offset=kept - RECORD.itemsize)
            end = (int(last["start"]) + int(last["tokens"])) * self._row
        if self._size(STATES) < end:
            raise DataError(f"{self.folder} is damaged: it holds fewer states than its index names; remove it")
        for place, size in ((STATES, end), (INDEX, kept)):
            if self._size(place) != size:
                os.truncate(self.folder / place, size)

    def _check(self, manifest: dict[str, Any]) -> None:
        path = self.folder / MANIFEST
        if not path.exists():
            write_json(path, manifest)
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path} is damaged or of another program") from error
        if found != manifest:
            raise DataError(f"{path} must be of format {FORMAT}, key {self.key} and width {self.width}")

    @property
    def _row(self) -> int:
        """Bytes of one token."""
        return self.width * _HALF.itemsize

    def _size(self, place: str) -> int:
        path = self.folder / place
        return path.stat().st_size if path.exists() else 0

    def _map(self) -> np.ndarray:
        tokens = self._size(STATES) // self._row
        if not tokens:
            return np.zeros((0, self.width), dtype=_HALF)  # an empty file cannot be mapped
        return np.memmap(self.folder / STATES, dtype=_HALF, mode="r", shape=(tokens, self.width))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / LOCK).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Places:
    """The states of some texts, in their order."""

    def __init__(self, states: np.ndarray, places: np.ndarray):
        """states: (tokens of all texts, D), mapped. places: (N, 2) where each text begins and how long it is."""
        self.states, self.places = states, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: int) -> np.ndarray:
        """The states (T, D) of a text."""
        start, length = self.places[row]
        return self.states[start : start + length]

    def rectangle(self, rows: Iterable[int], width: int) -> np.ndarray:
        """The states (B, width, D) of some texts, 0 after their ends."""
        rows = list(rows)
        found = np.zeros((len(rows), width, self.states.shape[1]), dtype=_HALF)
        for target, row in zip(found, rows):
            part = self[row]
            target[: len(part)] = part
        return found

    def means(self) -> np.ndarray:
        """The mean (N, D) of each text's states, float32; 0 where it has none."""
        empty = np.zeros(self.states.shape[1], np.float32)
        parts = (self[row] for row in range(len(self)))
        return np.stack([part.mean(0, dtype=np.float32) if len(part) else empty for part in parts])


def _name(tokens: np.ndarray) -> bytes:
    """The SHA-256 of a text's tokens; the text itself is never stored."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes()).digest()
