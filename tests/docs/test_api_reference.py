"""The API reference builds from the docstrings without a warning."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_api_reference_builds_without_warnings(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "api_reference.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "nosology/serving/coder.html" in index
    assert "code_all" in (tmp_path / "nosology/serving/coder.html").read_text(encoding="utf-8")
