"""Whether a safetensors file has NaN. Reads the bytes: numpy has no bfloat16, and torch may be missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

# The integer type of the same size, and the bits of infinity; NaN has larger bits without its sign.
_FLOATS = {"F64": ("<u8", 0x7FF0 << 48), "F32": ("<u4", 0x7F80 << 16), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
_BLOCK = 1 << 24  # values that are in memory at once


def has_nan(path: Path) -> bool:
    """Whether a float tensor of the file has NaN; False for a file that cannot be read, which its loader refuses."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= path.stat().st_size else {}
        data = (
            np.memmap(path, np.uint8, "r", offset=8 + size) if path.stat().st_size > 8 + size else np.zeros(0, np.uint8)
        )
        tensors = [value for name, value in header.items() if name != "__metadata__" and value["dtype"] in _FLOATS]
        return any(_is_any_nan(data[slice(*tensor["data_offsets"])], *_FLOATS[tensor["dtype"]]) for tensor in tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _is_any_nan(data: np.ndarray, kind: str, infinity: int) -> bool:
    bits = data.view(kind)
    unsigned = bits.dtype.type(2 ** (8 * bits.itemsize - 1) - 1)
    blocks = (bits[start : start + _BLOCK] for start in range(0, len(bits), _BLOCK))
    return any(bool(((block & unsigned) > infinity).any()) for block in blocks)
