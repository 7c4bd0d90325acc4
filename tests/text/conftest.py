from __future__ import annotations

import time
from collections.abc import Callable

import pytest


@pytest.fixture
def assert_linear_time() -> Callable[[Callable[[str], object], str, int], None]:
    """A check that a function takes at most 4 times the CPU time per character for 8 times as much text."""

    def seconds(function: Callable[[str], object], text: str) -> float:
        start = time.process_time()
        function(text)
        return time.process_time() - start

    def check(function: Callable[[str], object], piece: str, count: int) -> None:
        function(piece)  # loads the rules
        small = max(0.002, *(seconds(function, piece * (count // 8)) for _ in range(2)))
        # A slow run may be chance; three slow runs are not.
        assert any(seconds(function, piece * count) < 8 * 4 * small for _ in range(3))

    return check
