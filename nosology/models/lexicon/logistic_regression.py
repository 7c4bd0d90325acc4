"""Logistic regressions on sparse 0/1 features, for several targets at once."""

from __future__ import annotations

import numpy as np
from scipy import sparse


def fit_logistic_regressions(
    features: sparse.csr_matrix, targets: np.ndarray, iterations: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (K, F) and biases (K,) for 0/1 features (N, F) and targets (K, N), by L-BFGS.

    The penalty is half the square of weights and biases, as in scikit-learn with C = 1 and LIBLINEAR. Some features
    occur once, others in every row. The variables are therefore scaled by the square root of the curvature of loss and
    penalty where all rows have the mean probability: few iterations are then enough. With more than ten the tags of
    held-out notes become a little worse, as with less regularization.
    """
    from scipy.optimize import minimize  # takes long to import, and only training needs it

    counts = np.bincount(features.indices, minlength=features.shape[1])
    used = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]  # frequent ones first: they stay in cache
    rows, columns = _renumbered(features, used), len(used)
    by_column = rows.T.tocsr()
    share = targets.mean(axis=1)
    curvature = 1 + np.append(counts[used], len(features.indptr) - 1)[:, None] * (share * (1 - share))
    scale = (1 / np.sqrt(curvature)).astype(np.float32)  # (columns + 1, K); the last row is that of the biases
    signs = np.where(targets.T, 1, -1).astype(np.float32)

    def loss_and_gradient(variables: np.ndarray) -> tuple[float, np.ndarray]:
        weights = variables.reshape(scale.shape).astype(np.float32) * scale
        margin = signs * (rows @ weights[:columns] + weights[columns])
        small = np.exp(-np.abs(margin))
        loss = (np.log1p(small) - np.minimum(margin, 0)).sum(dtype=np.float64)
        loss += 0.5 * np.square(weights, dtype=np.float64).sum()
        pull = -signs * np.where(margin > 0, small, 1) / (1 + small)
        gradient = np.concatenate([by_column @ pull, pull.sum(axis=0, keepdims=True)]) + weights
        return float(loss), (gradient * scale).ravel().astype(np.float64)

    options = {"maxiter": iterations, "maxcor": 6}
    found = minimize(loss_and_gradient, np.zeros(scale.size), jac=True, method="L-BFGS-B", options=options)
    fitted = (found.x.reshape(scale.shape) * scale).astype(np.float32)
    weights = np.zeros((len(targets), features.shape[1]), dtype=np.float32)
    weights[:, used] = fitted[:columns].T
    return weights, fitted[columns]


def _renumbered(features: sparse.csr_matrix, used: np.ndarray) -> sparse.csr_matrix:
    """The used columns of 0/1 features in this order."""
    place = np.zeros(features.shape[1], dtype=np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    ones = np.ones(features.nnz, dtype=np.float32)
    return sparse.csr_matrix((ones, place[features.indices], features.indptr), shape=(features.shape[0], len(used)))
