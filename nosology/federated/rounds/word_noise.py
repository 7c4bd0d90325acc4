"""Differentially private word counts: what a site reports of its words with `federation.privacy.word_noise`.

A patient counts for at most `word_limit` words, chosen at random. Each count gets Gaussian noise of standard deviation
`word_noise` x sqrt(word_limit), which is the largest change that one patient makes to all counts together (in Euclidean
norm). Only words with a noisy count above a threshold are reported: one so high that a word of a single patient passes
it with probability delta / 2 at most, for all words of that patient together. The report is then (epsilon,
delta)-private for each patient (Korolova et al. 2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from nosology.federated.federation_settings import FederationSettings

_MAX_EPSILON = 1e6


@dataclass(frozen=True)
class WordNoise:
    """The noise of word counts."""

    multiplier: float  # of the noise, in units of sqrt(limit)
    limit: int  # words of a patient
    delta: float
    min_count: int  # smallest noisy count that is reported, if `threshold` is not higher

    @classmethod
    def of(cls, settings: FederationSettings) -> WordNoise | None:
        """The noise of the settings; None without any."""
        privacy = settings.privacy
        if not privacy.word_noise:
            return None
        return cls(privacy.word_noise, privacy.word_limit, privacy.delta, settings.min_site_notes)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of each count."""
        return self.multiplier * math.sqrt(self.limit)

    @property
    def threshold(self) -> float:
        """The noisy count from which a word is reported."""
        passes = -math.expm1(math.log1p(-self.delta / 2) / self.limit)  # probability for each word of a patient
        return max(float(self.min_count), 1 + self.deviation * float(norm.isf(passes)))

    @property
    def epsilon(self) -> float:
        """The epsilon of a report, at delta."""
        return gaussian_epsilon(self.multiplier, self.delta / 2)

    def report(
        self, words: list[str], patients: Iterable[np.ndarray], notes: int, rng: np.random.Generator
    ) -> dict[str, int]:
        """The noisy counts of words above the threshold. patients: the different words of each, as numbers.

        notes: the largest possible count. The site reports this number anyway; a limit at the number of patients would
        reveal that number.
        """
        counts = np.zeros(len(words))
        for numbers in patients:
            if len(numbers) > self.limit:
                numbers = rng.choice(numbers, self.limit, replace=False)
            counts[numbers] += 1
        noisy = counts + self.deviation * rng.standard_normal(len(counts))
        chosen = np.flatnonzero((counts > 0) & (noisy >= self.threshold))
        values = np.clip(np.rint(noisy[chosen]), self.min_count, max(notes, self.min_count)).astype(int)
        return dict(sorted(zip((words[number] for number in chosen), values.tolist())))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest epsilon of Gaussian noise of this multiple of the sensitivity (Balle and Wang 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        shift, center = 1 / (2 * multiplier), epsilon * multiplier
        return math.exp(norm.logcdf(shift - center)) - math.exp(epsilon + norm.logcdf(-shift - center)) - delta

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > _MAX_EPSILON:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
