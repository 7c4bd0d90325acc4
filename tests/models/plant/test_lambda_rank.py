"""LambdaRank: by hand, against finite differences, and nDCG against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from nosology.models.plant.ranker import lambda_loss, lambdas, ndcg, swap_gains


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


@pytest.mark.parametrize("k", [1, 3, 5, 20])
def test_ndcg_is_scikit_learns(k):
    scores, relevance = drawn(0)
    wanted = [ndcg_score([2.0**g - 1], [s], k=k) for g, s in zip(relevance.numpy(), scores.numpy())]
    np.testing.assert_allclose(ndcg(scores, relevance, k), wanted, atol=1e-12)


def test_a_gain_is_the_change_that_a_swap_makes():
    scores, relevance = drawn(1, lists=1, words=6)
    gains = swap_gains(scores, relevance, 4)[0]
    for i in range(6):
        for j in range(6):
            swapped = scores.clone()
            swapped[0, [i, j]] = scores[0, [j, i]]
            change = abs(float(ndcg(swapped, relevance, 4) - ndcg(scores, relevance, 4)))
            assert float(gains[i, j]) == pytest.approx(change, abs=1e-12)


def test_by_hand():
    # two words: the relevant one (gain 1) stands second, below by 1
    scores, relevance = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    change = 1 - 1 / math.log2(3)  # nDCG goes from 1/log2(3) to 1
    pull = -change / (1 + math.exp(-1.0))
    np.testing.assert_allclose(lambdas(scores, relevance, 2)[0], [pull, -pull], atol=1e-12)
    assert float(lambda_loss(scores, relevance, 2)) == pytest.approx(change * math.log(1 + math.e))


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_finite_differences_of_the_weighted_loss(masked):
    scores, relevance = drawn(2)
    mask = torch.ones_like(scores, dtype=torch.bool)
    if masked:
        mask[0, 5:] = mask[2, 3:] = False
    found = lambdas(scores, relevance, 5, 1.3, mask) / len(scores)
    fixed = swap_gains(scores, relevance, 5, mask)

    def loss(at: torch.Tensor) -> float:
        above = (relevance[:, :, None] > relevance[:, None, :]) & mask[:, :, None] & mask[:, None, :]
        margin = at[:, :, None] - at[:, None, :]
        return float((fixed * above * torch.log1p(torch.exp(-1.3 * margin))).sum((1, 2)).mean())

    step = 1e-5
    for b in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            up, down = scores.clone(), scores.clone()
            up[b, i] += step
            down[b, i] -= step
            assert float(found[b, i]) == pytest.approx((loss(up) - loss(down)) / (2 * step), abs=1e-8)
    learned = scores.clone().requires_grad_()
    lambda_loss(learned, relevance, 5, 1.3, mask).backward()
    torch.testing.assert_close(learned.grad, found)
    assert not masked or (found[~mask] == 0).all()


def test_descent_ranks_the_relevant_first():
    scores, relevance = drawn(3)
    scores = scores.clone()
    for _ in range(3000):
        scores -= 0.5 * lambdas(scores, relevance, 9)
    assert (ndcg(scores, relevance, 9) > 0.999).all()
