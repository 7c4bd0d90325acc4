"""Features of a billed code from a first look at all codes of its bill: how suspect the others are.

A code that few notes have is less suspect on a bill whose other codes are all supported, and affinity with a code that
is itself suspect says little.
"""

from __future__ import annotations

import numpy as np

from nosology.audit.support_features import logit

CONTEXT = (
    "first_logit", "trust", "more_suspect", "suspect_share", "trusted_affinity", "trusted_sum", "suspect_affinity",
    "suspected",
)  # fmt: skip
_LEAST_TRUST = 0.1  # of all other codes together


def context_rows(first: np.ndarray, affinities: np.ndarray) -> np.ndarray:
    """The features (N, C) of the codes of a bill; first: (N,) probabilities that they are wrong, affinities: (N, N)."""
    count = len(first)
    if not count:
        return np.zeros((0, len(CONTEXT)), dtype=np.float32)
    first = first.astype(np.float64)
    others = 1.0 - np.eye(count)
    trust, suspicion = (1.0 - first) * others, first * others  # (N, N): of the other codes, beside each code
    trusted_sum = (affinities * trust).sum(axis=1)
    more_suspect = (first[:, None] < first).sum(axis=1)
    columns = [
        [logit(probability) for probability in first.tolist()],
        trust.sum(axis=1) / max(1, count - 1),
        more_suspect,
        more_suspect / count,
        trusted_sum / np.maximum(trust.sum(axis=1), _LEAST_TRUST),
        trusted_sum,
        (affinities * suspicion).max(axis=1),
        np.full(count, first.sum()),
    ]
    return np.column_stack(columns).astype(np.float32)
