"""Focal loss, weighted cross-entropy and class weights against their formulas; the bias that they give to logits."""

import numpy as np
import pytest
import torch
from scipy.special import expit, logit

from nosology.training.losses import LossBias, class_weights, focal_loss, log_odds_shift, weighted_bce

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


def test_gradient_of_focal_loss_is_finite_where_the_sigmoid_is_exactly_0_or_1():
    logits = torch.tensor([[40.0, -200.0, 0.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([[1.0, 0.0, 1.0]]), 0.5, 0.25).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, :2].tolist() == [0, 0] and logits.grad[0, 2] < 0


def test_class_weights_are_clipped():
    weights = class_weights(torch.tensor([50.0, 10.0, 1.0, 90.0, 0.0]), 100, 10.0)
    assert weights.tolist() == [1.0, 9.0, 10.0, 1.0, 10.0]


LOSSES = {  # focal, gamma, alpha, bce
    "cross-entropy": (0.0, 2.0, 0.25, 1.0),
    "focal": (1.0, 2.0, 0.25, 0.0),
    "focal, gamma 0.5": (1.0, 0.5, 0.7, 0.0),
    "both": (1.0, 2.0, 0.25, 1.0),
}
WEIGHTS = torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64)


def loss_bias(name: str, **other) -> LossBias:
    focal, gamma, alpha, bce = LOSSES[name]
    return LossBias(bce, other.pop("weights", WEIGHTS), focal, gamma, alpha, **other)


@pytest.mark.parametrize("name", LOSSES)
def test_logits_that_minimise_the_expected_loss_become_logits_of_the_probability(name):
    """The expected loss of a cell with P(y = 1) = q is minimised by gradient descent, without any formula."""
    focal, gamma, alpha, bce = LOSSES[name]
    q = torch.tensor([0.002, 0.05, 0.3, 0.6, 0.97], dtype=torch.float64)[:, None].expand(-1, 3)
    z = torch.zeros(q.shape, dtype=torch.float64, requires_grad=True)

    def expected_loss() -> torch.Tensor:
        ones, zeros = torch.ones_like(z), torch.zeros_like(z)
        cells = [focal * focal_loss(z, y, gamma, alpha) + bce * weighted_bce(z, y, WEIGHTS) for y in (ones, zeros)]
        return (q * cells[0] + (1 - q) * cells[1]).sum()

    optimizer = torch.optim.LBFGS([z], max_iter=400, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = expected_loss()
        loss.backward()
        return loss

    optimizer.step(closure)
    corrected = loss_bias(name).remove(z.detach())
    assert expit(corrected.numpy()) == pytest.approx(q.numpy(), abs=2e-3)
    if name == "cross-entropy":
        assert corrected.numpy() == pytest.approx((z.detach() - WEIGHTS.log()).numpy(), abs=1e-9), "exactly log w"


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_corrected_logits_increase_and_the_correction_can_be_inverted(name, dtype):
    logits = torch.linspace(-50, 50, 2001, dtype=dtype)[:, None].expand(-1, 3)
    bias = loss_bias(name, weights=WEIGHTS.to(dtype))
    corrected = bias.remove(logits)
    assert torch.isfinite(corrected).all() and (corrected.diff(dim=0) > 0).all()
    probabilities = logits[800:1201]  # logits from -10 to 10
    assert bias.remove(bias.add(probabilities)).numpy() == pytest.approx(probabilities.numpy(), abs=1e-4)


def test_plain_cross_entropy_has_no_bias():
    bias = loss_bias("cross-entropy", weights=torch.ones(3, dtype=torch.float64))
    assert torch.equal(bias.remove(LOGITS), LOGITS)


def test_shift_of_resampled_notes_is_that_of_their_log_odds():
    counts, added = torch.tensor([10.0, 50.0]), torch.tensor([40.0, 0.0])
    shift = log_odds_shift(counts, 100, added, 40)
    expected = logit([50 / 140, 50 / 140]) - logit([10 / 100, 50 / 100])
    assert shift.numpy() == pytest.approx(expected, abs=0.06)
    assert torch.isfinite(log_odds_shift(torch.tensor([0.0, 9.0]), 9, torch.zeros(2), 0)).all()
    bias = loss_bias("cross-entropy", shift=shift.double()[:1].expand(3))
    assert torch.equal(bias.remove(LOGITS), LOGITS - WEIGHTS.log() - shift[0].double())
