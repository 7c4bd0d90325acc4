"""L-BFGS for many small problems at once, one per label, where each value and gradient is a round of a federation.

The problems are independent, so each label has its own history and its own step length (Nocedal and Wright 2006,
section 7.2). The state is a dict of arrays, so that a run can be stopped and continued after any round.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_HISTORY = 6  # steps that approximate the curvature
_SHORTER = 0.3  # factor of the step length after a step that has raised the loss
_MIN_CURVATURE = 1e-10

Arrays = dict[str, np.ndarray]
NAMES = ("point", "best", "best_loss", "best_gradient", "steps", "changes", "length")


def start(labels: int, size: int) -> Arrays:
    """The state before the first gradient: all L points (L, N) are 0."""
    zeros, none = np.zeros((labels, size)), np.zeros((_HISTORY, labels, size))
    return {
        "point": zeros,
        "best": zeros,
        "best_loss": np.full(labels, np.finfo(float).max),
        "best_gradient": zeros,
        "steps": none,
        "changes": none,
        "length": np.ones(labels),
    }


def advance(state: Mapping[str, np.ndarray], loss: np.ndarray, gradient: np.ndarray) -> Arrays:
    """The state with the next points, after losses (L,) and gradients (L, N) at the points of the given state."""
    point, is_first = state["point"], state["best_loss"] == np.finfo(float).max
    better = loss <= state["best_loss"]
    step, change = point - state["best"], gradient - state["best_gradient"]
    useful = better & ~is_first & ((step * change).sum(1) > _MIN_CURVATURE)
    steps, changes = (
        np.concatenate([state[name][1:], np.where(useful[:, None], new, 0.0)[None]])
        for name, new in (("steps", step), ("changes", change))
    )
    new = {
        "best": np.where(better[:, None], point, state["best"]),
        "best_loss": np.where(better, loss, state["best_loss"]),
        "best_gradient": np.where(better[:, None], gradient, state["best_gradient"]),
        "steps": steps,
        "changes": changes,
        "length": np.where(better, 1.0, _SHORTER * state["length"]),
    }
    direction = _direction(new["best_gradient"], steps, changes)
    return {"point": new["best"] - new["length"][:, None] * direction} | new


def _direction(gradient: np.ndarray, steps: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """The inverse Hessian, as the history approximates it, times the gradient (L, N): the two-loop recursion.

    A step of zeros has no effect. Without any step, the result has length 1.
    """
    products = (steps * changes).sum(2)  # (history, L)
    inverse = np.where(products > 0, 1 / np.where(products > 0, products, 1.0), 0.0)
    scale = 1 / np.maximum(np.linalg.norm(gradient, axis=1), 1e-12)
    result, factors = gradient.copy(), np.zeros_like(products)
    for i in reversed(range(len(steps))):
        factors[i] = inverse[i] * (steps[i] * result).sum(1)
        result -= factors[i][:, None] * changes[i]
    for product, change in zip(products, changes):
        scale = np.where(product > 0, product / np.maximum((change**2).sum(1), 1e-300), scale)
    result *= scale[:, None]
    for i in range(len(steps)):
        result += steps[i] * (factors[i] - inverse[i] * (changes[i] * result).sum(1))[:, None]
    return result
