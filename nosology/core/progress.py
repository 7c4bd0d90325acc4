"""A progress bar on standard error with rate and remaining time; silent if it is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], title: str, *, total: int | None = None, unit: str = "notes") -> Iterator[T]:
    """The items one by one; a progress bar shows count, rate and remaining time."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich import progress as rich_progress
    from rich.console import Console

    if total is None and isinstance(items, Sized):
        total = len(items)
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
            bar.update(task, advance=1, rate=f"{speed:,.0f} {unit}/s" if speed else "")
