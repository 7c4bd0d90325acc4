"""Statistics of note vectors, which sites can add up, and the scaler that standardizes vectors by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nosology.core import DataError


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Count, sum and sum of squares of vectors, float64. The statistics of several sites are added with +."""

    count: int
    total: np.ndarray  # (D,)
    squares: np.ndarray  # (D,)

    @staticmethod
    def of(vectors: np.ndarray) -> FeatureStatistics:
        """The statistics of vectors (N, D)."""
        wide = np.asarray(vectors, dtype=np.float64)
        return FeatureStatistics(len(wide), wide.sum(0), np.square(wide).sum(0))

    def __add__(self, other: FeatureStatistics) -> FeatureStatistics:
        if self.total.shape != other.total.shape:
            raise DataError(f"vectors must have the same width; got {len(self.total)} and {len(other.total)}")
        return FeatureStatistics(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def scaler(self) -> Scaler:
        """The scaler of these vectors. A constant feature has scale 1."""
        if self.count < 1:
            raise DataError("a scaler needs at least one vector; got none")
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
        """Standardized vectors (N, D), float32."""
        return ((vectors - self.mean) / self.scale).astype(np.float32)
