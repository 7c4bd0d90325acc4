"""Work by processes that are forked from this one, and so share what it has loaded."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, TypeVar

from nosology.core.errors import ConfigError
from nosology.core.parallel import check_workers, end_with_parent

T = TypeVar("T")
R = TypeVar("R")

_BLOCK = 8
_BLOCKS_PER_WORKER = 4


def freeze_objects() -> None:
    """Excludes all objects that exist now from garbage collection until the process ends.

    Collections then need not visit large tables again and again, nor copy the memory that forked processes share.
    """
    gc.freeze()
    atexit.register(_unfreeze)


def _unfreeze() -> None:
    """Lets the last collection free the objects of triton, which reports those that are left as leaks. Without triton
    no collection at the end saves 0.7 s."""
    if "triton" in sys.modules:
        gc.unfreeze()


def forked_map(
    function: Callable[[T], R],
    items: Iterable[T],
    workers: int,
    *,
    block: int = _BLOCK,
    ahead: int = _BLOCKS_PER_WORKER,
) -> Iterator[R]:
    """function(item) for each item, in order, by processes that are forked from this one; items are read lazily.

    Forked processes share the memory of this one: what the function has loaded is not loaded again, and nothing but
    items and results passes between processes. A few items, and all on systems other than Linux, are computed in this
    process; there are no more processes than blocks of items, and at most eight per core (else ConfigError). An
    exception is raised in the place of its item, after the results before it. The processes start before this function
    returns, so that threads of the caller that begin later do not matter.

    block: items that a process takes at a time. ahead: blocks per process that are in memory, waiting or done.
    """
    check_workers("workers", workers)
    blocks = _blocks(iter(items), block)
    first = list(islice(blocks, workers))
    if len(first) < 2 or sys.platform != "linux":
        return _results((_compute(function, block), error) for block, error in chain(first, blocks))
    workers = len(first)
    pool = ProcessPoolExecutor(workers, get_context("fork"), _set_function, (function,))
    pool.submit(int).result()  # starts all processes
    return _results(_computed(pool, chain(first, blocks), workers * ahead))


_Block = tuple[list[Any], Exception | None]  # items or results, and what was raised after them


def _blocks(items: Iterator[Any], size: int) -> Iterator[_Block]:
    """The items in blocks; the last one has the error that ended the reading."""
    block: list[Any] = []
    try:
        for item in items:
            block.append(item)
            if len(block) == size:
                yield block, None
                block = []
    except Exception as error:
        yield block, error
        return
    if block:
        yield block, None


def _compute(function: Callable[[Any], Any], items: list[Any]) -> _Block:
    """The results of some items up to the first error."""
    results = []
    for item in items:
        try:
            results.append(function(item))
        except Exception as error:
            return results, error
    return results, None


def _computed(
    pool: ProcessPoolExecutor, blocks: Iterable[_Block], limit: int
) -> Generator[tuple[_Block, Exception | None], None, None]:
    """The results of each block and the error in reading it; at most `limit` blocks are in memory."""
    waiting: deque[tuple[Future[_Block], Exception | None]] = deque()
    try:
        for block, error in blocks:
            waiting.append((pool.submit(_compute_forked, block), error))
            if len(waiting) >= limit:
                future, failed = waiting.popleft()
                yield future.result(), failed
        while waiting:
            future, failed = waiting.popleft()
            yield future.result(), failed
    except BrokenProcessPool as broken:
        raise ConfigError(
            "a worker process was killed, perhaps for lack of memory: the number of workers must be lower"
        ) from broken
    finally:
        pool.shutdown(cancel_futures=True)


def _results(computed: Generator[tuple[_Block, Exception | None], None, None]) -> Iterator[Any]:
    """The results one by one; raises the errors in their places, after the processes have ended."""
    with closing(computed):
        for (results, error), failed_reading in computed:
            yield from results
            if raised := error or failed_reading:
                raise raised


_function: Callable[[Any], Any] | None = None  # of a forked process


def _set_function(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others


def _compute_forked(items: list[Any]) -> _Block:
    assert _function is not None
    return _compute(_function, items)
