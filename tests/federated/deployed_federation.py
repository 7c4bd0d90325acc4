"""A federation of real processes, started with `nosology federate`, that tests can kill."""

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
from nosology.federated.deploy.credentials import create_server_credentials, create_site_key
from nosology.federated.deploy.flower_process import free_port, wait_until
from tests.conftest import small_notes
from tests.encoders.tiny_embedders import tiny_embedder

NOTES = {"anna": 32, "berta": 40, "clara": 48}  # a quarter each is dev and test
ODD = "dora"  # has another embedder
TIMEOUT = 150  # seconds; starting a site takes 9 seconds of computing


class Program:
    """A process of `nosology federate`."""

    def __init__(self, folder: Path, name: str, *arguments: str):
        self.log = folder / f"{name}.out"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "nosology", "federate", *arguments]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # tests that run in the background may ignore Ctrl-C
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str, seconds: float = TIMEOUT) -> str:
        """The output of the process, once it contains a text."""
        wait_until(lambda: text in self.text or self.process.poll() is not None, seconds, pause=0.05)
        assert text in self.text, f"{text!r} not in:\n{self.text[-3000:]}"
        return self.text

    def exit_code(self, seconds: float = TIMEOUT) -> int:
        """The exit code of the process, once it ends."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.text[-3000:]}") from None

    def kill(self) -> None:
        """Kills the process and all its descendants with SIGKILL."""
        for pid in reversed([self.process.pid, *descendants(self.process.pid)]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid: int) -> list[int]:
    """The process ids of all descendants of a process."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    result, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        result += children
        todo += children
    return result


def remaining_processes(folder: Path) -> list[str]:
    """The command lines of running processes that contain a folder."""
    result = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{folder}/" in command and int(line.parent.name) != os.getpid():
                result.append(command)
    return result


@dataclass
class Federation:
    """A server and its sites on this machine, each with its own folder."""

    folder: Path
    port: int = field(default_factory=free_port)
    programs: list[Program] = field(default_factory=list)
    sites: dict[str, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.credentials = create_server_credentials(self.folder / "credentials", ["localhost"])
        embedder = tiny_embedder(self.folder / "embedder", "bert")
        for seed, name in enumerate([*NOTES, ODD]):
            site_folder = self.folder / name
            create_site_key(site_folder, name)
            (self.folder / "keys").mkdir(exist_ok=True)
            (site_folder / f"{name}.pub").rename(self.folder / "keys" / f"{name}.pub")
            notes = small_notes(NOTES.get(name, 32), seed)
            write_corpus(notes, site_folder / "corpus", source={"kind": "test"}, filters=[], counts={})
            if name == ODD:
                tiny_embedder(site_folder / "embedder", "bert", ("max",))
            else:
                (site_folder / "embedder").symlink_to(embedder)
        (self.folder / "run").mkdir()
        (self.folder / "run" / "embedder").symlink_to(embedder)

    def start_server(self) -> None:
        arguments = ["--certificates", str(self.credentials.folder), "--sites", str(self.folder / "keys")]
        arguments += ["--out", str(self.folder / "state"), "--port", str(self.port), "--listen", "127.0.0.1"]
        self.server = self._start(self.folder, "server", "server", *arguments)

    def _start(self, folder: Path, name: str, *arguments: str) -> Program:
        self.programs.append(Program(folder, name, *arguments))
        return self.programs[-1]

    def start_site(self, name: str) -> Program:
        site_folder = self.folder / name
        arguments = [name, "--server", f"localhost:{self.port}", "--root", str(self.credentials.root)]
        arguments += ["--key", str(site_folder / f"{name}.key"), "--corpus", "corpus", "--cache", "cache"]
        arguments += ["--set", "embedder.model=embedder", "--min-notes", "2"]
        arguments += [
            *(word for kind in ("heads", "caml", "dual_laat", "lexicon") for word in ("--kind", kind)),
            "--words",
        ]
        self.sites[name] = self._start(site_folder, name, "site", *arguments)
        return self.sites[name]

    def run(self, out: str, **federation: float) -> Program:
        """A run of a small head. federation: settings of the table [federation]."""
        settings = {"rounds": 4, "min_sites": 3, "quorum": 2, "min_site_notes": 2, "min_notes": 2, "timeout": 30}
        arguments = [
            "heads-mlp",
            "--server",
            f"localhost:{self.port}",
            "--root",
            str(self.credentials.root),
            "--out",
            out,
        ]
        arguments += ["--set", "embedder.model=embedder", "--set", "model.widths=[16]", "--set", "training.batch=8"]
        for name, value in (settings | federation).items():
            arguments += ["--set", f"federation.{name}={value}"]
        return self._start(self.folder / "run", f"run-{out}", "run", *arguments)

    def stop(self) -> None:
        running = [program for program in self.programs if program.process.poll() is None]
        for program in running:
            program.process.terminate()
        for program in running:
            program.exit_code()
        assert wait_until(lambda: not remaining_processes(self.folder), 10), remaining_processes(self.folder)


def wait_for_file(path: Path, seconds: float = TIMEOUT) -> None:
    """Waits until a file exists."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.01)
