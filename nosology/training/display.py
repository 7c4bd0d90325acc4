"""What a training run says on standard error: a bar on a terminal, elsewhere one line an epoch."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

from nosology.training.schedule import Schedule


class Display:
    """Epoch, step, loss, notes a second and the time that is left; silent on all processes but the first."""

    def __init__(self, title: str, schedule: Schedule, step: int, *, silent: bool = False):
        self.title, self.schedule, self.silent = title, schedule, silent
        self.first, self.started = step, time.monotonic()
        self._bar: Any = None
        if not silent and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
            self._bar = progress.Progress(
                *columns, progress.TextColumn("{task.fields[says]}"), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task(title, total=schedule.steps, completed=step, says="")
            self._bar.start()

    def step(self, epoch: int, step: int, loss: float, rate: float) -> None:
        """Moves the bar to a step."""
        if self._bar:
            says = f"loss {loss:.4g}  {_pace(rate)}  {self._left(step)}"
            self._bar.update(self._task, completed=step, description=self._name(epoch), says=says)

    def epoch(self, epoch: int, step: int, loss: float, metrics: dict[str, float], rate: float) -> None:
        """Says how an epoch went."""
        if self.silent:
            return
        found = "".join(f"  {name} {value:.4f}" for name, value in metrics.items())
        self.say(f"{self._name(epoch)}  loss {loss:.4g}{found}  {_pace(rate)}  {self._left(step)}")

    def say(self, line: str) -> None:
        """One line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False)
        elif not self.silent:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar:
            self._bar.stop()

    def _name(self, epoch: int) -> str:
        return f"{self.title}: epoch {epoch + 1}/{self.schedule.epochs}"

    def _left(self, step: int) -> str:
        """The time left at the pace so far, validation included; early stopping may cut it short."""
        seconds = (time.monotonic() - self.started) / max(1, step - self.first) * (self.schedule.steps - step)
        return f"{timedelta(seconds=round(seconds))} left"


def _pace(rate: float) -> str:
    return f"{rate:,.0f} notes/s" if rate >= 10 else f"{rate:.2g} notes/s"  # a large net on a CPU: not 0
