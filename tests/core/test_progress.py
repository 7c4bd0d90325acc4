"""Progress of long work without a terminal, with a short interval between lines."""

import os
import re
import time

import pytest

from nosology.core import progress as progress_module
from nosology.core.progress import ProgressCounter, activity, counting, progress


class Stream:
    """What was printed on standard error, which is no terminal here."""

    def __init__(self, capsys):
        self.text, self.capsys = "", capsys

    def wait_for(self, pattern):
        end = time.monotonic() + 30
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, self.text
            time.sleep(0.01)
            self.text += self.capsys.readouterr().err


@pytest.fixture
def stream(monkeypatch, capsys):
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.01)
    return Stream(capsys)


def test_progress_prints_count_rate_and_remaining_time(stream):
    items = progress(range(3), "coding")
    assert next(items) == 0 and next(items) == 1
    stream.wait_for(r"coding: 1 of 3 notes, \S+ notes/s, \d+:\d\d:\d\d left, until (\d\d \w+ )?\d\d:\d\d\n")
    assert list(items) == [2]


def test_progress_without_a_total_prints_what_is_counted(stream):
    items = progress(iter("abc"), "fitting", unit="codes")
    assert next(items) == "a" and next(items) == "b"
    stream.wait_for(r"fitting: 1 codes, \S+ codes/s\n")


def test_only_the_innermost_work_is_reported(stream):
    with activity("training"):
        stream.wait_for(r"training: 0:00:0\d so far")
        with activity("counting"):
            stream.wait_for("counting: ")
            before = stream.text.count("training")
            stream.wait_for("(counting: [^\n]*\n){3}")
            assert stream.text.count("training") <= before + 1  # a line may have been on its way
        stream.wait_for("counting[^\n]*\ntraining")


def test_short_work_prints_nothing(capsys):
    with activity("training"):
        assert list(progress(range(3), "coding")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_many_short_works_do_not_pass_in_silence(stream, monkeypatch):
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.3)
    for number in range(30):
        list(progress((time.sleep(0.02) for _ in range(2)), f"epoch {number}"))
    stream.wait_for(r"epoch \d+: \d of 2|epoch \d+: \d notes")


def test_counter_may_be_advanced_elsewhere(stream):
    class Shared(ProgressCounter):
        def value(self):
            return 7

    with counting("word vectors", total=9, counter=Shared()):
        stream.wait_for(r"word vectors: 7 of 9 notes, \S+ notes/s, 0:00:00 left, until ")


@pytest.mark.filterwarnings("ignore:This process")  # is multi-threaded
def test_a_forked_process_does_not_wait_for_the_lock_of_the_first():
    with progress_module._lines.lock:
        child = os.fork()
        if not child:
            os._exit(0 if progress_module._lines.lock.acquire(timeout=5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
