"""Planted attention: the paper's equations, exactly k, windows, pads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.attention.planted_attention import (
    AttentionState,
    LabelDecoder,
    PlantedScores,
    accumulate,
    accumulated_logits,
)


def world(seed: int, notes: int = 3, tokens: int = 17, labels: int = 5, words: int = 6, size: int = 4):
    """Notes of different lengths with few different words, so that ties are many."""
    torch.manual_seed(seed)
    states = torch.randn(notes, tokens, size, dtype=torch.float64).float()
    lengths = torch.tensor([tokens, tokens // 2, 1][:notes])
    mask = torch.arange(tokens) < lengths[:, None]
    decoder = LabelDecoder(torch.randn(labels, size), torch.randn(labels, size), torch.randn(labels))
    planted = PlantedScores(torch.rand(labels, words), torch.randn(labels, words).round(decimals=1), 4)
    return states, mask, torch.randint(0, words, (notes, tokens)), decoder, planted


def naive(states, mask, words, decoder, planted, zero: bool = False) -> torch.Tensor:
    """Equations 5 to 8, note by note and label by label."""
    found = torch.zeros(len(states), len(decoder.bias))
    for b in range(len(states)):
        h = states[b, mask[b]]
        for j in range(len(decoder.bias)):
            weight = torch.softmax(h @ decoder.queries[j], 0)
            if planted.static is not None:
                weight = weight + planted.static[j, words[b, mask[b]]]
            if planted.scores is not None:
                score = planted.scores[j, words[b, mask[b]]]
                k = planted.k or len(score)
                fixed = score.detach().tolist()
                first = sorted(range(len(score)), key=lambda t: (-fixed[t], t))[:k]
                kept = torch.zeros(len(score), dtype=torch.bool)
                kept[first] = True
                weight = weight + torch.softmax(torch.where(kept, score, torch.tensor(0.0 if zero else -torch.inf)), 0)
            found[b, j] = (weight @ h) @ decoder.weights[j] + decoder.bias[j]
    return found


def whole(states, mask, words, decoder, planted, zero: bool = False) -> torch.Tensor:
    seen = AttentionState.empty(len(states), len(decoder.bias), 0, states)
    return accumulated_logits(accumulate(states, mask, words, decoder, planted, seen), decoder, zero)


@pytest.mark.parametrize("without", [(), ("static",), ("scores",), ("static", "scores"), ("k",)])
def test_equals_the_equations(without):
    states, mask, words, decoder, planted = world(0)
    planted = PlantedScores(**(vars(planted) | {name: 0 if name == "k" else None for name in without}))
    torch.testing.assert_close(
        whole(states, mask, words, decoder, planted), naive(states, mask, words, decoder, planted), atol=1e-5, rtol=1e-5
    )


def test_the_papers_zero_leaves_the_others_some_weight():
    given = world(5)
    torch.testing.assert_close(whole(*given, zero=True), naive(*given, zero=True), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(whole(*given, zero=True), whole(*given))


@given(seed=st.integers(0, 500), width=st.integers(1, 20), k=st.sampled_from([0, 1, 4]), zero=st.booleans())
@settings(max_examples=40, deadline=None)
def test_windows_equal_the_equations(seed, width, k, zero):
    states, mask, words, decoder, planted = world(seed)
    planted = PlantedScores(planted.static, planted.scores, k)
    seen = AttentionState.empty(len(states), len(decoder.bias), 0, states)
    for parts in zip(states.split(width, 1), mask.split(width, 1), words.split(width, 1)):
        seen = accumulate(*parts, decoder, planted, seen)
        assert seen.keys.shape[2] <= max(1, k)  # what is kept does not grow, also where all tokens count
    wanted = naive(states, mask, words, decoder, planted, zero)
    torch.testing.assert_close(accumulated_logits(seen, decoder, zero), wanted, atol=1e-4, rtol=1e-4)


def test_pads_and_batch_mates_change_nothing():
    states, mask, words, decoder, planted = world(1)
    every = whole(states, mask, words, decoder, planted)
    noise = torch.where(mask[..., None], states, torch.full_like(states, 1e4))
    torch.testing.assert_close(whole(noise, mask, words, decoder, planted), every)
    for b, n in enumerate(mask.sum(1).tolist()):
        alone = whole(states[b : b + 1, :n], mask[b : b + 1, :n], words[b : b + 1, :n], decoder, planted)
        torch.testing.assert_close(alone, every[b : b + 1], atol=1e-5, rtol=1e-5)


def test_exactly_k_tokens_have_a_planted_weight():
    states, mask, words, decoder, planted = world(2)
    seen = accumulate(states, mask, words, decoder, planted, AttentionState.empty(3, 5, 0, states))
    kept = (seen.keys > torch.iinfo(torch.int64).min).sum(2)
    assert (kept == mask.sum(1).clamp(max=planted.k)[:, None]).all()


@pytest.mark.parametrize("k", [0, 4])
def test_gradients_are_the_naive_ones_and_reach_everything(k):
    states, mask, words, decoder, planted = world(3)
    grads = []
    for score in (whole, naive):
        leaves = [x.clone().requires_grad_() for x in (states, *vars(decoder).values(), planted.static, planted.scores)]
        made = score(leaves[0], mask, words, LabelDecoder(*leaves[1:4]), PlantedScores(leaves[4], leaves[5], k))
        grads.append(torch.autograd.grad((made * torch.arange(15.0).view(3, 5)).sum(), leaves))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_note_without_a_token_has_the_bias():
    states, mask, words, decoder, planted = world(4)
    found = whole(states, torch.zeros_like(mask), words, decoder, planted)
    torch.testing.assert_close(found, decoder.bias.expand(3, -1))
