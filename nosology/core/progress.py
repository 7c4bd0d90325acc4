"""Progress of long work on standard error: a bar or spinner on a terminal, elsewhere a line every 30 seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")

LOG_SECONDS = 30.0


def progress(items: Iterable[T], title: str, *, total: int | None = None, unit: str = "notes") -> Iterator[T]:
    """The items one by one; standard error shows count, rate and remaining time. unit: what is counted."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if not sys.stderr.isatty():
        yield from _logged(items, title, total, unit)
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
        task = bar.add_task(title, total=total, rate="")
        for item in items:
            yield item
            speed = bar.tasks[task].speed
            bar.update(task, advance=1, rate=_rate(speed, unit) if speed else "")


def _logged(items: Iterable[T], title: str, total: int | None, unit: str) -> Iterator[T]:
    """The items; a line every 30 seconds says how many have been taken."""
    started, count = time.monotonic(), 0

    def status() -> str:
        speed = count / max(time.monotonic() - started, 1e-9)
        counted = f"{count:,} {unit}" if total is None else f"{count:,} of {total:,} {unit}"
        left = f", {timedelta(seconds=round((total - count) / speed))} left" if total and speed else ""
        return f"{counted}, {_rate(speed, unit)}{left}"

    with _reported(title, status):
        for item in items:
            yield item
            count += 1


@contextmanager
def activity(title: str, *, spinner: bool = True) -> Iterator[None]:
    """Shows that the work of the block goes on: a spinner on a terminal, elsewhere a line every 30 seconds.

    spinner: False if the block shows bars of its own.
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
    with _reported(title, lambda: f"{timedelta(seconds=round(time.monotonic() - started))} so far"):
        yield


def _rate(speed: float, unit: str) -> str:
    return f"{speed:,.0f} {unit}/s" if speed >= 10 else f"{speed:.2g} {unit}/s"


_reports: list[tuple[str, Callable[[], str]]] = []  # title and status of the work that is going on, the innermost last


@contextmanager
def _reported(title: str, status: Callable[[], str]) -> Iterator[None]:
    """Prints a line with title and status every 30 seconds while this is the innermost work."""
    report, end = (title, status), threading.Event()

    def print_lines() -> None:
        while not end.wait(LOG_SECONDS):
            if _reports and _reports[-1] is report:
                print(f"{title}: {status()}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=print_lines, daemon=True)
    _reports.append(report)
    thread.start()
    try:
        yield
    finally:
        end.set()
        _reports.remove(report)
