"""Hospitals in processes of their own, as `nosology federate` starts them, and what kill -9 does to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nosology.corpora.corpus import write_corpus
from nosology.federated.deploy.credentials import make_server_papers, make_site_key
from nosology.federated.deploy.processes import free_port, wait_until
from tests.conftest import small_notes
from tests.encoders.tiny_embedders import tiny_embedder

NOTES = {"anna": 48, "berta": 64, "clara": 80}  # a quarter each for dev and test
ODD = "dora"  # has another embedder
PATIENCE = 150  # seconds: starting a site alone takes 9 of computing


class Program:
    """A `nosology federate` in a process of its own."""

    def __init__(self, folder: Path, name: str, *words: str):
        self.log = folder / f"{name}.out"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "nosology", "federate", *words]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # whoever runs the tests in the background may have made them deaf to Ctrl-C
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def says(self, words: str, seconds: float = PATIENCE) -> str:
        """All it has said, once the words are in it."""
        wait_until(lambda: words in self.text or self.process.poll() is not None, seconds, pause=0.05)
        assert words in self.text, f"{words!r} not in:\n{self.text[-3000:]}"
        return self.text

    def ends(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.text[-3000:]}") from None

    def kill(self) -> None:
        """kill -9 of the process and of all that it started."""
        for pid in reversed([self.process.pid, *descendants(self.process.pid)]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def left_behind(folder: Path) -> list[str]:
    """The command lines of processes that name a folder."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{folder}/" in words and int(line.parent.name) != os.getpid():
                found.append(words)
    return found


@dataclass
class Federation:
    """A server and its sites on this machine; each has a folder of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    programs: list[Program] = field(default_factory=list)
    sites: dict[str, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.papers = make_server_papers(self.folder / "papers", ["localhost"])
        first = tiny_embedder(self.folder / "embedder", "bert")
        for seed, name in enumerate([*NOTES, ODD]):
            home = self.folder / name
            make_site_key(home, name)
            (self.folder / "keys").mkdir(exist_ok=True)
            (home / f"{name}.pub").rename(self.folder / "keys" / f"{name}.pub")
            notes = small_notes(NOTES.get(name, 48), seed)
            write_corpus(notes, home / "corpus", source={"kind": "test"}, filters=[], counts={})
            if name == ODD:
                tiny_embedder(home / "embedder", "bert", ("max",))
            else:
                (home / "embedder").symlink_to(first)
        (self.folder / "run").mkdir()
        (self.folder / "run" / "embedder").symlink_to(first)

    def start_server(self) -> None:
        words = ["--certificates", str(self.papers.folder), "--sites", str(self.folder / "keys")]
        words += ["--out", str(self.folder / "state"), "--port", str(self.port), "--listen", "127.0.0.1"]
        self.server = self._start(self.folder, "server", "server", *words)

    def _start(self, folder: Path, name: str, *words: str) -> Program:
        self.programs.append(Program(folder, name, *words))
        return self.programs[-1]

    def start_site(self, name: str, key: Path | None = None) -> Program:
        home = self.folder / name
        words = [name, "--server", f"localhost:{self.port}", "--root", str(self.papers.root)]
        words += ["--key", str(key or home / f"{name}.key"), "--corpus", "corpus", "--cache", "cache"]
        words += ["--set", "embedder.model=embedder", "--min-notes", "2"]
        program = self._start(home, name if key is None else "stranger", "site", *words)
        if key is None:
            self.sites[name] = program
        return program

    def run(self, out: str, **federation: float) -> Program:
        """A run of a small head; federation: settings that differ."""
        settings = {"rounds": 4, "min_sites": 3, "quorum": 2, "min_site_notes": 2, "min_notes": 2, "wait": 30}
        words = ["heads-mlp", "--server", f"localhost:{self.port}", "--root", str(self.papers.root), "--out", out]
        words += ["--set", "embedder.model=embedder", "--set", "model.widths=[16]", "--set", "training.batch=8"]
        for name, value in (settings | federation).items():
            words += ["--set", f"federation.{name}={value}"]
        return self._start(self.folder / "run", f"run-{out}", "run", *words)

    def end(self) -> None:
        running = [program for program in self.programs if program.process.poll() is None]
        for program in running:
            program.process.terminate()
        for program in running:
            program.ends()
        assert wait_until(lambda: not left_behind(self.folder), 10), left_behind(self.folder)


def wait_for_file(path: Path, seconds: float = PATIENCE) -> None:
    """Waits for a file, closely."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.01)
