"""Duplicates (equal words) and near-duplicates (high Jaccard similarity of word shingles) among notes.

A note is the set of its word shingles (runs of 5 words), each hashed to 32 bits. Candidate pairs come from banded
MinHash signatures; a pair counts only if the exact Jaccard similarity of its two sets reaches the threshold.
Notes of the same template are rarely near-duplicates: a pair at 0.8 differs in about one word of forty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from zlib import crc32

import numpy as np

from nosology.core import ConfigError

SHINGLE = 5
THRESHOLD = 0.8

_BINS = 256
_RECALL = 0.995
_LARGE = 64  # a larger bucket is compared with this many pivots, not pair by pair
# Words consist of letters, digits and bytes of characters outside ASCII. All other bytes are blanks.
_BLANKS = bytes(byte if chr(byte).isalnum() or byte > 127 else ord(" ") for byte in range(256))
_MIX = np.random.default_rng(0x6E6F736F).integers(0, 2**64, size=64, dtype=np.uint64) | np.uint64(1)
# The order in which an empty bin searches a full one to borrow from, the same for all notes.
_BORROW = np.stack([np.random.default_rng([7, bin_]).permutation(_BINS) for bin_ in range(_BINS)])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The digest of the words of a text (empty without words) and its sorted shingle hashes (uint32)."""

    digest: bytes
    shingles: np.ndarray


def shingle_fingerprint(text: str, shingle: int = SHINGLE) -> Fingerprint:
    """The fingerprint of a text. It ignores case, blanks, line ends, punctuation and de-identification marks."""
    words = text.lower().encode(errors="replace").translate(_BLANKS).split()
    if not words:
        return Fingerprint(b"", np.empty(0, dtype=np.uint32))
    hashes = np.fromiter(map(crc32, words), dtype=np.uint64, count=len(words))
    length = min(shingle, len(words))
    runs = np.zeros(len(words) - length + 1, dtype=np.uint64)
    for offset in range(length):
        runs += hashes[offset : offset + len(runs)] * _MIX[offset]
    runs ^= runs >> np.uint64(31)
    runs *= _MIX[-1]
    digest = blake2b(b" ".join(words), digest_size=16).digest()
    shingles = np.sort((runs >> np.uint64(32)).astype(np.uint32))
    return Fingerprint(digest, shingles[np.append(True, shingles[1:] != shingles[:-1])])


def exact_pairs(prints: Iterable[Fingerprint]) -> np.ndarray:
    """Pairs (P, 2) of positions with equal words: each copy with its first occurrence."""
    first: dict[bytes, int] = {}
    pairs = [
        (first[print_.digest], position)
        for position, print_ in enumerate(prints)
        if print_.digest and first.setdefault(print_.digest, position) != position
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def near_pairs(prints: list[Fingerprint], threshold: float = THRESHOLD) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (P, 2) of positions with different words whose similarity reaches `threshold`, and their similarity (P).

    The first of equal notes represents all. The recall is about 99 % for pairs at the threshold and higher for closer
    pairs. If more than 64 notes are near-duplicates of each other, each is paired with some of the others only.
    """
    first = {print_.digest: position for position, print_ in reversed(list(enumerate(prints))) if print_.digest}
    positions = np.array(sorted(first.values()), dtype=np.int64)
    if len(positions) < 2:
        return np.empty((0, 2), dtype=np.int64), np.empty(0)
    signatures = np.stack([_signature(prints[position].shingles) for position in positions])
    # Three standard deviations of the estimate below the threshold: practically no pair is lost.
    floor = threshold - 3 * np.sqrt(threshold * (1 - threshold) / _BINS)
    candidates = np.empty(0, dtype=np.int64)
    rng = np.random.default_rng(0)
    rows = _band_width(threshold)
    for start in range(0, _BINS - rows + 1, rows):
        left, right = _band(signatures, signatures[:, start : start + rows], floor, threshold, rng)
        candidates = np.union1d(candidates, np.minimum(left, right) * len(positions) + np.maximum(left, right))
    pairs = positions[np.column_stack(np.divmod(candidates, len(positions)))]
    similarity = np.array([jaccard(prints[a].shingles, prints[b].shingles) for a, b in pairs])
    keep = similarity >= threshold
    return pairs[keep], similarity[keep]


def check_threshold(threshold: float) -> None:
    """Raise ConfigError if the search for near-duplicates does not support the threshold."""
    if not 0.5 <= threshold <= 1:
        raise ConfigError(f"the similarity of near-duplicates must lie in [0.5, 1]; got {threshold:g}")


def jaccard(left: np.ndarray, right: np.ndarray) -> float:
    """The Jaccard similarity of two sorted sets of hashes; 0 for two empty sets."""
    union = len(np.union1d(left, right))
    return (len(left) + len(right) - union) / union if union else 0.0


def _band_width(threshold: float) -> int:
    """The widest band that finds a pair at the threshold with a probability of `_RECALL`."""
    widths = [rows for rows in range(1, 33) if 1 - (1 - threshold**rows) ** (_BINS // rows) >= _RECALL]
    return max(widths, default=1)


def _signature(shingles: np.ndarray) -> np.ndarray:
    """One MinHash value per bin (uint32, 256): the smallest hash with the bin as top byte. Empty bins borrow."""
    bins = (shingles >> np.uint32(24)).astype(np.intp)
    full, where = np.unique(bins, return_index=True)
    values = np.zeros(_BINS, dtype=np.uint32)
    values[full] = shingles[where]
    if len(full) < _BINS:
        occupied = np.zeros(_BINS, dtype=bool)
        occupied[full] = True
        empty = np.flatnonzero(~occupied)
        values[empty] = values[_BORROW[empty, occupied[_BORROW[empty]].argmax(axis=1)]]
    return values


def _band(
    signatures: np.ndarray, band: np.ndarray, floor: float, threshold: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Two index arrays: pairs that agree on the whole band, with an estimated similarity of at least `floor`.

    Each round compares one pivot per bucket with the rest of the bucket. In a large bucket the matches of a pivot are
    removed with it, so that many near-duplicates take linear and not quadratic time.
    """
    keys = band.astype(np.uint64) @ _MIX[: band.shape[1]]
    order = np.lexsort((rng.random(len(keys)), keys))
    bucket = np.cumsum(np.append(True, keys[order][1:] != keys[order][:-1])) - 1
    size = np.bincount(bucket)[bucket]
    order, bucket, large = order[size > 1], bucket[size > 1], size[size > 1] > _LARGE
    lefts, rights = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for _ in range(_LARGE):
        if len(order) < 2:
            break
        head = np.append(True, bucket[1:] != bucket[:-1])
        pivot = order[np.flatnonzero(head)[np.cumsum(head) - 1]]
        estimate = np.where(head, 0.0, _agreement(signatures, order, pivot))
        match = estimate >= floor
        lefts.append(pivot[match])
        rights.append(order[match])
        stay = ~head & ~(large & (estimate >= threshold))
        order, bucket, large = order[stay], bucket[stay], large[stay]
    return np.concatenate(lefts), np.concatenate(rights)


def _agreement(signatures: np.ndarray, left: np.ndarray, right: np.ndarray, chunk: int = 20_000) -> np.ndarray:
    """The share of equal signature values of each pair, an unbiased estimate of its Jaccard similarity."""
    parts = [
        (signatures[left[start : start + chunk]] == signatures[right[start : start + chunk]]).mean(axis=1)
        for start in range(0, len(left), chunk)
    ]
    return np.concatenate(parts)
