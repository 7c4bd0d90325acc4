"""Work on several cores."""

import warnings

from nosology.core.parallel import parallel_map


def test_a_process_that_joblib_replaces_is_no_error_where_warnings_are_errors():
    assert list(parallel_map(max, [(1, 2), (3, 4)], 2)) == [2, 4]
    warnings.warn("A worker stopped while some jobs were given to the executor. It is replaced.", stacklevel=1)
