"""CPU time of a function, measured so that other tests and other programs do not change the verdict."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

_ATTEMPTS = 5  # one slow run may be chance; five are not


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of one call, without garbage collection, which takes as long as other tests have left objects."""
    gc.disable()
    try:
        start = time.process_time()
        function()
        return time.process_time() - start
    finally:
        gc.enable()


def assert_cpu_seconds(function: Callable[[], object], limit: float) -> None:
    """Fails if no call of the function takes less CPU time than the limit."""
    times: list[float] = []
    while not times or (times[-1] >= limit and len(times) < _ATTEMPTS):
        times.append(cpu_seconds(function))
    assert min(times) < limit, times


def assert_linear_time(function: Callable[[int], object], size: int) -> None:
    """Fails if an input of 8 times the size takes over 32 times the CPU time (quadratic time: 64 times)."""
    function(size // 64)  # loads what is loaded once
    small = max(0.002, *(cpu_seconds(lambda: function(size // 8)) for _ in range(2)))
    assert_cpu_seconds(lambda: function(size), 32 * small)
