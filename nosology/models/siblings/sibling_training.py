"""Training of the sibling verifier on questions with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nosology.models.siblings.sibling_features import SCORED
from nosology.models.siblings.sibling_verifier import SiblingVerifier

PENALTY = 3.0  # of the squared distance of the weights from those that the training starts with
ACCURACY = 0.9  # of the answers of a verifier that does not abstain, on held-out questions
_MIN_ANSWERS = 20  # questions that must be answered with that accuracy
_NEVER = 1.01


@dataclass(frozen=True)
class AnsweredQuestions:
    """Q questions with N siblings in all; the siblings of a question stand together."""

    features: np.ndarray  # (N, F)
    right: np.ndarray  # (N,) 0/1
    sizes: np.ndarray  # (Q,) siblings of each question
    folds: np.ndarray  # (Q,) of cross-validation; questions about one note are in one fold

    @classmethod
    def collect(
        cls, features: Sequence[np.ndarray], right: Sequence[np.ndarray], folds: Sequence[int]
    ) -> AnsweredQuestions:
        """The questions that have a right answer among their siblings; one entry of each argument per question."""
        kept = [number for number, answer in enumerate(right) if np.any(answer)]
        return cls(
            np.concatenate([features[number] for number in kept]),
            np.concatenate([right[number] for number in kept]).astype(np.float64),
            np.array([len(features[number]) for number in kept]),
            np.array([folds[number] for number in kept]),
        )

    @property
    def starts(self) -> np.ndarray:
        """The row (Q,) at which each question starts."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def is_named(self) -> np.ndarray:
        """Whether the coder names a sibling, for each question (Q,)."""
        return np.maximum.reduceat(self.features[:, SCORED], self.starts) > 0

    def of(self, chosen: np.ndarray) -> AnsweredQuestions:
        """The chosen questions; chosen: boolean (Q,)."""
        rows = np.repeat(chosen, self.sizes)
        return AnsweredQuestions(self.features[rows], self.right[rows], self.sizes[chosen], self.folds[chosen])

    def probabilities(self, weights: np.ndarray) -> np.ndarray:
        """The softmax (N,) over the siblings of each question."""
        scores = self.features @ weights
        exponentials = np.exp(scores - np.repeat(np.maximum.reduceat(scores, self.starts), self.sizes))
        return exponentials / np.repeat(np.add.reduceat(exponentials, self.starts), self.sizes)

    def best(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The highest of values (N,) of each question, and whether its sibling is right; of equal ones the first."""
        rows = np.array([start + np.argmax(values[start : start + n]) for start, n in zip(self.starts, self.sizes)])
        return values[rows], self.right[rows] > 0


def fit_verifier(questions: AnsweredQuestions, start: SiblingVerifier | None = None) -> SiblingVerifier:
    """The verifier of these questions; start: an earlier one, near which the weights stay where there are few.

    The probability below which it abstains is found by cross-validation.
    """
    best, right = held_out(questions, start)
    named, unnamed = _fit_models(questions, start)
    return SiblingVerifier(named, unnamed, sure_from(best, right))


def held_out(questions: AnsweredQuestions, start: SiblingVerifier | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The probability (Q,) of the best sibling of each question, and whether it is right, by cross-validation."""
    best, right = np.zeros(len(questions.sizes)), np.zeros(len(questions.sizes), dtype=bool)
    for fold in np.unique(questions.folds):
        inside = questions.folds == fold
        models = _fit_models(questions.of(~inside), start)
        for weights, is_of_model in zip(models, (questions.is_named, ~questions.is_named)):
            if (chosen := inside & is_of_model).any():
                part = questions.of(chosen)
                best[chosen], right[chosen] = part.best(part.probabilities(weights))
    return best, right


def sure_from(best: np.ndarray, right: np.ndarray) -> float:
    """The lowest probability from which on the answers have the accuracy ACCURACY; above 1 if there is none."""
    order = np.argsort(-best, kind="stable")
    number = np.arange(1, len(order) + 1)
    enough = np.flatnonzero((np.cumsum(right[order]) >= ACCURACY * number) & (number >= _MIN_ANSWERS))
    return float(best[order[enough[-1]]]) if len(enough) else _NEVER


def _fit_models(questions: AnsweredQuestions, start: SiblingVerifier | None) -> list[np.ndarray]:
    """The weights of the model for questions where the coder names a sibling, and of the one for the others."""
    zero = np.zeros(questions.features.shape[1])
    priors = (zero, zero) if start is None else (start.named, start.unnamed)
    is_named = questions.is_named if len(questions.sizes) else np.zeros(0, dtype=bool)
    return [_fit(questions.of(part), prior) for part, prior in zip((is_named, ~is_named), priors)]


def _fit(questions: AnsweredQuestions, prior: np.ndarray) -> np.ndarray:
    """The weights that maximise the likelihood of the right siblings, less the penalty for leaving the prior."""
    if not len(questions.sizes):
        return prior
    from scipy.optimize import minimize  # takes long to import, and only training needs it

    # Of several right siblings each is equally wanted.
    target = questions.right / np.repeat(np.add.reduceat(questions.right, questions.starts), questions.sizes)
    wanted = questions.features.T @ target

    def loss_and_gradient(weights: np.ndarray) -> tuple[float, np.ndarray]:
        probabilities = questions.probabilities(weights)
        away = weights - prior
        loss = PENALTY / 2 * (away @ away) - target @ np.log(np.maximum(probabilities, 1e-12))
        return float(loss), questions.features.T @ probabilities - wanted + PENALTY * away

    return minimize(loss_and_gradient, prior, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x
