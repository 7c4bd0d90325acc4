"""Vectors of notes on disk, each kept once: a folder an embedder, rows that are only ever added.

    CACHE/<key>/embedder.json   what made the vectors
    CACHE/<key>/vectors.f32     (N, D) float32, little-endian, row by row
    CACHE/<key>/index.bin       (N,) records: SHA-256 of the note's text, tokens, windows, milliseconds
    CACHE/<key>/lock            held by whoever adds rows

A row of the index is written after its vector is on disk, so that what the index names is there. A tail that a killed
program left behind is cut off by the next one that opens the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.core import DataError, OutputError
from nosology.core.files import write_json

if TYPE_CHECKING:
    from nosology.encoders.embedder import Embedded, Embedder

MANIFEST, VECTORS, INDEX, LOCK = "embedder.json", "vectors.f32", "index.bin", "lock"
FORMAT = 1
RECORD = np.dtype(
    [("hash", "V32"), ("tokens", "<u4"), ("read", "<u4"), ("windows", "<u4"), ("milliseconds", "<f4")]
)  # tokens: of the whole note; read: that went through the model; milliseconds: its share of its batch's time
_POOL_NOTES, _POOL_CHARACTERS = 4_096, 1 << 25  # texts that are held at a time, to be sorted by length

Watch = Callable[["Embedded"], None]


def text_hash(text: str) -> bytes:
    """The SHA-256 of a note's text: what a row is found by. The text itself is never stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class EmbeddingCache:
    """The vectors of one embedder in a cache folder."""

    def __init__(self, folder: str | Path, key: str, dim: int, identity: dict[str, str | int], name: str = ""):
        self.folder, self.key, self.dim = Path(folder) / key, key, dim
        self._rows: dict[bytes, int] = {}
        self._known = 0  # rows of the index that are in _rows
        manifest = {"format": FORMAT, "key": key, "dim": dim, "name": name, "identity": identity}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._check(manifest)
                self._cut_tail()
        except OSError as error:
            raise OutputError(f"cannot use the cache {self.folder}: {error.strerror or error}") from error
        self._look()

    @classmethod
    def of(cls, folder: str | Path, embedder: Embedder) -> EmbeddingCache:
        """The vectors of this embedder."""
        return cls(folder, embedder.key, embedder.dim, embedder.identity, embedder.name)

    def __len__(self) -> int:
        return self._known

    def __contains__(self, text: str) -> bool:
        return text_hash(text) in self._rows

    @property
    def records(self) -> np.ndarray:
        """The index, a view of the file: (N,) of RECORD."""
        return self._map(INDEX, RECORD, (self._known,))

    @property
    def stored(self) -> np.ndarray:
        """All vectors (N, D), a view of the file, in the order in which they came."""
        return self._map(VECTORS, np.dtype("<f4"), (self._known, self.dim))

    def missing(self, texts: Iterable[str]) -> tuple[int, int]:
        """How many of the texts are not there yet, each counted once, and how many characters they have."""
        self._look()
        found = {name: len(text) for text in texts if (name := text_hash(text)) not in self._rows}
        return len(found), sum(found.values())

    def vectors(
        self, texts: Iterable[str], embedder: Callable[[], Embedder] | None = None, watch: Watch | None = None
    ) -> np.ndarray:
        """Vectors (N, D), float32, in the order of the texts.

        What is not there yet is embedded and stored batch by batch; `embedder` is asked for only then. Without it a
        note that is not there is a DataError. `watch` is called after each batch.
        """
        rows = self.rows(texts, embedder, watch)
        return np.asarray(self.stored[rows], dtype=np.float32)

    def rows(
        self, texts: Iterable[str], embedder: Callable[[], Embedder] | None = None, watch: Watch | None = None
    ) -> np.ndarray:
        """The rows (N,) of `stored` that belong to the texts; otherwise as `vectors`."""
        hashes: list[bytes] = []
        waiting: dict[bytes, str] = {}
        characters = 0
        for text in texts:
            hashes.append(name := text_hash(text))
            if name in self._rows or name in waiting:
                continue
            waiting[name] = text
            characters += len(text)
            if len(waiting) >= _POOL_NOTES or characters >= _POOL_CHARACTERS:
                self._add(waiting, embedder, watch)
                waiting, characters = {}, 0
        if waiting:
            self._add(waiting, embedder, watch)
        return np.fromiter((self._rows[name] for name in hashes), dtype=np.int64, count=len(hashes))

    def _add(self, waiting: dict[bytes, str], embedder: Callable[[], Embedder] | None, watch: Watch | None) -> None:
        self._look()  # another process may have been here
        missing = {name: text for name, text in waiting.items() if name not in self._rows}
        if not missing:
            return
        if embedder is None:
            raise DataError(f"{self.folder} lacks {len(missing)} of the notes: `nosology embed` adds them")
        model = embedder()
        if model.key != self.key:
            raise DataError(
                f"{self.folder} is of another embedder: its key begins with {self.key[:8]}, not {model.key[:8]}"
            )
        names = list(missing)
        for part in model.batches(list(missing.values())):
            self._append([names[row] for row in part.rows], part)
            if watch:
                watch(part)

    def _append(self, names: Sequence[bytes], part: Embedded) -> None:
        """Writes a batch: first the vectors, then, when they are on disk, the index."""
        records = np.zeros(len(names), dtype=RECORD)
        records["hash"] = np.frombuffer(b"".join(names), dtype="V32")
        records["tokens"], records["read"], records["windows"] = part.tokens, part.read, part.windows
        records["milliseconds"] = 1000 * part.seconds * part.read / max(1, part.read.sum())
        try:
            with self._locked():
                self._cut_tail()  # of one that was killed since this cache was opened
                self._look()
                new = [i for i, name in enumerate(names) if name not in self._rows]
                for place, data in ((VECTORS, part.vectors.astype("<f4")[new]), (INDEX, records[new])):
                    with (self.folder / place).open("ab") as file:
                        file.write(data.tobytes())
                        file.flush()
                        os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self.folder}: {error.strerror or error}") from error
        self._look()

    def _look(self) -> None:
        """Takes note of the rows that were added since."""
        whole = self._size(INDEX) // RECORD.itemsize
        if whole > self._known:
            fresh = self._map(INDEX, RECORD, (whole,))[self._known :]["hash"].tobytes()
            for i in range(whole - self._known):
                self._rows.setdefault(fresh[32 * i : 32 * i + 32], self._known + i)
            self._known = whole

    def _cut_tail(self) -> None:
        """Cuts off what a killed program left half-written."""
        rows = min(self._size(INDEX) // RECORD.itemsize, self._size(VECTORS) // (4 * self.dim))
        for place, size in ((INDEX, RECORD.itemsize), (VECTORS, 4 * self.dim)):
            (self.folder / place).touch()
            if self._size(place) != rows * size:
                os.truncate(self.folder / place, rows * size)

    def _check(self, manifest: dict[str, Any]) -> None:
        path = self.folder / MANIFEST
        if not path.exists():
            write_json(path, manifest)
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            same = all(found[name] == manifest[name] for name in ("format", "key", "dim"))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged or of another program") from error
        if not same:
            raise DataError(
                f"{path} must be of format {FORMAT} and width {self.dim}; got {found['format']}, {found['dim']}"
            )

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
