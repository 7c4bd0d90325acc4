"""Statistics of vectors give the scaler of scikit-learn."""

from __future__ import annotations

import numpy as np

from nosology.models.heads.feature_statistics import FeatureStatistics


def test_scaler_of_summed_statistics_equals_standard_scaler():
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(1)
    vectors = rng.normal(0.3, 0.05, size=(400, 7)).astype(np.float32)
    vectors[:, 3] = 0.25  # constant
    parts = [FeatureStatistics.of(part) for part in np.array_split(vectors, 6)]
    scaler = sum(parts[1:], parts[0]).scaler()
    expected = StandardScaler().fit(vectors.astype(np.float64))
    np.testing.assert_allclose(scaler.mean, expected.mean_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scaler.scale, expected.scale_, rtol=1e-9)
