"""The processes of a study's runs: servers that fork a process for each run, so that libraries are imported once.

This module is also the program of a server: it reads tasks from standard input, one line of JSON each, and prints the
exit code of each. When standard input is closed, so also when the study is killed, it ends with its run.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from nosology.core import NosologyError
from nosology.core.files import write_json
from nosology.core.parallel import end_with_parent
from nosology.models.registry import load_class
from nosology.models.train import software

COMMAND = (sys.executable, "-m", "nosology.reproduce.run_process")
_STDIN, _STDOUT, _STDERR = range(3)


@dataclass(frozen=True)
class Task:
    """A run as its process receives it, in JSON."""

    function: str
    recipe: dict[str, Any]
    corpora: list[str]  # folders
    options: dict[str, Any]
    folder: str  # for the files of this run
    cache: str  # folder for what runs share: embeddings, encoder states, language models
    result: str  # file to write
    failure: str  # file to write instead
    log: str = ""  # file for all output
    keep_bundles: bool = False


class RunServer:
    """A process that executes runs, one at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )

    def start(self, task: Task) -> None:
        """Starts a run."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; its exit code is reported
            self._process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
            self._process.stdin.flush()  # the pipe stays open: the process ends when it is closed

    def exit_code(self) -> int | None:
        """The exit code of the run, or of the server if that has ended; None while the run goes on."""
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], 0)[0] and (line := self._process.stdout.readline()):
            return int(line)
        return self._process.poll()

    def is_alive(self) -> bool:
        """Whether another run can be started."""
        return self._process.poll() is None

    def end(self) -> None:
        """Ends the server and its run."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def main() -> None:
    """Executes the tasks on standard input, each in a process, and prints their exit codes."""
    exit_codes = os.fdopen(os.dup(_STDOUT), "w")  # what libraries print goes into the log of the run
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    for line in iter(sys.stdin.buffer.readline, b""):
        task = Task(**json.loads(line))
        with Path(task.log).open("ab") as log:
            os.dup2(log.fileno(), _STDOUT)
            os.dup2(log.fileno(), _STDERR)
        if sys.platform == "linux":
            _import_libraries(task)
        process = context.Process(target=_execute, args=(task,))
        process.start()
        if _STDIN in wait([_STDIN, process.sentinel]):  # the study is gone
            os.killpg(0, signal.SIGKILL)
        process.join()
        print(process.exitcode, file=exit_codes, flush=True)


def _import_libraries(task: Task) -> None:
    """Imports what the run imports, so that the next run has it already. Errors are raised in the run."""
    with suppress(Exception):
        import_module(task.function.partition(":")[0])
        for part in ("model", "trainer"):
            load_class(task.recipe["kind"], part)


def _execute(task: Task) -> None:
    """Executes a run and writes its result or the reason of its failure; exit code 1 if it failed."""
    end_with_parent()
    started = time.monotonic()
    module, _, name = task.function.partition(":")
    try:
        result = getattr(import_module(module), name)(task)
    except NosologyError as error:
        why = str(error)
    except Exception as error:  # its message may contain note text: only type and place are stored
        print("".join(traceback.format_tb(error.__traceback__)), type(error).__name__, file=sys.stderr)
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
    else:
        if not task.keep_bundles:
            shutil.rmtree(task.folder, ignore_errors=True)
        seconds = round(time.monotonic() - started, 3)
        write_json(task.result, result | {"recipe": task.recipe, "seconds": seconds} | software())
        return
    write_json(task.failure, {"why": why})
    sys.exit(1)


if __name__ == "__main__":
    main()
