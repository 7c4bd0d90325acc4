"""Vectors of notes on disk, each kept once: a folder an embedder, rows that are only ever added.

    CACHE/<key>/embedder.json   what made the vectors
    CACHE/<key>/vectors.f32     (N, D) float32, little-endian, row by row
    CACHE/<key>/index.bin       (N,) records: SHA-256 of the note's text, tokens, windows, milliseconds

`append_only.py` says how it is kept whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nosology.core import DataError
from nosology.encoders.append_only import INDEX, AppendOnly

if TYPE_CHECKING:
    from nosology.encoders.embedder import Embedded, Embedder

MANIFEST, VECTORS = "embedder.json", "vectors.f32"
FORMAT = 1
RECORD = np.dtype(
    [("hash", "V32"), ("tokens", "<u4"), ("read", "<u4"), ("windows", "<u4"), ("milliseconds", "<f4")]
)  # tokens: of the whole note; read: that went through the model; milliseconds: its share of its batch's time
_MOST = 1e10  # in a vector: what an embedder makes is far below
_POOL_NOTES, _POOL_CHARACTERS = 4_096, 1 << 25  # texts that are held at a time, to be sorted by length

Watch = Callable[["Embedded"], None]


def text_hash(text: str) -> bytes:
    """The SHA-256 of a note's text: what a row is found by. The text itself is never stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class EmbeddingCache(AppendOnly):
    """The vectors of one embedder in a cache folder."""

    manifest, data, record = MANIFEST, VECTORS, RECORD

    def __init__(self, folder: str | Path, key: str, dim: int, identity: dict[str, str | int], name: str = ""):
        self.key, self.dim = key, dim
        made_by = {"format": FORMAT, "key": key, "dim": dim, "name": name, "identity": identity}
        super().__init__(Path(folder) / key, made_by, ("format", "key", "dim"))

    @classmethod
    def of(cls, folder: str | Path, embedder: Embedder) -> EmbeddingCache:
        """The vectors of this embedder."""
        return cls(folder, embedder.key, embedder.dim, embedder.identity, embedder.name)

    def __contains__(self, text: str) -> bool:
        return text_hash(text) in self._rows

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
        note that is not there is a DataError, and so is a vector that no embedder makes. `watch` is called after each
        batch.
        """
        rows = self.rows(texts, embedder, watch)
        found = np.asarray(self.stored[rows], dtype=np.float32)
        empty = self.records["read"][rows] == 0  # these may be zero
        damaged = int((~(np.abs(found) < _MOST).all(1) | ~(found.any(1) | empty)).sum())  # NaN is not < either
        if damaged:
            raise DataError(f"{self.folder} is damaged: {damaged} vectors are zero, huge or no numbers; remove it")
        return found

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
                self._embed(waiting, embedder, watch)
                waiting, characters = {}, 0
        if waiting:
            self._embed(waiting, embedder, watch)
        return np.fromiter((self._rows[name] for name in hashes), dtype=np.int64, count=len(hashes))

    def _embed(self, waiting: dict[bytes, str], embedder: Callable[[], Embedder] | None, watch: Watch | None) -> None:
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
        """Writes a batch."""
        records = np.zeros(len(names), dtype=RECORD)
        records["hash"] = np.frombuffer(b"".join(names), dtype="V32")
        records["tokens"], records["read"], records["windows"] = part.tokens, part.read, part.windows
        records["milliseconds"] = 1000 * part.seconds * part.read / max(1, part.read.sum())
        self._add(names, lambda new: (part.vectors.astype("<f4")[new].tobytes(), records[new]))

    def _whole(self) -> tuple[int, int]:
        rows = min(self._size(INDEX) // RECORD.itemsize, self._size(VECTORS) // (4 * self.dim))
        return rows * 4 * self.dim, rows
