"""PLANT's GPU kernels, interpreted on the CPU, beside plain torch: run with TRITON_INTERPRET=1.

It is a program of its own because triton decides when it is imported whether kernels are compiled or interpreted.
"""

from __future__ import annotations

import torch
import triton

from nosology.attention import planted_kernels
from nosology.attention.planted_attention import _attend_, pair_scores, top_k_mask
from nosology.models.plant import next_word_kernels
from nosology.models.plant.next_word import cross_entropy_
from tests.attention.test_planted import world

SETTINGS = [
    {},
    {"static": None},
    {"scores": None},
    {"static": None, "scores": None},
    {"k": 0},
    {"k": 1},
    {"k": 40},
    {"zero": True},
    {"still": True},
    {"k": 10},  # as many as the second note has
    {"k": 21},  # as the first
    {"scores": torch.full((5, 6), -1.5)},
    {"scores": torch.tensor([0.0, -0.0, -0.0, 0.0, -0.0, 0.0]).repeat(5, 1), "k": 5},  # all equal
    {"scores": torch.tensor([3e37, -3e37, 1e-45, -1e-45, 0.0, -0.0]).repeat(5, 1), "k": 7},
    {"scores": torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, -7.0]).repeat(5, 1), "k": 3, "zero": True},
    {"tokens": 8, "k": 3},
    {"tokens": 33, "k": 5},
]


def planted_attention(seed: int, told: dict) -> None:
    """Loss, slopes, derivatives by products and by the ranker's scores."""
    wide = told.get("tokens", 21)
    states, mask, words, decoder, planted = world(seed, tokens=wide)
    if seed % 2:
        mask = mask & (torch.arange(3) < 2)[:, None]  # a note without a token
    static, scores = told.get("static", planted.static), told.get("scores", planted.scores)
    both = torch.cat([decoder.queries, decoder.weights])
    targets = (torch.rand(3, 5) < 0.4).float()
    found = []
    for fused in (False, True):
        products = (both @ states.reshape(-1, 4).T).view(2, 5, 3, wide).clone()
        moved = None if scores is None or told.get("still") else torch.zeros_like(scores)
        rest = (words, decoder.bias, targets, static, scores, moved, told.get("k", 4), told.get("zero", False), 15)
        made = planted_kernels.attend_(products, mask.sum(1), *rest) if fused else _attend_(products, mask, *rest)
        found.append([*made, products, *([] if moved is None else [moved])])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert any(x.abs().max() > 1e-3 for x in found[0])


def choice(seed: int) -> None:
    """Which tokens are chosen, by bound and last place: exactly those of `kept_first`, at any length and k."""
    rng = torch.Generator().manual_seed(seed)
    labels, notes, wide, columns = 4, 3, int(torch.randint(2, 40, (), generator=rng)), 9
    scores = torch.randn(labels, columns, generator=rng).round(decimals=seed % 3)
    words = torch.randint(0, columns, (notes, wide), generator=rng, dtype=torch.int32)
    lengths = torch.randint(0, wide + 1, (notes,), generator=rng)
    k = int(torch.randint(1, wide + 3, (), generator=rng))
    bounds, lasts = torch.empty(2, labels, notes, dtype=torch.int32)
    block = triton.next_power_of_2(wide)
    told = (words, lengths, scores, bounds, lasts, notes, wide, columns, k, block)
    planted_kernels._select[(labels * notes,)](*told)
    found, place = scores[:, words.long()], torch.arange(wide)
    inside = place < lengths[:, None]
    bits = found.view(torch.int32)
    keys = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    above, same = keys > bounds[..., None], (keys == bounds[..., None]) & (place <= lasts[..., None])
    kept = (above | same) & inside
    assert torch.equal(kept, top_k_mask(found, inside, k))
    assert torch.equal(kept.sum(2), lengths.clamp(max=k).expand(labels, -1))


def ranker(labels: int, words: int, size: int) -> None:
    """Scores and their derivatives."""
    torch.manual_seed(labels)
    leaves = [torch.randn(*shape).requires_grad_() for shape in ((labels, size), (words, size), (size,))]
    slope = torch.randn(labels, words)
    made = pair_scores(*leaves)
    wanted = torch.autograd.grad((made * slope).sum(), leaves)
    plain = [leaf.detach() for leaf in leaves]
    torch.testing.assert_close(planted_kernels.pair_scores(*plain), made.detach(), atol=1e-5, rtol=1e-5)
    for a, b in zip(planted_kernels.pair_scores_backward(*plain, slope), wanted):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def next_word(size: int) -> None:
    """The cross entropy of the next word, with its derivatives; the second position is not asked for."""
    torch.manual_seed(size)
    logits, targets = 3 * torch.randn(4, size), torch.tensor([3, 0, size - 1, 1])
    found = []
    for way in (cross_entropy_, next_word_kernels.cross_entropy_):
        given = logits.clone()
        found.append((way(given, targets, torch.tensor(1 / 3)), given))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert (found[1][1][1] == 0).all() and found[1][1].abs().max() > 0.1


if __name__ == "__main__":
    for number, told in enumerate(2 * SETTINGS[:1] + SETTINGS):
        planted_attention(number, told)
    for seed in range(8):
        choice(seed)
    ranker(70, 130, 3)
    ranker(5, 3, 9)
    next_word(9000)
    next_word(50)
    print("the kernels agree with torch")
