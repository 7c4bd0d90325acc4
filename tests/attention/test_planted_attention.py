"""Planted attention: the equations of the paper, windows, padding, the loss in chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.attention import planted_attention
from nosology.attention.planted_attention import (
    AttentionState,
    LabelDecoder,
    PlantedScores,
    accumulate,
    accumulated_logits,
    first_top_k,
    planted_loss,
    top_k_mask,
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


def naive(states, mask, words, decoder, planted) -> torch.Tensor:
    """Equations 5 to 8, note by note and label by label."""
    actual = torch.zeros(len(states), len(decoder.bias))
    for b in range(len(states)):
        h = states[b, mask[b]]
        for j in range(len(decoder.bias)):
            weight = torch.softmax(h @ decoder.queries[j], 0)
            if planted.static is not None:
                weight = weight + planted.static[j, words[b, mask[b]]]
            if planted.scores is not None:
                score = planted.scores[j, words[b, mask[b]]]
                k, scope = planted.k or len(score), planted.scope or len(score)
                fixed = score.detach().tolist()
                selected = torch.zeros(len(score), dtype=torch.bool)
                for start in range(0, len(score), scope):
                    window = range(start, min(start + scope, len(score)))
                    selected[sorted(window, key=lambda t: (-fixed[t], t))[:k]] = True
                rest = 0.0 if planted.literal_zero else -torch.inf
                weight = weight + torch.softmax(torch.where(selected, score, torch.tensor(rest)), 0)
            actual[b, j] = (weight @ h) @ decoder.weights[j] + decoder.bias[j]
    return actual


def run(states, mask, words, decoder, planted) -> torch.Tensor:
    seen = AttentionState.empty(len(states), len(decoder.bias), 0, states)
    return accumulated_logits(accumulate(states, mask, words, decoder, planted, seen), decoder)


@pytest.mark.parametrize("without", [(), ("static",), ("scores",), ("static", "scores"), ("k",)])
def test_logits_equal_the_equations(without):
    states, mask, words, decoder, planted = world(0)
    planted = PlantedScores(**(vars(planted) | {name: 0 if name == "k" else None for name in without}))
    torch.testing.assert_close(
        run(states, mask, words, decoder, planted), naive(states, mask, words, decoder, planted), atol=1e-5, rtol=1e-5
    )


def test_literal_zero_gives_weight_to_unselected_tokens():
    *inputs, planted = world(5)
    zero = replace(planted, literal_zero=True)
    torch.testing.assert_close(run(*inputs, zero), naive(*inputs, zero), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(run(*inputs, zero), run(*inputs, planted))


def test_inattention_keeps_k_tokens_of_each_window_in_the_scope_of_the_paper():
    """56 of 72 tokens of each window are 78% of a long note; 56 of the whole note are 4%."""
    scores = torch.randn(1, 1500)
    inside = torch.arange(1500) < 1440
    by_window = top_k_mask(scores, inside, 56, 72)
    assert by_window[0, :1440].view(20, 72).sum(1).tolist() == [56] * 20 and not by_window[0, 1440:].any()
    assert top_k_mask(scores, inside, 56).sum() == 56
    assert torch.equal(top_k_mask(scores, inside, 72, 72), inside[None]), "k = 72 keeps all"
    assert torch.equal(top_k_mask(scores[:, :72], inside[:72], 56, 72), top_k_mask(scores[:, :72], inside[:72], 56))


@given(
    seed=st.integers(0, 500),
    width=st.integers(1, 20),
    k=st.sampled_from([0, 1, 4]),
    scoped=st.booleans(),
    zero=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_logits_from_windows_equal_the_equations(seed, width, k, scoped, zero):
    states, mask, words, decoder, planted = world(seed)
    planted = PlantedScores(planted.static, planted.scores, k, width if scoped else 0, zero)
    seen = AttentionState.empty(len(states), len(decoder.bias), 0, states)
    for parts in zip(states.split(width, 1), mask.split(width, 1), words.split(width, 1)):
        seen = accumulate(*parts, decoder, planted, seen)
        assert seen.keys.shape[2] <= max(1, k)  # what is kept does not grow, also where all tokens count
    expected = naive(states, mask, words, decoder, planted)
    torch.testing.assert_close(accumulated_logits(seen, decoder), expected, atol=1e-4, rtol=1e-4)


def test_windows_must_be_those_of_the_scope():
    states, mask, words, decoder, planted = world(0)
    planted, seen = replace(planted, scope=5), AttentionState.empty(3, 5, 0, states)
    seen = accumulate(states[:, :4], mask[:, :4], words[:, :4], decoder, planted, seen)
    with pytest.raises(ValueError, match="windows must have 5 tokens; got 4"):
        accumulate(states[:, 4:], mask[:, 4:], words[:, 4:], decoder, planted, seen)


def test_padding_and_batch_size_change_nothing():
    states, mask, words, decoder, planted = world(1)
    full = run(states, mask, words, decoder, planted)
    noise = torch.where(mask[..., None], states, torch.full_like(states, 1e4))
    torch.testing.assert_close(run(noise, mask, words, decoder, planted), full)
    for b, n in enumerate(mask.sum(1).tolist()):
        alone = run(states[b : b + 1, :n], mask[b : b + 1, :n], words[b : b + 1, :n], decoder, planted)
        torch.testing.assert_close(alone, full[b : b + 1], atol=1e-5, rtol=1e-5)


def test_exactly_k_tokens_are_selected():
    states, mask, words, decoder, planted = world(2)
    seen = accumulate(states, mask, words, decoder, planted, AttentionState.empty(3, 5, 0, states))
    selected = (seen.keys > torch.iinfo(torch.int64).min).sum(2)
    assert (selected == mask.sum(1).clamp(max=planted.k)[:, None]).all()


@pytest.mark.parametrize("k", [0, 4])
def test_gradients_equal_the_naive_ones(k):
    states, mask, words, decoder, planted = world(3)
    grads = []
    for score in (run, naive):
        leaves = [x.clone().requires_grad_() for x in (states, *vars(decoder).values(), planted.static, planted.scores)]
        outputs = score(leaves[0], mask, words, LabelDecoder(*leaves[1:4]), PlantedScores(leaves[4], leaves[5], k))
        grads.append(torch.autograd.grad((outputs * torch.arange(15.0).view(3, 5)).sum(), leaves))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_logits_of_a_note_without_tokens_are_the_bias():
    states, mask, words, decoder, planted = world(4)
    actual = run(states, torch.zeros_like(mask), words, decoder, planted)
    torch.testing.assert_close(actual, decoder.bias.expand(3, -1))


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"static": None},
        {"scores": None},
        {"static": None, "scores": None},
        {"k": 0},
        {"literal_zero": True},
        {"scope": 5, "k": 2},
        {"scope": 5, "k": 2, "literal_zero": True},
    ],
    ids=str,
)
def test_loss_and_gradients_equal_the_equations(chunk, other):
    states, mask, words, decoder, planted = world(7)
    prior = vars(planted) | other
    targets = (torch.rand(3, 5) < 0.4).float()
    grads, losses = [], []
    for use_reference in (0, 1):
        inputs = {name: prior[name] for name in ("static", "scores") if prior[name] is not None}
        leaves = [x.clone().requires_grad_() for x in (states, *vars(decoder).values(), *inputs.values())]
        parts, plan = LabelDecoder(*leaves[1:4]), PlantedScores(**(prior | dict(zip(inputs, leaves[4:]))))
        if use_reference:
            loss = binary_cross_entropy_with_logits(run(leaves[0], mask, words, parts, plan), targets)
        else:
            loss = planted_loss(leaves[0], mask, words, parts, plan, targets, chunk=chunk)
        expected = [leaf for name, leaf in zip(("h", "u", "w", "b", *inputs), leaves) if name != "static"]
        losses.append(loss.detach())
        grads.append(torch.autograd.grad(2 * loss, expected))
    torch.testing.assert_close(losses[0], losses[1], atol=1e-6, rtol=1e-5)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_top_k_mask_prefers_the_first_of_equal_scores():
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 9.0]])
    mask = torch.tensor([True, True, True, True, True, False])
    assert top_k_mask(scores, mask, 2).tolist() == [[False, True, True, False, False, False]]
    assert top_k_mask(scores, mask, 0).tolist() == [mask.tolist()]
    assert top_k_mask(scores, mask, 5).tolist() == [mask.tolist()]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 11), st.integers(0, 12))
def test_first_top_k_are_the_places_of_top_k_mask(seed, k, padding):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (3, 5, 12), generator=generator).float()
    mask = torch.arange(12) < 12 - padding
    scores = scores.masked_fill(~mask, -torch.inf)
    found = torch.zeros_like(scores, dtype=torch.bool).scatter_(2, first_top_k(scores, k), True)
    assert torch.equal(found & mask, top_k_mask(scores, mask, k))


@pytest.mark.parametrize("values", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_k_places_are_found_whatever_the_scores_are(values):
    scores = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    scores[0, 1] = values
    scores[1, 2, 2:5] = values
    places = first_top_k(scores, 4)
    assert places.shape == (2, 3, 4) and all(len(set(row)) == 4 for row in places.flatten(0, 1).tolist())


@pytest.mark.parametrize("k", [4, 0])
def test_blocks_of_labels_change_nothing(monkeypatch, k):
    """A CPU computes loss, gradients and states of a few labels after the other."""
    results = []
    for block in (1 << 19, 60, 1):
        monkeypatch.setattr(planted_attention, "_CPU_BLOCK", block)
        states, mask, words, decoder, planted = world(5, labels=7)
        planted = replace(planted, k=k)
        before = accumulate(states, mask, words, decoder, planted, AttentionState.empty(3, 7, 0, states))
        logits = accumulated_logits(accumulate(states, mask, words, decoder, planted, before), decoder)
        leaves = [x.requires_grad_() for x in (states, decoder.queries, decoder.weights, decoder.bias, planted.scores)]
        targets = torch.randint(0, 2, (3, 7), generator=torch.Generator().manual_seed(0)).float()
        loss = planted_loss(states, mask, words, decoder, planted, targets, chunk=2)
        results.append([logits.detach(), loss.detach(), *torch.autograd.grad(loss, leaves)])
    for other in results[1:]:
        for actual, expected in zip(other, results[0]):
            torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)
