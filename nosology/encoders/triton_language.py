"""Triton, in which the GPU kernels are written, if it is installed: only CUDA builds of torch bring it."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

# Any: the annotations of triton describe neither constexpr arguments nor launch options.
triton: Any = None
with suppress(ImportError):
    triton = import_module("triton")
AVAILABLE = triton is not None
tl: Any = triton and triton.language
jit: Any = triton.jit if AVAILABLE else lambda kernel: kernel
