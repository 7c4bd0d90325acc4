"""The API reference builds from the docstrings without a warning: two packages here, all with `make docs`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_api_reference_builds_without_warnings(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "api_reference.py"), "--out", str(tmp_path)]
    command += ["nosology.core", "nosology.serving"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "nosology/serving/coder.html" in index
    assert "code_all" in (tmp_path / "nosology/serving/coder.html").read_text(encoding="utf-8")


def test_unknown_package_is_an_error(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "api_reference.py"), "--out", str(tmp_path)]
    command += ["nosology.core", "nosology.servin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no module is in nosology.servin" in done.stderr
