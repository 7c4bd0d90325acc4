"""Progress of a training, on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

from nosology.core.progress import LOG_SECONDS, print_progress, time_left


class ProgressDisplay:
    """Epoch, loss, speed and remaining time: a bar on a terminal, elsewhere a line per epoch and every 30 seconds."""

    def __init__(self, title: str, epochs: int, steps: int, first_step: int, *, silent: bool = False):
        self.title, self.epochs, self.steps, self.first_step, self.silent = title, epochs, steps, first_step, silent
        self.started = self._printed = time.monotonic()
        self._bar: Any = None
        if not silent and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
            self._bar = progress.Progress(
                *columns, progress.TextColumn("{task.fields[status]}"), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task(title, total=steps, completed=first_step, status="")
            self._bar.start()

    def update(self, epoch: int, step: int, loss: float, notes_per_second: float) -> None:
        """Moves the bar to a step, or prints a line if the last one is 30 seconds old."""
        status = f"loss {loss:.4g}  {_speed(notes_per_second)}  {self._remaining(step)}"
        if not self._bar and time.monotonic() - self._printed >= LOG_SECONDS:
            self.print_line(f"{self._description(epoch)}, step {step} of {self.steps}  {status}")
        elif self._bar:
            self._bar.update(self._task, completed=step, description=self._description(epoch), status=status)

    def end_epoch(self, epoch: int, step: int, loss: float, metrics: dict[str, float], notes_per_second: float) -> None:
        """Prints the line of an epoch."""
        shown = "".join(f"  {name} {value:.4f}" for name, value in metrics.items())
        speed, remaining = _speed(notes_per_second), self._remaining(step)
        self.print_line(f"{self._description(epoch)}  loss {loss:.4g}{shown}  {speed}  {remaining}")

    def print_line(self, line: str) -> None:
        """Prints one line, above the bar if there is one."""
        self._printed = time.monotonic()
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False)
        elif not self.silent:
            print_progress(line)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()

    def _description(self, epoch: int) -> str:
        return f"{self.title}: epoch {epoch + 1}/{self.epochs}"

    def _remaining(self, step: int) -> str:
        """The remaining time at the speed so far, validation included; early stopping may shorten it."""
        seconds_per_step = (time.monotonic() - self.started) / max(1, step - self.first_step)
        return time_left(seconds_per_step * (self.steps - step))


def _speed(notes_per_second: float) -> str:
    # a large net on a CPU must not show 0
    return f"{notes_per_second:,.0f} notes/s" if notes_per_second >= 10 else f"{notes_per_second:.2g} notes/s"
