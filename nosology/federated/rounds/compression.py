"""Compression of updates: the changes of weights as bfloat16, two bytes each.

A change keeps 8 significant bits, so its relative error is at most 2^-8. The weights themselves stay in the precision
of the training. numpy has no bfloat16: the bits travel as uint16.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nosology.federated.rounds.federation_setup import Arrays


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits (uint16) of the nearest bfloat16 numbers; ties to even. NaN and infinity stay what they are."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isfinite(values), rounded, (bits >> 16) | 64 * np.isnan(values).astype(np.uint64)).astype(
        np.uint16
    )


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """The numbers (float32) of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def compress(arrays: Mapping[str, np.ndarray], initial: Mapping[str, np.ndarray]) -> Arrays:
    """The changes since the start of the round as bfloat16 bits."""
    with np.errstate(over="ignore"):
        return {name: to_bf16(array.astype(np.float64) - initial[name]) for name, array in arrays.items()}


def decompress(bits: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The weights whose change since the start of the round is given as bfloat16 bits."""
    return (initial.astype(np.float64) + from_bf16(bits)).astype(initial.dtype)
