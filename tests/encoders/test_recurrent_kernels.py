"""The GRU and LSTM kernels return the same as torch and compile for NVIDIA GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nosology.encoders import gru_kernel, lstm_kernel

KINDS = {"bias": "*fp32", "d_first": "*fp32", "counters": "*i32"}
SIZES = dict.fromkeys(("words", "notes", "first", "last"), "i32")


def test_kernels_agree_with_torch():
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.encoders.interpreted_recurrent_kernels"]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=200)
    assert "the kernels agree with torch" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("module", [gru_kernel, lstm_kernel])
@pytest.mark.parametrize(
    "name, flags", [("_forward", {"SYNC": True}), ("_backward", {"DERIVE": True, "PROPAGATE": True})]
)
def test_kernel_compiles(module, name, flags, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(module, name)
    constants = {"H": 512, "ROWS": 32, "UNITS": 16, "CHUNK": 128, **flags}
    known = SIZES | KINDS | dict.fromkeys(constants, "constexpr")
    signature = {argument: known.get(argument, "*bf16") for argument in kernel.arg_names}
    options = {"num_warps": 4, "enable_fp_fusion": True, "launch_cooperative_grid": True}
    source = ASTSource(kernel, signature, constants)
    assert compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
