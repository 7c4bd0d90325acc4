"""Counts of words and phrases that sites have not agreed on: sums of hashed counts (a count-min sketch).

Sites hash each item into one bucket in each of several rows and count the patients per bucket. The sum over all sites
tells which buckets have enough patients, and only items of such buckets are named. Cormode and Muthukrishnan (2005).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

ROWS = 4  # hash functions; a rare item is named by mistake if it shares its bucket with frequent ones in every row
_MAX_NAME = 200  # characters of an item

_MIX = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)  # of splitmix64
_STEP = np.uint64(0x9E3779B97F4A7C15)


def hash_items(items: Iterable[str]) -> np.ndarray:
    """Hashes (N,), uint64, of texts, the same in every process."""
    digests = b"".join(hashlib.blake2b(item.encode(), digest_size=8).digest() for item in items)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def hash_pairs(items: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Hashes (N,), uint64, of pairs of an item (its number) and a label."""
    return _mixed((items.astype(np.uint64) << np.uint64(32)) | labels.astype(np.uint64))


def _mixed(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _MIX[0]
        values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))


def positions(hashes: np.ndarray, buckets: int) -> np.ndarray:
    """The positions (ROWS, N) of items in a vector of ROWS x buckets counts."""
    with np.errstate(over="ignore"):
        rows = [_mixed(hashes + np.uint64(row + 1) * _STEP) % np.uint64(buckets) for row in range(ROWS)]
    return np.stack(rows).astype(np.int64) + np.arange(ROWS)[:, None] * buckets


def hashed_sum(hashes: np.ndarray, values: np.ndarray, buckets: int) -> np.ndarray:
    """The sums (ROWS x buckets,) of the values (N,) of items."""
    at = positions(hashes, buckets)
    return np.bincount(at.ravel(), np.tile(values, ROWS), minlength=ROWS * buckets)


def estimates(sums: np.ndarray, hashes: np.ndarray, buckets: int) -> np.ndarray:
    """The least sum (N,) of the buckets of each item: at least its own sum, as values are not negative."""
    at = positions(hashes, buckets)
    least = sums[at[0]]
    for row in at[1:]:
        np.minimum(least, sums[row], out=least)
    return least


def passing(hashes: np.ndarray, bits: np.ndarray, buckets: int) -> np.ndarray:
    """Which items (N,) are in allowed buckets in every row; bits: one per bucket, packed."""
    allowed = np.unpackbits(bits, count=ROWS * buckets).astype(bool)
    return np.asarray(allowed[positions(hashes, buckets)].all(axis=0))


def pack_names(names: Iterable[str]) -> np.ndarray:
    """Texts without line breaks as bytes, uint8."""
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def unpack_names(data: np.ndarray) -> list[str]:
    """The texts of `pack_names`."""
    return data.tobytes().decode().split("\n") if len(data) else []


def read_names(data: np.ndarray, bits: np.ndarray, buckets: int) -> list[str] | str:
    """The items that a site names, or why they are invalid."""
    if data.dtype != np.uint8 or data.ndim != 1:
        return "its names are not bytes"
    try:
        names = unpack_names(data)
    except UnicodeDecodeError:
        return "its names are not texts"
    if not all(0 < len(name) <= _MAX_NAME and name.isprintable() for name in names):
        return "its names are not words of notes"
    if names and not passing(hash_items(names), bits, buckets).all():
        return "it names words or phrases of too few patients"
    return names


def sparse_sum(vectors: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> np.ndarray:
    """The sum (size,) of vectors given by positions and values."""
    total = np.zeros(size)
    for index, value in vectors:
        np.add.at(total, index, value)
    return total
