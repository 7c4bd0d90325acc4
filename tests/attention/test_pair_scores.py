"""The scores of the ranker equal the naive formula, and are formed in tiles."""

from __future__ import annotations

import pytest
import torch

from nosology.attention import pair_scores as pair_scores_module
from nosology.attention.pair_scores import pair_scores


def naive_pair_scores(labels: torch.Tensor, words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same with the features of every pair in memory, one behind the other."""
    both = torch.cat([labels[:, None].expand(-1, len(words), -1), words[None].expand(len(labels), -1, -1)], dim=-1)
    k = labels.shape[1]
    first = torch.cat([torch.eye(k), torch.eye(k)], dim=1).to(both.dtype)
    return (both @ first.T).relu() @ weights


@pytest.mark.parametrize("tile", [1 << 24, 40, 7])
def test_pair_scores_and_gradients_equal_the_naive_formula(monkeypatch, tile):
    monkeypatch.setattr(pair_scores_module, "_TILE", tile)
    torch.manual_seed(0)
    inputs = [torch.randn(9, 5), torch.randn(13, 5), torch.randn(5)]
    gradient = torch.randn(9, 13)
    actual, expected = [], []
    for scores, selected in ((pair_scores, actual), (naive_pair_scores, expected)):
        inputs = [x.clone().requires_grad_() for x in inputs]
        outputs = scores(*inputs)
        selected += [outputs.detach(), *torch.autograd.grad((outputs * gradient).sum(), inputs)]
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_pair_scores_save_only_their_inputs(monkeypatch):
    """Only the three inputs are saved for the backward pass, and no tile is larger than the limit."""
    monkeypatch.setattr(pair_scores_module, "_TILE", 6000)
    seen = []
    real = pair_scores_module._tiles
    monkeypatch.setattr(pair_scores_module, "_tiles", lambda a, b: (seen.append((a, b)), real(a, b))[1])
    inputs = [torch.randn(200, 6, requires_grad=True), torch.randn(300, 6, requires_grad=True), torch.randn(6)]
    outputs = pair_scores(*inputs)
    assert sum(x.numel() for x in outputs.grad_fn.saved_tensors) == 200 * 6 + 300 * 6 + 6
    for rows, columns in real(inputs[0], inputs[1]):
        assert len(range(*rows.indices(200))) * len(range(*columns.indices(300))) * 6 <= 6000
    outputs.sum().backward()
    assert len(seen) == 2


def test_pair_scores_of_no_labels_or_words_are_empty():
    assert pair_scores(torch.randn(0, 3), torch.randn(4, 3), torch.randn(3)).shape == (0, 4)
    assert pair_scores(torch.randn(2, 3), torch.randn(0, 3), torch.randn(3)).shape == (2, 0)
