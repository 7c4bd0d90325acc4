"""States of tokens on disk, each text once, at its true length: what a frozen encoder says need not be asked twice.

    CACHE/<key>/encoder.json   what made the states
    CACHE/<key>/states.f16     (tokens of all texts, D) float16, little-endian, one text behind another
    CACHE/<key>/index.bin      (N,) records: SHA-256 of the text's tokens, where its states begin, how many there are

`append_only.py` says how it is kept whole. States are read through a memory map: the system keeps in memory what is
used most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from nosology.core import DataError
from nosology.encoders.append_only import INDEX, AppendOnly

MANIFEST, STATES = "encoder.json", "states.f16"
FORMAT = 1
RECORD = np.dtype([("hash", "V32"), ("start", "<u8"), ("tokens", "<u4")])
_HALF = np.dtype("<f2")

Encode = Callable[[list[np.ndarray]], Iterator[tuple[np.ndarray, list[np.ndarray]]]]  # -> rows, states (T, D) of each


class StateCache(AppendOnly):
    """The states of one encoder in a cache folder."""

    manifest, data, record = MANIFEST, STATES, RECORD

    def __init__(self, folder: str | Path, key: str, width: int):
        self.width = width
        made_by = {"format": FORMAT, "key": key, "width": width}
        super().__init__(Path(folder) / key, made_by, tuple(made_by))

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return self._size(STATES)

    def add(self, texts: Sequence[np.ndarray], encode: Encode) -> Places:
        """Where the states of texts are, given as arrays of token ids; those that are not there yet are made first.

        encode: rows and states, batch by batch, of texts in an order of its own.
        """
        names = [_name(text) for text in texts]
        missing = {name: text for name, text in zip(names, texts) if name not in self._rows}
        waiting = list(missing)
        for rows, states in encode(list(missing.values())) if missing else ():
            self._append([waiting[row] for row in rows], states)
        found = self.records[[self._rows[name] for name in names]]
        states = self._map(STATES, _HALF, (self.nbytes // self._row, self.width))
        return Places(states, np.stack([found["start"], found["tokens"]], axis=1).astype(np.int64))

    def _append(self, names: Sequence[bytes], states: Sequence[np.ndarray]) -> None:
        """Writes a batch."""

        def made(new: list[int]) -> tuple[bytes, np.ndarray]:
            lengths = np.array([len(states[i]) for i in new], dtype=np.int64)
            records = np.zeros(len(new), dtype=RECORD)
            records["hash"] = np.frombuffer(b"".join(names[i] for i in new), dtype="V32")
            records["start"] = self.nbytes // self._row + np.cumsum(lengths) - lengths
            records["tokens"] = lengths
            return b"".join(np.ascontiguousarray(states[i], dtype=_HALF).tobytes() for i in new), records

        self._add(names, made)

    def _whole(self) -> tuple[int, int]:
        records, end = self._size(INDEX) // RECORD.itemsize, 0
        if records:
            [last] = np.fromfile(self.folder / INDEX, dtype=RECORD, count=1, offset=(records - 1) * RECORD.itemsize)
            end = (int(last["start"]) + int(last["tokens"])) * self._row
        if self.nbytes < end:
            raise DataError(f"{self.folder} is damaged: it holds fewer states than its index names; remove it")
        return end, records

    @property
    def _row(self) -> int:
        """Bytes of one token."""
        return self.width * _HALF.itemsize


class Places:
    """The states of some texts, in their order."""

    def __init__(self, states: np.ndarray, places: np.ndarray):
        """states: (tokens of all texts, D), mapped. places: (N, 2) where each text begins and how long it is."""
        self.states, self.places = states, places

    def __len__(self) -> int:
        return len(self.places)

    @property
    def width(self) -> int:
        """Numbers a token, D."""
        return self.states.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the states, those of texts that are alike once."""
        return int(np.unique(self.places, axis=0)[:, 1].sum()) * self.width * _HALF.itemsize

    def __getitem__(self, row: int) -> np.ndarray:
        """The states (T, D) of a text."""
        start, length = self.places[row]
        return self.states[start : start + length]

    def rectangle(self, rows: Sequence[int], width: int, into: np.ndarray | None = None) -> np.ndarray:
        """The states (B, width, D) of some texts, 0 after their ends; into: an array of that shape to be filled."""
        found = np.empty((len(rows), width, self.width), dtype=_HALF) if into is None else into
        plain = self.states.view(np.ndarray)  # each part of a memory map is dear
        for target, (start, length) in zip(found, self.places[rows].tolist()):
            target[:length] = plain[start : start + length]
            target[length:] = 0
        return found

    def means(self) -> np.ndarray:
        """The mean (N, D) of each text's states, float32; 0 where it has none."""
        empty = np.zeros(self.width, np.float32)
        parts = (self[row] for row in range(len(self)))
        return np.stack([part.mean(0, dtype=np.float32) if len(part) else empty for part in parts])


def _name(tokens: np.ndarray) -> bytes:
    """The SHA-256 of a text's tokens; the text itself is never stored."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes()).digest()
