"""Every GPU kernel compiles for an NVIDIA H100 or H200; no GPU is needed for that."""

from __future__ import annotations

from itertools import product

import pytest
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nosology.attention import kernels

OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
TARGET = GPUTarget("cuda", 90, 32)
LISTS = {"words": "*i32", "lengths": "*i64", "bounds": "*i32", "lasts": "*i32", "targets": "*i64"}
SIZES = "notes width columns k scope windows half labels cells high wide size"
FLAGS = ("STATIC", "RANKED", "RANKER_GRADIENT", "ALL", "ZERO")
BF16 = dict.fromkeys(("scores", "weights", "gradient", "hidden", "out"), "*bf16")
CASES = [
    ("_masked_softmax", BF16, {"BLOCK": 256}),
    ("_softmax_backward", BF16, {"BLOCK": 256}),
    ("_relu_backward", BF16, {"BLOCK": 256}),
    ("_select", {}, {"BLOCK": 128}),
    ("_pairs", {"labels": "*fp32", "words": "*fp32"}, {"ROWS": 64, "COLUMNS": 64}),
    ("_pairs_backward", {"labels": "*fp32", "words": "*fp32"}, {"ROWS": 64, "COLUMNS": 64}),
    ("_cross_entropy", {"logits": "*bf16"}, {"IGNORED": 0, "BLOCK": 1024}),
]
for flags in product((False, True), repeat=len(FLAGS)):
    if dict(zip(FLAGS, flags))["RANKED"] or not any(flags[2:]):
        kinds = {"products": "*bf16", "targets": "*fp32"}
        CASES.append(("_attend", kinds, {**dict(zip(FLAGS, flags)), "BLOCK": 256}))


@pytest.mark.parametrize("name, kinds, constants", CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_kernel_compiles(name, kinds, constants, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(kernels, name)
    known = dict.fromkeys(SIZES.split(), "i32") | LISTS | kinds | dict.fromkeys(constants, "constexpr")
    signature = {argument: known.get(argument, "*fp32") for argument in kernel.arg_names}
    compiled = compile_kernel(ASTSource(kernel, signature, constants), target=TARGET, options=OPTIONS)
    assert compiled.asm["ptx"]
