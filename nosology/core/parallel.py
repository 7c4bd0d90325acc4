"""Work on several cores: results in the order of the items, the same for any number of processes."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from multiprocessing import parent_process, resource_tracker
from typing import Any, TypeVar

from nosology.core.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

_WORKERS_PER_CORE = 8
_POLL_SECONDS = 1.0  # of a process that waits for the end of its parent


def cores() -> int:
    """The number of cores that this process may use; LOKY_MAX_CPU_COUNT lowers it."""
    from joblib import cpu_count

    return cpu_count()


def check_workers(name: str, workers: int) -> None:
    """Raises ConfigError for so many processes that they would fill the machine."""
    most = _WORKERS_PER_CORE * cores()
    if workers > most:
        raise ConfigError(f"{name} must be at most {most}, {_WORKERS_PER_CORE} per core; got {workers}")


def parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """The items in parts of the given size, the last one smaller."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of the given size, the last one smaller; items are read when they are needed."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def parallel_map(function: Callable[..., R], arguments: Sequence[tuple[Any, ...]], workers: int) -> Iterator[R]:
    """function(*arguments) for each item, in order; with one worker or one item, in this process.

    Processes stay for the next call, so what a function caches in its process is computed once per process. They end
    with this process.
    """
    if workers == 1 or len(arguments) <= 1:
        yield from (function(*items) for items in arguments)
        return
    from joblib import Parallel, delayed

    # joblib starts a new process for one that was idle for long. Where warnings are errors, its thread would end, and
    # this call would wait forever.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)
    pool = Parallel(min(workers, len(arguments)), return_as="generator", initializer=end_with_parent)
    with ExitStack() as stack:
        resource_tracker.ensure_running()  # its start, which joblib would cause, unblocks the signal
        with _ctrl_c_blocked():
            stack.enter_context(pool)
            results = pool(delayed(function)(*items) for items in arguments)
        yield from results


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Delays Ctrl-C in this thread to the end of the block; in processes that it starts, Ctrl-C has no effect.

    They would print tracebacks of their imports. This process ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Makes this process of multiprocessing or joblib end when the one that started it is gone, even if it was killed.

    The sentinel is a pipe whose other end only the parent has, and forked processes that started later and end first.
    The kernel signals its end, and the signal ends the process, even in a long call that holds the interpreter's lock.
    The thread is for a parent that was gone before. Processes of joblib have no sentinel: a thread looks whether they
    have another parent. (PR_SET_PDEATHSIG would end them with the thread that started them.)
    """
    parent = parent_process()
    if parent is None:
        return
    if parent.sentinel is None:
        threading.Thread(target=_exit_after, args=(partial(_wait_for_new_parent, parent.pid),), daemon=True).start()
        return
    pipe = int(parent.sentinel)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_exit_after, args=(parent.join,), daemon=True).start()


def _exit_after(wait: Callable[[], None]) -> None:
    wait()
    os._exit(1)


def _wait_for_new_parent(known: int | None) -> None:
    while os.getppid() == known:
        time.sleep(_POLL_SECONDS)
