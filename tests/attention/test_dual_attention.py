"""Dual attention against its equations, written out note by note and left to autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as f

from nosology.attention import dual_attention as dual
from nosology.attention.dual_attention import DualHead, attention_weights, dual_logits, dual_loss, mean_attention

QUICK = settings(max_examples=25, deadline=None)
LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=6)
SIZES = st.fixed_dictionaries(
    {"d": st.integers(1, 6), "m": st.integers(1, 4), "p": st.integers(1, 5), "labels": st.integers(1, 9)}
)


def world(lengths: list[int], d: int, m: int, p: int, labels: int, seed: int = 0, spread: float = 1.0, pads: int = 0):
    """States (B, T, D) with noise after the notes' ends, lengths, queries (M, L, P) and a head, in double precision."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    states = draw(len(lengths), max(1, *lengths, 1) + pads, d)
    queries = (spread * draw(m, labels, p)).requires_grad_()
    hidden = m * d
    head = DualHead(draw(m * p, d), draw(m * p), draw(hidden, hidden), draw(hidden), draw(hidden), draw(1))
    return (
        states.requires_grad_(),
        torch.tensor(lengths),
        queries,
        DualHead(*(weight.requires_grad_() for weight in head)),
    )


def reference(states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead) -> tuple[Tensor, list[Tensor]]:
    """Equations 3 to 6: logits (B, L), and of each note its weights (M, L, length)."""
    m, _, p = queries.shape
    logits, weights = [], []
    for note, length in zip(states, lengths.clamp(min=1).tolist()):
        words = note[:length]
        keys = torch.tanh(words @ head.key.T + head.key_bias)
        weights.append(torch.stack([f.softmax(queries[i] @ keys[:, i * p : (i + 1) * p].T, dim=-1) for i in range(m)]))
        joined = torch.cat([weights[-1][i] @ words for i in range(m)], dim=-1)
        logits.append(f.relu(joined @ head.hidden.T + head.hidden_bias) @ head.out + head.out_bias)
    return torch.stack(logits), weights


def detached(head: DualHead) -> DualHead:
    return DualHead(*(weight.detach() for weight in head))


@QUICK
@given(LENGTHS, SIZES, st.integers(1, 7), st.integers(0, 99), st.integers(0, 3))
def test_loss_and_gradients_equal_autograd(lengths, sizes, chunk, seed, pads):
    states, sizes_of, queries, head = world(lengths, **sizes, seed=seed, pads=pads)
    targets = (torch.rand(len(lengths), sizes["labels"], generator=torch.Generator().manual_seed(seed)) < 0.3).double()
    inputs = (states, queries, *head)
    expected_loss = f.binary_cross_entropy_with_logits(reference(states, sizes_of, queries, head)[0], targets)
    expected = torch.autograd.grad(3 * expected_loss, inputs)
    loss = dual_loss(states, sizes_of, queries, targets, head, chunk)
    assert loss.item() == pytest.approx(expected_loss.item(), abs=1e-10)
    names = ("states", "queries", *DualHead._fields)
    for name, got, want in zip(names, torch.autograd.grad(3 * loss, inputs), expected):
        assert got.dtype == want.dtype and got.shape == want.shape, name
        assert (got - want).abs().max() < 1e-10, name


@QUICK
@given(LENGTHS, SIZES, st.integers(0, 4), st.integers(0, 5), st.integers(0, 99), st.sampled_from([0.3, 3.0, 30.0]))
def test_logits_in_chunks_equal_the_equations(lengths, sizes, notes, labels, seed, spread):
    states, sizes_of, queries, head = world(lengths, **sizes, seed=seed, spread=spread)
    expected, _ = reference(states, sizes_of, queries, head)
    with torch.no_grad():
        actual = dual_logits(states, sizes_of, queries, detached(head), notes=notes, labels=labels)
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() < 1e-9 * max(1.0, expected.abs().max().item())


def test_float32_is_close_to_float64():
    states, lengths, queries, head = world([300, 0, 17], d=16, m=4, p=16, labels=700, spread=0.5)
    scale = 1 / 16
    head = DualHead(
        head.key * scale, head.key_bias, head.hidden * scale, head.hidden_bias, head.out * scale, head.out_bias
    )
    expected, _ = reference(states, lengths, queries, head)
    with torch.no_grad():
        actual = dual_logits(states.float(), lengths, queries.float(), detached(head).to(torch.float32))
    assert actual.dtype == torch.float32
    assert (actual - expected).abs().max() < 1e-5


def test_logits_do_not_depend_on_the_memory_limit(monkeypatch):
    states, lengths, queries, head = world([5, 9, 0, 3], d=3, m=2, p=2, labels=11)
    expected, _ = reference(states, lengths, queries, head)
    monkeypatch.setattr(dual, "_MAX_CELLS", 40)
    with torch.no_grad():
        actual = dual_logits(states, lengths, queries, detached(head))
    assert (actual - expected).abs().max() < 1e-10


@pytest.mark.parametrize(("cells", "rows"), [(1 << 27, 1 << 16), (40, 1 << 16), (500, 3), (1, 1)])
def test_logits_of_several_notes_at_once_equal_the_equations(cells, rows, monkeypatch):
    """The way of a GPU, computed on the CPU."""
    states, lengths, queries, head = world([5, 9, 0, 3], d=3, m=2, p=2, labels=11)
    expected, _ = reference(states, lengths, queries, head)
    monkeypatch.setattr(dual, "_MAX_CELLS", cells)
    monkeypatch.setattr(dual, "_MAX_ROWS", rows)
    with torch.no_grad():
        actual = dual._logits_by_chunk(states, lengths, queries, detached(head), 0, 0)
    assert (actual - expected).abs().max() < 1e-10


def test_mean_attention_is_the_mean_of_the_heads_also_with_labels_of_each_note():
    states, lengths, queries, head = world([6, 0, 3], d=4, m=3, p=2, labels=5, pads=2)
    labels = torch.tensor([[0, 4], [1, 1], [3, 2]])
    with torch.no_grad():
        ends = lengths.clamp(min=1)
        each = mean_attention(states, ends, queries, detached(head))
        chosen = mean_attention(states, ends, queries[:, labels], detached(head))
    for note, (length, expected) in enumerate(zip((6, 1, 3), reference(states, lengths, queries, head)[1])):
        assert (each[note, :, :length] - expected.mean(0)).abs().max() < 1e-6 and not each[note, :, length:].any()
        assert (chosen[note] - each[note, labels[note]]).abs().max() < 1e-6


@QUICK
@given(LENGTHS, st.integers(0, 99), st.integers(1, 80))
def test_padding_does_not_change_logits(lengths, seed, pads):
    states, sizes_of, queries, head = world(lengths, d=4, m=2, p=3, labels=5, seed=seed)
    with torch.no_grad():
        noise = 100 * torch.randn(len(lengths), pads, 4, dtype=torch.float64)
        wider = torch.cat([states, noise], dim=1)
        ends = sizes_of.clamp(min=1)[:, None]
        wider = torch.where((torch.arange(wider.shape[1]) < ends)[..., None], wider, wider.flip(1) * 7)
        before = dual_logits(states, sizes_of, queries, detached(head))
        after = dual_logits(wider, sizes_of, queries, detached(head))
    assert (before - after).abs().max() < 1e-10


def test_attention_weights_equal_the_equations_and_are_zero_at_padding():
    states, lengths, queries, head = world([6, 0, 3], d=4, m=3, p=2, labels=5, pads=2)
    with torch.no_grad():
        actual, _ = attention_weights(states, lengths.clamp(min=1), queries, detached(head))
    assert actual.shape == (5, 3, 3, 8)
    for note, (length, expected) in enumerate(zip((6, 1, 3), reference(states, lengths, queries, head)[1])):
        assert (actual[:, :, note, :length].transpose(0, 1) - expected).abs().max() < 1e-12
        assert not actual[:, :, note, length:].any()


def test_loss_processes_one_chunk_at_a_time(monkeypatch):
    states, lengths, queries, head = world([8] * 6, d=4, m=2, p=2, labels=5)
    widest = []
    forward = dual._forward
    monkeypatch.setattr(dual, "_forward", lambda held, *given: widest.append(len(held)) or forward(held, *given))
    dual_loss(states, lengths, queries, torch.zeros(6, 5, dtype=torch.float64), head, chunk=2)
    assert widest == [2, 2, 2]
