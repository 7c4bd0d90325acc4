"""Cache of note embeddings on disk: one folder per embedder, each text embedded once.

    CACHE/<key>/embedder.json   what produced the vectors
    CACHE/<key>/vectors.f32     (N, D) float32, little-endian
    CACHE/<key>/index.bin       (N,) records: SHA-256 of the note's text, tokens, windows, milliseconds

See `append_only_store.py` for locking and recovery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nosology.core import DataError
from nosology.core.progress import activity
from nosology.encoders.append_only_store import INDEX_FILE, AppendOnlyStore

if TYPE_CHECKING:
    from nosology.encoders.embedder import EmbeddedBatch, Embedder

MANIFEST, VECTORS = "embedder.json", "vectors.f32"
FORMAT = 1
RECORD = np.dtype(
    [("hash", "V32"), ("tokens", "<u4"), ("read", "<u4"), ("windows", "<u4"), ("milliseconds", "<f4")]
)  # tokens: of the whole note; read: that went through the model; milliseconds: share of the time of the batch
_MAX_VALUE = 1e10  # larger values in a vector mean that the file is damaged
_MAX_TEXTS, _MAX_CHARACTERS = 4_096, 1 << 25  # texts that are held in memory to be sorted by length

BatchCallback = Callable[["EmbeddedBatch"], None]


def text_hash(text: str) -> bytes:
    """The SHA-256 of a note's text, the key of its row. The text itself is never stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class EmbeddingCache(AppendOnlyStore):
    """The vectors of one embedder in a cache folder."""

    manifest_file, data_file, record_dtype = MANIFEST, VECTORS, RECORD

    def __init__(self, folder: str | Path, key: str, dim: int, identity: dict[str, str | int], name: str = ""):
        self.key, self.dim = key, dim
        manifest = {"format": FORMAT, "key": key, "dim": dim, "name": name, "identity": identity}
        super().__init__(Path(folder) / key, manifest, ("format", "key", "dim"))

    @classmethod
    def for_embedder(cls, folder: str | Path, embedder: Embedder) -> EmbeddingCache:
        """The cache of an embedder in a folder."""
        return cls(folder, embedder.key, embedder.dim, embedder.identity, embedder.name)

    def __contains__(self, text: str) -> bool:
        return text_hash(text) in self._rows

    @property
    def stored(self) -> np.ndarray:
        """All vectors (N, D) in order of insertion, memory-mapped."""
        return self._map(VECTORS, np.dtype("<f4"), (self._known, self.dim))

    def missing(self, texts: Iterable[str]) -> tuple[int, int]:
        """The number of different texts that are not cached, and the number of their characters."""
        self._refresh()
        missing = {key: len(text) for text in texts if not self._is_intact(key := text_hash(text))}
        return len(missing), sum(missing.values())

    def vectors(
        self,
        texts: Iterable[str],
        embedder: Callable[[], Embedder] | None = None,
        on_batch: BatchCallback | None = None,
    ) -> np.ndarray:
        """Vectors (N, D), float32, in the order of the texts.

        Missing texts are embedded and stored batch by batch; `embedder` is called only then, `on_batch` after each
        batch. Raises DataError if a text is missing and there is no embedder, or if a vector is damaged.
        """
        rows = self.rows(texts, embedder, on_batch)
        vectors = np.asarray(self.stored[rows], dtype=np.float32)
        empty = self.records["read"][rows] == 0  # these may be zero
        damaged = int((~(np.abs(vectors) < _MAX_VALUE).all(1) | ~(vectors.any(1) | empty)).sum())  # also if NaN
        if damaged:
            raise DataError(f"{self.folder} is damaged: {damaged} vectors are zero, huge or not a number; remove it")
        return vectors

    def rows(
        self,
        texts: Iterable[str],
        embedder: Callable[[], Embedder] | None = None,
        on_batch: BatchCallback | None = None,
    ) -> np.ndarray:
        """The rows (N,) of `stored` that belong to the texts; otherwise as `vectors`."""
        keys: list[bytes] = []
        pending: dict[bytes, str] = {}
        characters = 0
        for text in texts:
            keys.append(key := text_hash(text))
            if key in pending or self._is_intact(key):
                continue
            pending[key] = text
            characters += len(text)
            if len(pending) >= _MAX_TEXTS or characters >= _MAX_CHARACTERS:
                self._embed(pending, embedder, on_batch)
                pending, characters = {}, 0
        if pending:
            self._embed(pending, embedder, on_batch)
        return np.fromiter((self._rows[key] for key in keys), dtype=np.int64, count=len(keys))

    def _embed(
        self, pending: dict[bytes, str], embedder: Callable[[], Embedder] | None, on_batch: BatchCallback | None
    ) -> None:
        self._refresh()  # another process may have added some of them
        missing = {key: text for key, text in pending.items() if key not in self._rows}
        if not missing:
            return
        if embedder is None:
            raise DataError(f"{self.folder} lacks {len(missing)} of the notes: `nosology embed` adds them")
        model = embedder()
        if model.key != self.key:
            raise DataError(
                f"{self.folder} belongs to another embedder: its key starts with {self.key[:8]}, not {model.key[:8]}"
            )
        keys = list(missing)
        with activity(f"embedding {len(keys):,} notes") if on_batch is None else nullcontext():
            for batch in model.embed_batches(list(missing.values())):
                self._append([keys[row] for row in batch.rows], batch)
                if on_batch:
                    on_batch(batch)

    def _append(self, keys: Sequence[bytes], batch: EmbeddedBatch) -> None:
        records = np.zeros(len(keys), dtype=RECORD)
        records["hash"] = np.frombuffer(b"".join(keys), dtype="V32")
        records["tokens"], records["read"], records["windows"] = batch.tokens, batch.read, batch.windows
        records["milliseconds"] = 1000 * batch.seconds * batch.read / max(1, batch.read.sum())
        self._append_missing(keys, lambda new: (batch.vectors.astype("<f4")[new].tobytes(), records[new]))

    def _payload_range(self, row: int, record: np.void) -> tuple[int, int]:
        return row * 4 * self.dim, (row + 1) * 4 * self.dim

    def _consistent_end(self) -> tuple[int, int]:
        rows = min(self._size(INDEX_FILE) // RECORD.itemsize, self._size(VECTORS) // (4 * self.dim))
        return rows * 4 * self.dim, rows
