"""Cached encoder states: the token states of a frozen encoder, on disk and, where they fit, on a GPU.

    CACHE/<key>/encoder.json   what produced the states
    CACHE/<key>/states.f16     (tokens of all texts, D) float16, little-endian, concatenated without padding
    CACHE/<key>/index.bin      (N,) records: SHA-256 of the text's token ids, start of its states, number of tokens

See `append_only_store.py` for locking and recovery. States are memory-mapped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from nosology.core import DataError
from nosology.core.progress import progress
from nosology.encoders.append_only_store import INDEX_FILE, AppendOnlyStore

MANIFEST, STATES = "encoder.json", "states.f16"
FORMAT = 1
RECORD = np.dtype([("hash", "V32"), ("start", "<u8"), ("tokens", "<u4")])
_FLOAT16 = np.dtype("<f2")
_TEXTS_PER_COPY = 256  # to a GPU
_FREE_SHARE = 0.5  # of a GPU's free memory; training needs the rest

Encode = Callable[[list[np.ndarray]], Iterator[tuple[np.ndarray, list[np.ndarray]]]]  # -> rows, states (T, D) of each


class EncoderStateCache(AppendOnlyStore):
    """The states of one encoder in a cache folder."""

    manifest_file, data_file, record_dtype = MANIFEST, STATES, RECORD

    def __init__(self, folder: str | Path, key: str, width: int):
        self.width = width
        manifest = {"format": FORMAT, "key": key, "width": width}
        super().__init__(Path(folder) / key, manifest, tuple(manifest))

    @property
    def nbytes(self) -> int:
        return self._size(STATES)

    def add(self, texts: Sequence[np.ndarray], encode: Encode) -> CachedStates:
        """The cached states of texts, which are arrays of token ids; missing ones are encoded first.

        encode: yields rows and states of a batch of texts; the order of rows is free.
        """
        keys = [_token_hash(text) for text in texts]
        known = progress(zip(keys, texts), "checking states", total=len(keys))
        missing = {key: text for key, text in known if not self._is_intact(key)}
        missing_keys = list(missing)
        for rows, states in encode(list(missing.values())) if missing else ():
            self._append([missing_keys[row] for row in rows], states)
        records = self.records[[self._rows[key] for key in keys]]
        states = self._map(STATES, _FLOAT16, (self.nbytes // self._token_bytes, self.width))
        return CachedStates(states, np.stack([records["start"], records["tokens"]], axis=1).astype(np.int64))

    def _append(self, keys: Sequence[bytes], states: Sequence[np.ndarray]) -> None:
        def build(new: list[int]) -> tuple[bytes, np.ndarray]:
            lengths = np.array([len(states[i]) for i in new], dtype=np.int64)
            records = np.zeros(len(new), dtype=RECORD)
            records["hash"] = np.frombuffer(b"".join(keys[i] for i in new), dtype="V32")
            records["start"] = self.nbytes // self._token_bytes + np.cumsum(lengths) - lengths
            records["tokens"] = lengths
            return b"".join(np.ascontiguousarray(states[i], dtype=_FLOAT16).tobytes() for i in new), records

        self._append_missing(keys, build)

    def _payload_range(self, row: int, record: np.void) -> tuple[int, int]:
        start, tokens = int(record["start"]), int(record["tokens"])
        return start * self._token_bytes, (start + tokens) * self._token_bytes

    def _consistent_end(self) -> tuple[int, int]:
        records, end = self._size(INDEX_FILE) // RECORD.itemsize, 0
        if records:
            offset = (records - 1) * RECORD.itemsize
            [last] = np.fromfile(self.folder / INDEX_FILE, dtype=RECORD, count=1, offset=offset)
            end = (int(last["start"]) + int(last["tokens"])) * self._token_bytes
        if self.nbytes < end:
            raise DataError(f"{self.folder} is damaged: it has fewer states than its index; remove it")
        return end, records

    @property
    def _token_bytes(self) -> int:
        return self.width * _FLOAT16.itemsize


class CachedStates:
    """The cached states of some texts, in their order."""

    def __init__(self, states: np.ndarray, spans: np.ndarray):
        """states: (tokens of all texts, D), memory-mapped. spans: (N, 2) start and length of each text in states."""
        self.states, self.spans = states, spans

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def width(self) -> int:
        return self.states.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the states; identical texts count once."""
        return int(np.unique(self.spans, axis=0)[:, 1].sum()) * self.width * _FLOAT16.itemsize

    def __getitem__(self, row: int) -> np.ndarray:
        """The states (T, D) of a text."""
        start, length = self.spans[row]
        return self.states[start : start + length]

    def subset(self, rows: np.ndarray) -> CachedStates:
        """The states of the texts at `rows`."""
        return CachedStates(self.states, self.spans[rows])

    def padded_batch(self, rows: Sequence[int], width: int, pin_memory: bool = False) -> GatheredStates:
        """The states (B, width, D) of the texts at `rows`, zero-padded.

        They are copied without padding, which a GPU adds faster than a CPU. pin_memory: straight into pinned memory.
        """
        spans = self.spans[np.asarray(rows)]
        ends = np.cumsum(spans[:, 1])
        states = torch.empty((int(ends[-1]) + 1, self.width), dtype=torch.float16, pin_memory=pin_memory)
        mapped = self.states.view(np.ndarray)  # slices of a memmap object are slow
        padding = np.zeros((1, self.width), _FLOAT16)
        texts = [mapped[start : start + length] for start, length in spans.tolist()]
        np.concatenate([*texts, padding], out=states.numpy())
        return GatheredStates(states, _gather_index(ends - spans[:, 1], spans[:, 1], width, len(states) - 1))

    def means(self) -> np.ndarray:
        """The mean state (N, D) of each text, float32; 0 for a text without tokens."""
        empty = np.zeros(self.width, np.float32)
        texts = (self[row] for row in range(len(self)))
        return np.stack([states.mean(0, dtype=np.float32) if len(states) else empty for states in texts])


def _token_hash(tokens: np.ndarray) -> bytes:
    """The SHA-256 of a text's token ids. The text itself is never stored."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes()).digest()


@dataclass(frozen=True)
class GatheredStates:
    """The states (B, T, D) of a batch as an index; they are gathered on the device when the batch is moved there."""

    states: Tensor  # (tokens + 1, D) of the texts of this batch, or of all texts if they are on the device
    index: Tensor  # (B, T) int64, on the CPU; padding is the last row of states

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Tensor:
        states, index = (value.to(device, non_blocking=non_blocking) for value in (self.states, self.index))
        return embedding(index, states)

    def pin_memory(self) -> GatheredStates:
        """The same in pinned memory, for asynchronous copies."""
        states = self.states if self.states.is_cuda else self.states.pin_memory()
        return GatheredStates(states, self.index.pin_memory())


def _gather_index(starts: np.ndarray, lengths: np.ndarray, width: int, padding: int) -> Tensor:
    """The rows (B, width) of texts with the given starts and lengths (B,), and the row `padding` after their end."""
    position = np.arange(width)
    return torch.from_numpy(np.where(position < lengths[:, None], starts[:, None] + position, padding))


class DeviceCachedStates:
    """Cached states of some texts on one device, in their order; those of identical texts are stored once."""

    def __init__(self, cached: CachedStates, device: torch.device | str):
        texts, row = np.unique(cached.spans, axis=0, return_inverse=True)
        ends = np.cumsum(texts[:, 1])
        self.starts, self.lengths = (ends - texts[:, 1])[row.ravel()], texts[row.ravel(), 1]
        self.padding_row = int(ends[-1])  # a row of zeros
        self.states = torch.zeros(self.padding_row + 1, cached.width, dtype=torch.float16, device=device)
        for first in progress(range(0, len(texts), _TEXTS_PER_COPY), "states to the GPU", unit="batches"):
            chunk = slice(first, first + _TEXTS_PER_COPY)
            states = np.concatenate([cached.states[start : start + n] for start, n in texts[chunk].tolist()])
            end = int(ends[chunk][-1])
            self.states[end - len(states) : end] = torch.from_numpy(states)

    def padded_batch(self, rows: Sequence[int], width: int) -> GatheredStates:
        """The states (B, width, D) of the texts at `rows`, zero-padded."""
        chosen = np.asarray(rows)
        index = _gather_index(self.starts[chosen], self.lengths[chosen], width, self.padding_row)
        return GatheredStates(self.states, index)


def load_on_device(cached: CachedStates, device: torch.device, gigabytes: float) -> DeviceCachedStates | None:
    """The states on a GPU; None on a CPU, or if they need more than `gigabytes` or than half of the free memory."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()  # memory that torch reserves would not count as free
    free, _ = torch.cuda.mem_get_info(device)
    if cached.nbytes > min(gigabytes * 1e9, _FREE_SHARE * free):
        return None
    try:
        return DeviceCachedStates(cached, device)
    except torch.OutOfMemoryError:  # another process took the memory in the meantime
        return None
