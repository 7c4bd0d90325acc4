"""The GPU kernels return the same as plain torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_kernels_agree_with_torch():
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.attention.interpreted_kernels"]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=200)
    assert "the kernels agree with torch" in done.stdout, done.stderr[-2000:]
