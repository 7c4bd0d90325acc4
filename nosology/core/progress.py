"""Progress of long work on standard error: a bar or spinner on a terminal, elsewhere a line every 30 seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

LOG_SECONDS = 30.0
_PAUSE_SECONDS = 5.0  # work that follows within this time continues the earlier work
_BAR_SECONDS = 0.2  # between updates of a bar


class ProgressCounter:
    """How much of some work is done."""

    def __init__(self) -> None:
        self.count = 0

    def advance(self, n: int = 1) -> None:
        """Counts n more items."""
        self.count += n

    def value(self) -> int:
        """The number of items that are done."""
        return self.count


def progress(items: Iterable[T], title: str, *, total: int | None = None, unit: str = "notes") -> Iterator[T]:
    """The items one by one; standard error shows count, rate and remaining time. unit: what is counted."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with counting(title, total=total, unit=unit) as counter:
        for item in items:
            yield item
            counter.advance()


@contextmanager
def counting(
    title: str, *, total: int | None = None, unit: str = "notes", counter: ProgressCounter | None = None
) -> Iterator[ProgressCounter]:
    """A counter that the block advances; standard error shows count, rate and remaining time.

    counter: one of a subclass, whose `value` may come from other processes.
    """
    counter = counter or ProgressCounter()
    if not sys.stderr.isatty():
        started = time.monotonic()
        with _reported(title, lambda: _status(counter.value(), time.monotonic() - started, total, unit)):
            yield counter
        return
    from rich import progress as rich_progress
    from rich.console import Console

    bar = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[rate]}"),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task, end = bar.add_task(title, total=total, rate=""), threading.Event()

        def update() -> None:
            while not end.wait(_BAR_SECONDS):
                speed = bar.tasks[task].speed
                bar.update(task, completed=counter.value(), rate=_rate(speed, unit) if speed else "")

        threading.Thread(target=update, daemon=True).start()
        try:
            yield counter
        finally:
            end.set()


def _status(count: int, seconds: float, total: int | None, unit: str) -> str:
    """Count, rate, remaining time and end time in one line."""
    speed = count / max(seconds, 1e-9)
    counted = f"{count:,} {unit}" if total is None else f"{count:,} of {total:,} {unit}"
    if not (total and speed):
        return f"{counted}, {_rate(speed, unit)}"
    return f"{counted}, {_rate(speed, unit)}, {time_left(max(0, total - count) / speed)}"


def time_left(seconds: float) -> str:
    """The remaining time of some work and the time of day when it ends: 0:02:10 left, until 14:05."""
    left, now = timedelta(seconds=round(seconds)), datetime.now()
    end = now + left
    day = "" if end.date() == now.date() else f"{end:%d %b} "
    return f"{left} left, until {day}{end:%H:%M}"


@contextmanager
def activity(title: str, *, spinner: bool = True, extra_seconds: float = 0.0) -> Iterator[None]:
    """Shows that the work of the block goes on: a spinner on a terminal, elsewhere a line every 30 seconds.

    spinner: False if the block shows bars of its own. extra_seconds: before each line, for lines that others may print.
    """
    if sys.stderr.isatty():
        if not spinner:
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(title):
            yield
        return
    started = time.monotonic()
    with _reported(title, lambda: f"{timedelta(seconds=round(time.monotonic() - started))} so far", extra_seconds):
        yield


def _rate(speed: float, unit: str) -> str:
    return f"{speed:,.0f} {unit}/s" if speed >= 10 else f"{speed:.2g} {unit}/s"


_Report = tuple[str, Callable[[], str], float]  # title, status, and seconds to wait beyond the usual ones


class _Lines:
    """The lines of a log: one every 30 seconds says how far the innermost work is.

    The time runs on from one work to the next, so that many short ones do not pass in silence.
    """

    def __init__(self) -> None:
        self.reports: list[_Report] = []  # the innermost last
        self.lock = threading.Lock()
        self.since = 0.0  # the last line, or the start of the work
        self.idle_since = 0.0
        self.is_printing = False

    def add(self, report: _Report) -> None:
        with self.lock:
            now = time.monotonic()
            is_command = report[2] > 0  # a new command continues no work
            if not self.reports and (is_command or now - self.idle_since > _PAUSE_SECONDS):
                self.since = now
            self.reports.append(report)
            if not self.is_printing:
                self.is_printing = True
                threading.Thread(target=self._print, daemon=True).start()

    def remove(self, report: _Report) -> None:
        with self.lock:
            self.reports.remove(report)
            self.idle_since = time.monotonic()

    def _print(self) -> None:
        while True:
            time.sleep(min(1.0, LOG_SECONDS))
            with self.lock:
                if not self.reports:
                    self.is_printing = False
                    return
                title, status, extra_seconds = self.reports[-1]
                is_due = time.monotonic() - self.since >= LOG_SECONDS + extra_seconds
            if is_due:
                print_progress(f"{title}: {status()}")


_lines = _Lines()
# The thread that prints is not forked, and may have held the lock.
os.register_at_fork(after_in_child=_lines.__init__)


def print_progress(line: str) -> None:
    """Prints a line of progress on standard error; the next line of other work comes 30 seconds later."""
    _lines.since = time.monotonic()
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _reported(title: str, status: Callable[[], str], extra_seconds: float = 0.0) -> Iterator[None]:
    """Prints a line with title and status every 30 seconds while this is the innermost work."""
    report = (title, status, extra_seconds)
    _lines.add(report)
    try:
        yield
    finally:
        _lines.remove(report)
