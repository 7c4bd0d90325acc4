"""Work on several cores."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import nosology
from nosology.core.parallel import cores, parallel_map
from tests.core.process_family import end_of, family


def test_number_of_cores_can_be_lowered(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert cores() == 1


def test_only_cores_counts_the_cores_of_the_machine():
    """`os.cpu_count` knows neither affinity nor the limits of a container."""
    package = Path(nosology.__file__).parent
    counting = [path.relative_to(package) for path in package.rglob("*.py") if "os.cpu_count(" in path.read_text()]
    assert counting == []


def test_a_process_that_joblib_replaces_is_no_error_where_warnings_are_errors():
    assert list(parallel_map(max, [(1, 2), (3, 4)], 2)) == [2, 4]
    warnings.warn("A worker stopped while some jobs were given to the executor. It is replaced.", stacklevel=1)


PROGRAM = """
import os, time
from nosology.core.parallel import parallel_map

def work(number):
    print(number, flush=True)
    if number > 1:
        {blocked}
    return bytes(1 << 20)

for result in parallel_map(work, [(number,) for number in range(8)], 2):
    time.sleep({pause})
"""


@pytest.mark.parametrize(
    ("blocked", "pause"),
    [("time.sleep(600)", 0), ("while True: pass", 0), ("pass", 600)],
    ids=["waiting", "computing", "writing results that nobody reads"],
)
def test_processes_end_when_the_first_one_is_killed(blocked, pause):
    program = PROGRAM.format(blocked=blocked, pause=pause)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for _ in range(4):  # two parts are done, or more
            first.stdout.readline()
        processes = family(first.pid)
        assert len(processes) >= 3  # and those with which joblib and Python clean up
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert end_of(processes) == []


INTERRUPTED = """
import sys, time, warnings
from nosology.core.parallel import parallel_map

warnings.simplefilter("ignore")  # those of libraries, as the command line does
try:
    list(parallel_map(time.sleep, [(30,)] * 8, 4))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("pause", [0.05, 0.3, 5])
def test_ctrl_c_while_processes_start_or_work_prints_nothing_and_leaves_nothing(tmp_path, pause):
    environment = os.environ | {"JOBLIB_TEMP_FOLDER": str(tmp_path)}
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment) as first:
        while len(processes := family(first.pid)) < 5:  # the first one, two that clean up, and some that work
            assert first.poll() is None
            time.sleep(0.01)
        time.sleep(pause)
        processes = family(first.pid)
        os.killpg(first.pid, signal.SIGINT)  # as a terminal does
        _, printed = first.communicate(timeout=120)
        assert (first.returncode, printed) == (130, "")
        assert end_of(processes) == [] and not list(tmp_path.iterdir())
