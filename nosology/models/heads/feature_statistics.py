"""Mean and scale of vectors from sums that several hospitals can add up without showing a vector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nosology.core import DataError


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum and sum of squares of vectors, in float64; those of two sets of notes add up with +."""

    count: int
    total: np.ndarray  # (D,)
    squares: np.ndarray  # (D,)

    @staticmethod
    def of(vectors: np.ndarray) -> Moments:
        """The moments of vectors (N, D)."""
        wide = np.asarray(vectors, dtype=np.float64)
        return Moments(len(wide), wide.sum(0), np.square(wide).sum(0))

    def __add__(self, other: Moments) -> Moments:
        if self.total.shape != other.total.shape:
            raise DataError(f"vectors must be of one width; got {len(self.total)} and {len(other.total)}")
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def scaler(self) -> Scaler:
        """What standardises the vectors that the moments are of; a value that never changes keeps the scale 1."""
        if self.count < 1:
            raise DataError("there are no vectors: nothing can be standardised by them")
        mean = self.total / self.count
        variance = np.maximum(self.squares / self.count - mean**2, 0.0)
        epsilon = np.finfo(np.float64).eps
        constant = variance <= self.count * epsilon * np.maximum(variance, mean**2)
        return Scaler(mean, np.where(constant, 1.0, np.sqrt(variance)))


@dataclass(frozen=True, eq=False)
class Scaler:
    """(vector - mean) / scale, as scikit-learn's StandardScaler."""

    mean: np.ndarray  # (D,) float64
    scale: np.ndarray  # (D,) float64

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Standardised vectors (N, D), float32."""
        return ((vectors - self.mean) / self.scale).astype(np.float32)
