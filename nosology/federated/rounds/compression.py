"""Compression of updates (`federation.compression`): a site sends changes of weights since the start of the round.

- bf16: every change as bfloat16, two bytes. The relative error of a change is at most 2^-8.
- top_k: of each matrix the `top_k` share of changes that are largest in absolute value, with their positions.
- low_rank: of each matrix the product of two matrices of rank `rank`, the best approximation of its change.

Arrays with one dimension (biases, norms) are always bf16; so are matrices that would not become smaller. With top_k and
low_rank a site adds what it could not send to its change of the next round (error feedback), so nothing is lost.
numpy has no bfloat16: the bits travel as uint16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.federation_setup import Arrays

INDICES, VALUES, LEFT, RIGHT = "/indices", "/values", "/left", "/right"  # after the name of a matrix
_OVERSAMPLING, _POWER_STEPS = 8, 2  # of the randomised singular value decomposition


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits (uint16) of the nearest bfloat16 numbers; ties to even. NaN and infinity stay what they are."""
    with np.errstate(over="ignore"):
        values = np.asarray(values, np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isfinite(values), rounded, (bits >> 16) | 64 * np.isnan(values).astype(np.uint64)).astype(
        np.uint16
    )


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """The numbers (float32) of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def matrix_form(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of an array as a matrix: its first dimension, and the others together."""
    return shape[0], math.prod(shape[1:])


def parts_of(first: np.ndarray, settings: FederationSettings) -> dict[str, tuple[tuple[int, ...], type]]:
    """Suffix, shape and dtype of the arrays that stand for the change of an array."""
    if first.ndim >= 2 and settings.compression == "top_k":
        kept = math.ceil(settings.top_k * first.size)
        if 3 * kept < first.size:  # a position takes four bytes, a value two
            return {INDICES: ((kept,), np.uint32), VALUES: ((kept,), np.uint16)}
    if first.ndim >= 2 and settings.compression == "low_rank":
        rows, columns = matrix_form(first.shape)
        if settings.rank * (rows + columns) < rows * columns:
            return {LEFT: ((rows, settings.rank), np.uint16), RIGHT: ((settings.rank, columns), np.uint16)}
    return {"": (first.shape, np.uint16)}


def compress(
    arrays: Mapping[str, np.ndarray], initial: Mapping[str, np.ndarray], settings: FederationSettings, residual: Arrays
) -> tuple[Arrays, Arrays]:
    """What stands for the changes since the start of the round, and what it leaves out; the latter is empty for bf16.

    residual: what the last round has left out; empty in the first round.
    """
    packed: Arrays = {}
    left_out: Arrays = {}
    for name, array in arrays.items():
        change = array.astype(np.float64) - initial[name]
        if (parts := parts_of(initial[name], settings)).keys() != {""}:
            change = change + residual.get(name, 0.0)
        found = _compress_array(change, parts)
        packed |= {name + suffix: part for suffix, part in found.items()}
        if parts.keys() != {""}:
            left_out[name] = (change - _expand(found, change.shape)).astype(np.float32)
    return packed, left_out


def _compress_array(change: np.ndarray, parts: dict[str, tuple[tuple[int, ...], type]]) -> Arrays:
    """The arrays by suffix that stand for a change."""
    if INDICES in parts:
        flat, kept = change.ravel(), parts[INDICES][0][0]
        indices = np.sort(np.argpartition(-np.abs(flat), kept - 1)[:kept])
        return {INDICES: indices.astype(np.uint32), VALUES: to_bf16(flat[indices])}
    if LEFT in parts:
        left, right = _low_rank(change.reshape(matrix_form(change.shape)), parts[LEFT][0][1])
        return {LEFT: to_bf16(left), RIGHT: to_bf16(right)}
    return {"": to_bf16(change)}


def _low_rank(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices (M, rank) and (rank, N) whose product is near the best of this rank (Halko et al. 2011)."""
    rng = np.random.default_rng(rank)
    basis = matrix @ rng.standard_normal((matrix.shape[1], min(rank + _OVERSAMPLING, *matrix.shape)))
    for _ in range(_POWER_STEPS):
        basis = matrix @ np.linalg.qr(matrix.T @ np.linalg.qr(basis)[0])[0]
    basis = np.linalg.qr(basis)[0]
    left, values, right = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    root = np.sqrt(values[:rank])  # shared by both sides, so that neither has very large or small numbers
    return basis @ left[:, :rank] * root, root[:, None] * right[:rank]


def _expand(parts: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The change (float64) that the arrays of `_compress_array` stand for."""
    if INDICES in parts:
        change = np.zeros(math.prod(shape))
        change[parts[INDICES]] = from_bf16(parts[VALUES])
        return change.reshape(shape)
    if LEFT in parts:
        left, right = (from_bf16(parts[side]).astype(np.float64) for side in (LEFT, RIGHT))
        return (left @ right).reshape(shape)
    return from_bf16(parts[""]).astype(np.float64)


def compressed_names(initial: Mapping[str, np.ndarray], settings: FederationSettings) -> set[str]:
    """The names of the arrays of a compressed update."""
    return {name + suffix for name, first in initial.items() for suffix in parts_of(first, settings)}


def decompress(
    arrays: Mapping[str, np.ndarray], name: str, first: np.ndarray, settings: FederationSettings
) -> np.ndarray | str:
    """The weight whose change since the start of the round `compress` has packed; a text says why it is invalid."""
    parts = {}
    for suffix, (shape, dtype) in parts_of(first, settings).items():
        part = parts[suffix] = arrays[name + suffix]
        if part.shape != shape or part.dtype != dtype:
            return f"{name} must be compressed (federation.compression)"
    if INDICES in parts:
        indices = parts[INDICES].astype(np.int64)
        if (np.diff(indices) <= 0).any() or indices[-1] >= first.size:
            return f"{name} must have ascending positions below {first.size}"
    with np.errstate(over="ignore", invalid="ignore"):
        return (first.astype(np.float64) + _expand(parts, first.shape)).astype(first.dtype)
