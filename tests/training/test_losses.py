"""Focal loss, weighted cross-entropy and class weights against their formulas."""

import numpy as np
import pytest
import torch

from nosology.training.losses import class_weights, focal_loss, weighted_bce

LOGITS = torch.tensor([[-3.0, 0.2, 4.0], [1.5, -0.7, 0.0]], dtype=torch.float64)
TARGETS = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], dtype=torch.float64)


def test_focal_loss_equals_its_formula():
    p = 1 / (1 + np.exp(-LOGITS.numpy()))
    y = TARGETS.numpy()
    expected = -0.25 * (1 - p) ** 2 * y * np.log(p) - 0.75 * p**2 * (1 - y) * np.log(1 - p)
    assert focal_loss(LOGITS, TARGETS, 2.0, 0.25).numpy() == pytest.approx(expected, rel=1e-9)


def test_focal_loss_with_gamma_0_is_half_the_cross_entropy():
    plain = weighted_bce(LOGITS, TARGETS, torch.ones(3, dtype=torch.float64))
    assert focal_loss(LOGITS, TARGETS, 0.0, 0.5).numpy() == pytest.approx(plain.numpy() / 2)


@pytest.mark.parametrize("bce_share", [0.0, 0.3, 1.0])
def test_bce_share_mixes_cross_entropy_and_focal_loss(bce_share):
    bce = weighted_bce(LOGITS, TARGETS, torch.ones(3, dtype=torch.float64))
    expected = bce_share * bce + (1 - bce_share) * focal_loss(LOGITS, TARGETS, 2.0, 0.25)
    assert focal_loss(LOGITS, TARGETS, 2.0, 0.25, bce_share).numpy() == pytest.approx(expected.numpy(), rel=1e-9)


def test_weighted_bce_equals_its_formula():
    weights = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    p, y, w = 1 / (1 + np.exp(-LOGITS.numpy())), TARGETS.numpy(), weights.numpy()
    expected = -w * y * np.log(p) - (1 - y) * np.log(1 - p)
    assert weighted_bce(LOGITS, TARGETS, weights).numpy() == pytest.approx(expected, rel=1e-9)


def test_gradients_equal_finite_differences():
    logits = LOGITS.clone().requires_grad_()
    weights = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: focal_loss(x, TARGETS, 2.0, 0.25), logits)
    assert torch.autograd.gradcheck(lambda x: weighted_bce(x, TARGETS, weights), logits)


def test_class_weights_are_clipped():
    weights = class_weights(torch.tensor([50.0, 10.0, 1.0, 90.0, 0.0]), 100, 10.0)
    assert weights.tolist() == [1.0, 9.0, 10.0, 1.0, 10.0]
