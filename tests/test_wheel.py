"""A wheel built from the repository and installed elsewhere codes a note, trains a coder and serves the workbench."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from nosology.core import __version__
from nosology.corpora.notes_file import note_to_json
from tests.conftest import small_notes

ROOT = Path(__file__).parents[1]


class Installed:
    """The `nosology` command of a fresh virtual environment, run in a folder of its own."""

    def __init__(self, folder: Path, bin_folder: Path):
        self.folder, self.bin = folder, bin_folder
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.env["NOSOLOGY_CACHE"] = str(folder / "cache")

    def run(self, program: str, *arguments: str) -> str:
        """What the command prints; a failure shows its error output."""
        words = [str(self.bin / program), *arguments]
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    """The wheel in a virtual environment; its dependencies come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, so that no build folder appears in the repository
    shutil.copytree(ROOT / "nosology", source / "nosology", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("nosology-*.whl")
    shutil.rmtree(source)
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
    )
    # A path file adds the directory alone: the editable install in it is not followed.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    work = folder / "work"
    work.mkdir()
    return Installed(work, environment / "bin")


def test_wheel_codes_a_note_without_training(installed):
    where = installed.run("python", "-c", "import nosology; print(nosology.__file__)")
    assert where.startswith(str(installed.bin.parent))
    assert installed.run("nosology", "--version").strip() == f"nosology {__version__}"
    (installed.folder / "note.txt").write_text("Admitted with community-acquired pneumonia. Hypothyroidism.")
    coded = json.loads(installed.run("nosology", "code", "day-one", "note.txt", "--json"))
    accepted = {item["code"] for item in coded["codes"] if item["accepted"]}
    assert {"J18.9", "E03.9"} <= accepted


def test_wheel_trains_the_linear_coder_and_serves_the_workbench(installed):
    lines = [json.dumps(note_to_json(note)) for note in small_notes(80)]
    (installed.folder / "notes.jsonl").write_text("\n".join(lines) + "\n")
    installed.run("nosology", "corpus", "prepare", "table", "notes.jsonl", "--out", "corpus")
    installed.run("nosology", "train", "linear", "--corpus", "corpus", "--out", "bundle")
    installed.run("nosology", "evaluate", "bundle", "--corpus", "corpus", "--split", "test", "--out", "report")
    metrics = json.loads((installed.folder / "report" / "metrics.json").read_text())
    assert metrics["micro_f1"] > 0.9
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [str(installed.bin / "nosology"), "serve", "bundle", "--port", str(port)],
        cwd=installed.folder,
        env=installed.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        page = _first_page(f"http://127.0.0.1:{port}", server)
    finally:
        server.send_signal(signal.SIGINT)
        output, _ = server.communicate(timeout=60)
    assert "Sign in" in page, output


def _first_page(address: str, server: subprocess.Popen[str], seconds: float = 120) -> str:
    """The page at / once the server is ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            with urlopen(f"{address}/health/ready", timeout=5):
                pass
            with urlopen(address, timeout=30) as answer:
                return answer.read().decode()
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    return ""
