"""Tests of the heads: number of weights, loss, dropout mask."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.models.heads.heads_net import HeadNet, VectorBatch, dropout_mask, hybrid_loss
from nosology.models.heads.heads_settings import HeadShape

TABLE_2 = {  # Xu and Dray (2025), millions of weights: (inputs, codes) -> MLP, DeepMLP, DeepResMLP
    (768, 1085): (1.6, 2.1, 4.3),
    (768, 1267): (1.8, 2.2, 4.3),
    (1024, 1085): (1.9, 2.4, 5.1),
    (1024, 1267): (2.0, 2.6, 5.3),
    (1536, 1085): (2.4, 3.1, 6.9),
    (1536, 1267): (2.6, 3.2, 7.0),
}


@pytest.mark.parametrize(("dim", "labels"), TABLE_2)
def test_number_of_weights_matches_paper(dim, labels):
    for head, millions in zip(("mlp", "deep", "res"), TABLE_2[dim, labels]):
        with torch.device("meta"):
            net = HeadNet(HeadShape(head=head), dim, labels)
        assert sum(p.numel() for p in net.parameters()) == pytest.approx(millions * 1e6, rel=0.06)


def test_hybrid_loss_matches_hand_computation():
    # p = 0.8 for a true code, 0.1 for a false one
    logits = torch.tensor([[math.log(4.0), math.log(1 / 9)]])
    targets = torch.tensor([[1, 0]], dtype=torch.uint8)
    bce = (-math.log(0.8) - math.log(0.9)) / 2
    focal = (0.35 * 0.2**2 * -math.log(0.8) + 0.65 * 0.1**2 * -math.log(0.9)) / 2
    assert float(hybrid_loss(logits, targets, HeadShape())) == pytest.approx(0.5 * bce + 0.5 * focal, rel=1e-6)
    assert float(hybrid_loss(logits, targets, HeadShape(bce=1.0))) == pytest.approx(bce, rel=1e-6)
    assert float(hybrid_loss(logits, targets, HeadShape(bce=0.0))) == pytest.approx(focal, rel=1e-5)
    only_first = torch.tensor([1.0, 0.0])
    expected = 0.5 * -math.log(0.8) + 0.5 * 0.35 * 0.2**2 * -math.log(0.8)
    assert float(hybrid_loss(logits, targets, HeadShape(), only_first)) == pytest.approx(expected, rel=1e-6)


def test_hybrid_loss_of_extreme_logits_is_finite():
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss = hybrid_loss(logits, torch.tensor([[0, 1]], dtype=torch.uint8), HeadShape())
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()


@given(seed=st.integers(0, 2**62 - 1), layer=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_dropout_mask_drops_the_given_fraction_evenly(seed, layer):
    mask = dropout_mask(torch.zeros(200, 300), torch.tensor(seed), layer, 0.25)
    assert set(mask.unique().tolist()) <= {0.0, torch.tensor(1 / 0.75).item()}
    dropped = (mask == 0).float()
    assert abs(float(dropped.mean()) - 0.25) < 0.012
    assert dropped.mean(0).std() < 0.05 and dropped.mean(1).std() < 0.05
    next_seed = (dropout_mask(torch.zeros(200, 300), torch.tensor(seed + 1), layer, 0.25) == 0).float()
    together = float((dropped * next_seed).mean())
    assert abs(together - 0.0625) < 0.012  # independent of the next seed's


@pytest.mark.parametrize("head", ["mlp", "deep", "res"])
def test_scores_do_not_depend_on_the_batch_and_a_batch_of_one_trains(head):
    torch.manual_seed(0)
    net = HeadNet(HeadShape(head=head, widths=[16] if head == "mlp" else [16, 8, 8]), 6, 5)
    vectors = torch.randn(9, 6)
    net.train()
    for _ in range(3):
        net(VectorBatch(vectors, torch.ones(9, 5), torch.tensor(1)))
    loss = net(VectorBatch(vectors[:1], torch.ones(1, 5), torch.tensor(2)))
    loss.backward()
    assert torch.isfinite(loss)
    net.eval()
    assert torch.allclose(net.logits(vectors)[:1], net.logits(vectors[:1]), atol=1e-6)


def test_wrong_number_of_widths_is_refused():
    with pytest.raises(ValueError, match="widths must be 3 positive numbers for deep"):
        HeadShape(head="deep", widths=[16])
