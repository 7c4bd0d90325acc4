"""Forked processes give the results of one process, in order, with errors in their places."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nosology.core import ConfigError, DataError
from nosology.core.forked_processes import forked_map
from nosology.core.parallel import cores
from tests.core.process_family import end_of, family


def square(number: int) -> tuple[int, int]:
    if number == 61:
        raise ValueError("61")
    return number * number, os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_order_and_an_error_comes_in_its_place(workers):
    results = forked_map(square, iter(range(100)), workers)
    found = [next(results) for _ in range(61)]
    with pytest.raises(ValueError, match="61"):
        next(results)
    assert [value for value, _ in found] == [number * number for number in range(61)]
    assert all((process == os.getpid()) == (workers == 1) for _, process in found)


def test_a_few_items_are_computed_in_this_process():
    assert list(forked_map(square, range(8), 2)) == [(number * number, os.getpid()) for number in range(8)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_reading_comes_after_the_results_before_it(workers):
    def items() -> Iterator[int]:
        yield from range(30)
        raise DataError("row 31")

    results = forked_map(square, items(), workers)
    assert [next(results)[0] for _ in range(30)] == [number * number for number in range(30)]
    with pytest.raises(DataError, match="row 31"):
        next(results)


def test_no_more_processes_than_blocks_of_items():
    before = family(os.getpid())
    results = forked_map(square, range(20), 8 * cores())
    assert len(family(os.getpid())) == len(before) + 3  # eight items are a block
    assert len(list(results)) == 20


def test_far_more_processes_than_cores_are_refused():
    with pytest.raises(ConfigError, match=rf"workers must be at most {8 * cores()}, 8 per core; got 5000"):
        forked_map(square, range(20), 5000)


def test_items_are_read_only_as_far_as_needed():
    read = []

    def items() -> Iterator[int]:
        for number in range(10_000):
            read.append(number)
            yield 0

    results = forked_map(square, items(), 2)
    next(results)
    assert len(read) <= 2 * 4 * 8
    results.close()


def test_what_was_loaded_is_not_pickled():
    loaded = [lambda number: number + 1]  # functions of this kind cannot be pickled
    assert list(forked_map(lambda number: loaded[0](number), range(40), 2)) == list(range(1, 41))


def test_a_killed_process_is_reported():
    with pytest.raises(ConfigError, match="number of workers must be lower"):
        list(forked_map(lambda _: os.kill(os.getpid(), 9), range(40), 2))


ENDLESS = """
import os, time
from nosology.core.forked_processes import forked_map

def work(number):
    if number:
        time.sleep(600)
    return os.getpid()

for process in forked_map(work, (number // 8 % 2 for number in range(40)), 2):
    print(process, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_when_the_first_one_is_killed(number):
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        first.stdout.readline()  # the next items wait in both processes
        workers = family(first.pid)[1:]
        assert len(workers) == 2
        first.send_signal(number)
        first.wait()
        assert end_of(workers) == []
