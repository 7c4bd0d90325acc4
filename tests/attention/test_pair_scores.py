"""Scores of labels with words: the naive formula, its derivatives, and memory that does not grow with the pairs."""

from __future__ import annotations

import pytest
import torch

from nosology.attention import planted_attention as module
from nosology.attention.planted_attention import pair_scores


def naive(labels: torch.Tensor, words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same with the features of every pair in memory, one behind the other."""
    both = torch.cat([labels[:, None].expand(-1, len(words), -1), words[None].expand(len(labels), -1, -1)], dim=-1)
    k = labels.shape[1]
    first = torch.cat([torch.eye(k), torch.eye(k)], dim=1).to(both.dtype)
    return (both @ first.T).relu() @ weights


@pytest.mark.parametrize("tile", [1 << 24, 40, 7])
def test_equals_the_naive_formula_with_derivatives(monkeypatch, tile):
    monkeypatch.setattr(module, "_TILE", tile)
    torch.manual_seed(0)
    given = [torch.randn(9, 5), torch.randn(13, 5), torch.randn(5)]
    slope = torch.randn(9, 13)
    found, wanted = [], []
    for scores, kept in ((pair_scores, found), (naive, wanted)):
        inputs = [x.clone().requires_grad_() for x in given]
        made = scores(*inputs)
        kept += [made.detach(), *torch.autograd.grad((made * slope).sum(), inputs)]
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_no_pair_of_features_is_kept(monkeypatch):
    """What is saved for the derivatives are the three inputs alone, and no tile is larger than it may be."""
    monkeypatch.setattr(module, "_TILE", 6000)
    seen = []
    real = module._tiles
    monkeypatch.setattr(module, "_tiles", lambda a, b: (seen.append((a, b)), real(a, b))[1])
    inputs = [torch.randn(200, 6, requires_grad=True), torch.randn(300, 6, requires_grad=True), torch.randn(6)]
    made = pair_scores(*inputs)
    assert sum(x.numel() for x in made.grad_fn.saved_tensors) == 200 * 6 + 300 * 6 + 6
    for rows, columns in real(inputs[0], inputs[1]):
        assert len(range(*rows.indices(200))) * len(range(*columns.indices(300))) * 6 <= 6000
    made.sum().backward()
    assert len(seen) == 2


def test_nothing_with_nothing():
    assert pair_scores(torch.randn(0, 3), torch.randn(4, 3), torch.randn(3)).shape == (0, 4)
    assert pair_scores(torch.randn(2, 3), torch.randn(0, 3), torch.randn(3)).shape == (2, 0)
