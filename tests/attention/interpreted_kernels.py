"""The GPU kernels, interpreted on the CPU, compared with plain torch: run with TRITON_INTERPRET=1.

A separate program, because triton decides at import whether kernels are compiled or interpreted.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
from torch import Tensor

from nosology.attention import dual_attention, kernels
from nosology.attention.pair_scores import pair_scores
from nosology.attention.planted_attention import PlantedScores, attend_, top_k_mask
from nosology.encoders.tokenizers import PAD
from nosology.models.plant.language_model import cross_entropy_
from tests.attention.test_planted_attention import world

LABELS = 2
SETTINGS = [
    {},
    {"static": None},
    {"scores": None},
    {"static": None, "scores": None},
    {"k": 0},
    {"k": 1},
    {"k": 40},
    {"zero": True},
    {"frozen": True},
    {"k": 10},  # as many as the second note has
    {"k": 21},  # as the first
    {"scores": torch.full((LABELS, 6), -1.5)},
    {"scores": torch.tensor([0.0, -0.0, -0.0, 0.0, -0.0, 0.0]).repeat(LABELS, 1), "k": 5},  # all equal
    {"scores": torch.tensor([3e37, -3e37, 1e-45, -1e-45, 0.0, -0.0]).repeat(LABELS, 1), "k": 7},
    {"scores": torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, -7.0]).repeat(LABELS, 1), "k": 3, "zero": True},
    {"tokens": 8, "k": 3},
    {"tokens": 33, "k": 5},
    {"scope": 5, "k": 2},
    {"scope": 8, "k": 8},
    {"scope": 7, "k": 3, "zero": True, "tokens": 33},
    {"scope": 50, "k": 3},
]


def planted_attention(seed: int, case: dict) -> None:
    """The loss and its gradients by logits, products and the ranker's scores."""
    wide = case.get("tokens", 21)
    states, mask, words, decoder, planted = world(seed, tokens=wide, labels=LABELS)
    if seed % 2:
        mask = mask & (torch.arange(3) < 2)[:, None]  # a note without a token
    static, scores = case.get("static", planted.static), case.get("scores", planted.scores)
    both = torch.cat([decoder.queries, decoder.weights])
    targets = (torch.rand(3, LABELS) < 0.4).float()
    results = []
    for attend in (attend_, kernels.attend_):
        products = (both @ states.reshape(-1, 4).T).view(2, LABELS, 3, wide).clone()
        d_scores = None if scores is None or case.get("frozen") else torch.zeros_like(scores)
        prior = PlantedScores(static, scores, case.get("k", 4), case.get("scope", 0), case.get("zero", False))
        outputs = attend(products, mask, words, decoder.bias, targets, prior, d_scores, 3 * LABELS)
        results.append([*outputs, products, *([] if d_scores is None else [d_scores])])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert any(x.abs().max() > 1e-3 for x in results[0])


def selection(seed: int) -> None:
    """The selected tokens, by bound and last position, are those of `top_k_mask`, for any length and k."""
    rng = torch.Generator().manual_seed(seed)
    labels, notes, wide, columns = 2, 3, int(torch.randint(2, 40, (), generator=rng)), 9
    scores = torch.randn(labels, columns, generator=rng).round(decimals=seed % 3)
    words = torch.randint(0, columns, (notes, wide), generator=rng, dtype=torch.int32)
    lengths = torch.randint(0, wide + 1, (notes,), generator=rng)
    k = int(torch.randint(1, wide + 3, (), generator=rng))
    scope = int(torch.randint(1, wide + 1, (), generator=rng)) if seed % 2 else wide
    windows = triton.cdiv(wide, scope)
    bounds, lasts = torch.empty(2, labels, notes, windows, dtype=torch.int32)
    block = triton.next_power_of_2(scope)
    case = (words, lengths, scores, bounds, lasts, notes, wide, columns, k, scope, windows, block)
    kernels._select[(labels * notes * windows,)](*case)
    bounds, lasts = (values[:, :, torch.arange(wide) // scope] for values in (bounds, lasts))  # of each token
    results, position = scores[:, words.long()], torch.arange(wide)
    inside = position < lengths[:, None]
    bits = results.view(torch.int32)
    keys = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    above, same = keys > bounds, (keys == bounds) & (position <= lasts)
    selected = (above | same) & inside
    assert torch.equal(selected, top_k_mask(results, inside, k, scope))
    if windows == 1:
        assert torch.equal(selected.sum(2), lengths.clamp(max=k).expand(labels, -1))


def ranker(labels: int, words: int, size: int) -> None:
    """Scores of the ranker and their gradients."""
    torch.manual_seed(labels)
    leaves = [torch.randn(*shape).requires_grad_() for shape in ((labels, size), (words, size), (size,))]
    gradient = torch.randn(labels, words)
    scores = pair_scores(*leaves)
    expected = torch.autograd.grad((scores * gradient).sum(), leaves)
    plain = [leaf.detach() for leaf in leaves]
    torch.testing.assert_close(kernels.pair_scores(*plain), scores.detach(), atol=1e-5, rtol=1e-5)
    for a, b in zip(kernels.pair_scores_backward(*plain, gradient), expected):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def next_word(size: int) -> None:
    """The cross-entropy of the next word and its gradient; the second position is padding."""
    torch.manual_seed(size)
    logits, targets = 3 * torch.randn(4, size), torch.tensor([3, 0, size - 1, 1])
    results = []
    for function in (cross_entropy_, partial(kernels.cross_entropy_, ignored=PAD)):
        inputs = logits.clone()
        results.append((function(inputs, targets, torch.tensor(1 / 3)), inputs))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert (results[1][1][1] == 0).all() and results[1][1].abs().max() > 0.1


LENGTHS = torch.tensor([13, 1, 7])  # of notes in 13 columns, which no power of two divides


def near(actual: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding to bf16."""
    torch.testing.assert_close(actual.float(), expected, atol=2e-3, rtol=1e-2)


def softmax() -> None:
    """Weights, which are 0 at padding with any scores there, and their gradients."""
    scores = (3 * torch.randn(4, 2, 3, 13)).bfloat16()
    scores[..., 2, 7:] = 100.0
    plain, fused = scores.float(), scores.clone()
    dual_attention.masked_softmax_(plain, LENGTHS)
    kernels.masked_softmax_(fused, LENGTHS)
    near(fused, plain)
    assert not fused[..., 1, 1:].any() and not fused[..., 2, 7:].any()
    gradient = torch.randn(4, 2, 3, 13).bfloat16()
    expected, actual, weights = gradient.float(), gradient.clone(), fused.float()
    dual_attention.softmax_backward_(weights, expected)
    kernels.softmax_backward_(fused, actual)
    near(actual, expected)
    assert expected.abs().max() > 0.1


def relu(width: int) -> None:
    """Gradients before the ReLU, where it is active."""
    hidden = torch.randn(5, width).relu().bfloat16()
    gradient, out = torch.randn(5).bfloat16(), torch.randn(width).bfloat16()
    expected = dual_attention.relu_backward_(hidden.float(), gradient.float(), out.float())
    actual = kernels.relu_backward_(hidden, gradient, out)
    near(actual, expected)
    assert 0.3 < (actual == 0).float().mean() < 0.7


if __name__ == "__main__":
    torch.manual_seed(0)
    softmax()
    relu(40)
    relu(2100)  # more than a block
    for number, case in enumerate([{}, *SETTINGS]):
        planted_attention(number, case)
    for seed in range(8):
        selection(seed)
    ranker(70, 130, 3)
    ranker(5, 3, 9)
    next_word(9000)
    next_word(50)
    print("the kernels agree with torch")
