"""Triton, the language of our GPU kernels, where it is installed: it comes with the CUDA builds of torch alone."""

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
