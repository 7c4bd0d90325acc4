"""Tests of LambdaRank: computed by hand, against finite differences, and nDCG against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from nosology.models.plant.lambda_rank import lambda_loss, ndcg, swap_gains


def drawn(seed: int, lists: int = 4, words: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(size=(lists, words)))
    return scores, torch.from_numpy(rng.integers(0, 4, (lists, words)).astype(float))


@pytest.fixture(autouse=True)
def _float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def gradient(scores: torch.Tensor, relevance: torch.Tensor, k: int) -> torch.Tensor:
    """The gradient of the loss by the scores."""
    scores = scores.clone().requires_grad_()
    lambda_loss(scores, relevance, k).backward()
    return scores.grad


@pytest.mark.parametrize("k", [1, 3, 5, 20])
def test_ndcg_equals_that_of_scikit_learn(k):
    scores, relevance = drawn(0)
    expected = [ndcg_score([2.0**g - 1], [s], k=k) for g, s in zip(relevance.numpy(), scores.numpy())]
    np.testing.assert_allclose(ndcg(scores, relevance, k), expected, atol=1e-12)


def test_ungraded_gains_are_two_to_the_relevance_as_in_the_paper():
    scores, relevance = drawn(0)
    relevance = relevance / 10  # mutual information is below 1
    expected = [ndcg_score([2.0**g], [s], k=5) for g, s in zip(relevance.numpy(), scores.numpy())]
    np.testing.assert_allclose(ndcg(scores, relevance, 5, graded=False), expected, atol=1e-12)
    assert not np.allclose(ndcg(scores, relevance, 5), expected)


@pytest.mark.parametrize("graded", [True, False])
def test_swap_gain_is_the_change_of_ndcg(graded):
    scores, relevance = drawn(1, lists=1, words=6)
    gains = swap_gains(scores, relevance, 4, graded)[0]
    for i in range(6):
        for j in range(6):
            swapped = scores.clone()
            swapped[0, [i, j]] = scores[0, [j, i]]
            change = abs(float(ndcg(swapped, relevance, 4, graded) - ndcg(scores, relevance, 4, graded)))
            assert float(gains[i, j]) == pytest.approx(change, abs=1e-12)


def test_loss_and_gradient_of_two_words():
    # The relevant word (gain 1) ranks second; its score is lower by 1.
    scores, relevance = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    change = 1 - 1 / math.log2(3)  # a swap raises nDCG from 1 / log2(3) to 1
    pull = -change / (1 + math.exp(-1.0))
    np.testing.assert_allclose(gradient(scores, relevance, 2)[0], [pull, -pull], atol=1e-12)
    assert float(lambda_loss(scores, relevance, 2)) == pytest.approx(change * math.log(1 + math.e))


def test_gradient_treats_swap_gains_as_constants():
    scores, relevance = drawn(2)
    actual, gains = gradient(scores, relevance, 5), swap_gains(scores, relevance, 5)

    def loss(scores: torch.Tensor) -> float:
        above = relevance[:, :, None] > relevance[:, None, :]
        margin = scores[:, :, None] - scores[:, None, :]
        return float((gains * above * torch.log1p(torch.exp(-margin))).sum((1, 2)).mean())

    step = 1e-5
    for b in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            up, down = scores.clone(), scores.clone()
            up[b, i] += step
            down[b, i] -= step
            assert float(actual[b, i]) == pytest.approx((loss(up) - loss(down)) / (2 * step), abs=1e-8)


def test_gradient_descent_ranks_relevant_words_first():
    scores, relevance = drawn(3)
    for _ in range(1500):
        scores = scores - 4 * gradient(scores, relevance, 9)
    assert (ndcg(scores, relevance, 9) > 0.999).all()
