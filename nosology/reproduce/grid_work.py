"""The runs of a grid as processes: one that crashes or is killed is noted down, and the others go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from nosology.core.files import write_json
from nosology.reproduce.grid import Folder, Run, read
from nosology.reproduce.grid_run import Task

Say = Callable[[str], None]
COMMAND = (sys.executable, "-m", "nosology.reproduce.grid_run")
_LOOK = 0.05  # seconds between looks at the processes


@dataclass(frozen=True)
class Worker:
    """How the processes of a grid are started."""

    folder: Folder
    cache: Path
    jobs: int = 1
    keep: bool = False  # bundles
    stacked: bool = False
    top: tuple[int, ...] = (10, 50)
    command: Sequence[str] = COMMAND

    def work(self, runs: Sequence[Run], say: Say = lambda line: None) -> dict[str, str]:
        """Does the runs that have no result yet; why some still have none, by run."""
        found = self.folder.found(runs)
        for name in found:  # of a run that ended well, but after its grid was killed
            self._clear(name)
        open_runs = [run for run in runs if run.id not in found]
        say(f"{len(runs)} runs: {len(found)} are done, {len(open_runs)} to do")
        vectors, failed = self._embedded(open_runs, say)
        watch = _Watch(open_runs, self.jobs, say)
        watch.learn(runs, found)
        for run in [run for run in open_runs if run.id in failed]:
            write_json(self.folder.failure(run.id), {"why": failed[run.id]})
            watch.ended(run, None, failed[run.id])
        able = [run for run in open_runs if run.id not in failed]
        tasks = ((run.id, self._task(run, vectors[_pair(run)])) for run in able)
        by_id = {run.id: run for run in able}
        for name, result, why in self._processes(tasks):
            watch.ended(by_id[name], result, why)
            if result is None:
                failed[name] = why
        return failed

    def _embedded(self, runs: Iterable[Run], say: Say) -> tuple[dict[tuple, dict[str, Any]], dict[str, str]]:
        """The names of the vectors of each corpus and embedder, all in the cache now; the runs that have none."""
        pairs: dict[tuple, list[Run]] = {}
        for run in runs:
            pairs.setdefault(_pair(run), []).append(run)
        vectors, failed = {}, {}
        for pair, mine in pairs.items():
            run = mine[0]
            name = f"embed-{run.id}"
            say(f"vectors of {run.corpus}, {run.embedder}")
            for _, result, why in self._processes([(name, self._task(run, None, name))]):
                if result is None:
                    failed |= {other.id: f"its notes were not embedded: {why}" for other in mine}
                else:
                    vectors[pair] = result
                for told in (self.folder.result(name), self.folder.failure(name)):
                    told.unlink(missing_ok=True)
        return vectors, failed

    def _task(self, run: Run, vectors: dict[str, Any] | None, name: str = "") -> Task:
        name = name or run.id
        return Task(
            "embed" if vectors is None else run.setting,
            str(run.notes.folder.resolve()),
            str(self.cache.resolve()),
            run.recipe.model_dump(mode="json"),
            str(self.folder.result(name).resolve()),
            str(self.folder.failure(name).resolve()),
            str(self.folder.bundle(name).resolve()),
            self.keep,
            self.stacked,
            self.top,
            vectors,
        )

    def _processes(self, tasks: Iterable[tuple[str, Task]]) -> Iterable[tuple[str, dict[str, Any] | None, str]]:
        """Name, result and, where that is None, the reason, of each task in the order in which they end."""
        waiting, running = deque(tasks), dict[str, subprocess.Popen]()
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    name, task = waiting.popleft()
                    running[name] = self._start(name, task)
                ended = [name for name, process in running.items() if process.poll() is not None]
                for name in ended:
                    yield name, *self._outcome(name, running.pop(name))
                if not ended:
                    time.sleep(_LOOK)
        finally:
            for process in running.values():
                process.kill()
                process.wait()
                with suppress(BrokenPipeError):
                    process.stdin.close()

    def _start(self, name: str, task: Task) -> subprocess.Popen:
        log = self.folder.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        for stale in (self.folder.result(name), self.folder.failure(name)):
            stale.unlink(missing_ok=True)
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))  # more would wait for each other
        environment = {"OMP_NUM_THREADS": threads} | os.environ
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        # The pipe stays open: when it ends, because this process does, the other one ends too.
        with suppress(BrokenPipeError):  # it is gone already, as its exit code will say
            process.stdin.write(json.dumps(task.to_json()).encode() + b"\n")
            process.stdin.flush()
        return process

    def _outcome(self, name: str, process: subprocess.Popen) -> tuple[dict[str, Any] | None, str]:
        with suppress(BrokenPipeError):
            process.stdin.close()
        result = read(self.folder.result(name))
        if result is not None:
            self._clear(name)
            return result, ""
        why = (read(self.folder.failure(name)) or {}).get("why") or _ended(process.returncode)
        write_json(self.folder.failure(name), {"why": why})
        return None, why

    def _clear(self, name: str) -> None:
        """Removes what only runs without a result need."""
        for path in (self.folder.failure(name), self.folder.log(name)):
            path.unlink(missing_ok=True)


def _pair(run: Run) -> tuple[str, str]:
    return run.corpus, run.recipe.embedder.model


def _ended(code: int) -> str:
    """What an exit code says."""
    if code == -signal.SIGKILL:
        return "it was killed: did memory run out?"
    if code < 0:
        return f"it ended by {signal.Signals(-code).name}"
    return f"it ended with code {code} and no result"


class _Watch:
    """A line a run, with the time that is left."""

    def __init__(self, runs: Sequence[Run], jobs: int, say: Say):
        self.left, self.total = Counter(run.setting for run in runs), len(runs)
        self.jobs, self.say = jobs, say
        self.seconds: dict[str, list[float]] = {}

    def learn(self, runs: Iterable[Run], found: Mapping[str, dict[str, Any]]) -> None:
        """Takes times from results of another call."""
        for run in runs:
            if run.id in found:
                self.seconds.setdefault(run.setting, []).append(found[run.id].get("seconds", 0.0))

    def ended(self, run: Run, result: dict[str, Any] | None, why: str) -> None:
        """Says how a run ended."""
        self.left[run.setting] -= 1
        if result is None:
            told = f"failed: {why}"
        else:
            self.seconds.setdefault(run.setting, []).append(result["seconds"])
            f1 = result["metrics"]["micro_f1"]
            told = f"micro F1 {'undefined' if f1 is None else f'{f1:.4f}'}, {result['seconds']:.0f} s"
        self.say(f"[{self.total - self.left.total()}/{self.total}] {run.title}: {told}{self._remaining()}")

    def _remaining(self) -> str:
        every = [seconds for times in self.seconds.values() for seconds in times]
        if not self.left.total() or not every:
            return ""
        means = {setting: fmean(self.seconds.get(setting, every)) for setting in self.left}
        seconds = sum(count * means[setting] for setting, count in self.left.items()) / self.jobs
        for size, unit in ((3600, "h"), (60, "min")):
            if seconds > 2 * size:
                return f"; about {seconds / size:.0f} {unit} left"
        return f"; about {seconds:.0f} s left"
