"""Drift of incoming notes: a conformal test martingale on their scores, with an alarm.

The guarantee of `control_risk` is for notes that are exchangeable with the calibration notes. Under exchangeability
the rank of a new score among all earlier ones is uniform and independent of earlier ranks (Vovk et al. 2005). The
monitor bets against that: its wealth starts at 1 and is a martingale as long as the notes are exchangeable. By Ville's
inequality it then ever reaches 1 / rate with probability at most `rate`, however long it runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

import numpy as np

from nosology.core import ConfigError

STAKES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # a bet pays 1 + stake * (p - 1/2)
JUMP = 0.01  # the share of the wealth that is spread over the stakes again before each note


class DriftMonitor:
    """A simple jumper martingale (Vovk et al. 2021) on one number per note: its confidence, or its loss.

    reference: the numbers of the calibration notes. rate: the probability of a false alarm over the whole time.
    """

    def __init__(self, reference: Iterable[float], *, rate: float = 0.01, seed: int = 0) -> None:
        if not 0 < rate < 1:
            raise ConfigError(f"rate must lie between 0 and 1; got {rate:g}")
        self.rate = rate
        self.log_wealth = 0.0
        self.highest = 0.0  # log of the largest wealth so far
        self.notes = 0
        self.alarm_at: int | None = None  # the number of the note that raised the alarm, from 1
        self._earlier = sorted(map(_finite, reference))
        self._shares = np.full(len(STAKES), 1 / len(STAKES))
        self._rng = np.random.default_rng(seed)

    @property
    def alarm(self) -> bool:
        """Whether the wealth has ever reached 1 / rate."""
        return self.alarm_at is not None

    def add(self, value: float) -> bool:
        """Whether the alarm is raised, after one more note."""
        p = self._p_value(_finite(value))
        shares = (1 - JUMP) * self._shares + JUMP / len(STAKES)
        shares = shares * (1 + STAKES * (p - 0.5))
        gain = float(shares.sum())
        self._shares = shares / gain
        self.log_wealth += math.log(gain)
        self.highest = max(self.highest, self.log_wealth)
        self.notes += 1
        if self.alarm_at is None and self.log_wealth >= -math.log(self.rate):
            self.alarm_at = self.notes
        return self.alarm

    def add_all(self, values: Iterable[float]) -> bool:
        """Whether the alarm is raised, after these notes in their order."""
        for value in values:
            self.add(value)
        return self.alarm

    def _p_value(self, value: float) -> float:
        """The rank of a number among all earlier ones and itself, ties broken at random: uniform in (0, 1)."""
        below, upto = bisect_left(self._earlier, value), bisect_right(self._earlier, value)
        insort(self._earlier, value)
        return (below + self._rng.random() * (upto - below + 1)) / len(self._earlier)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ConfigError("a monitored number must be finite")
    return float(value)
