"""Work on several cores."""

import warnings
from pathlib import Path

import nosology
from nosology.core.parallel import cores, parallel_map


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
