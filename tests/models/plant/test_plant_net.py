"""Tests of the net of PLANT: long notes in windows, both directions, scores of the ranker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode

from nosology.models.plant.plant_model import PlantNet
from nosology.models.plant.plant_settings import PlantSettings, RankerSettings
from nosology.models.plant.ranker import Ranker
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import Batch, pad_notes

WORDS, LABELS = 50, 6


@pytest.fixture(autouse=True)
def narrow_windows(monkeypatch):
    """A window has as many tokens as the settings say, so that short notes have several."""
    monkeypatch.setattr("nosology.models.plant.plant_model._WIDE_WINDOW", 1)


def net(backward: bool = False, **shape) -> PlantNet:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    matrices = (rng.random((60, WORDS)) < 0.3, rng.random((60, LABELS)) < 0.3)
    relevance = Relevance.of(*(sparse.csr_matrix(m.astype(np.int8)) for m in matrices))
    settings = PlantSettings(size=8, hidden=10, layers=2, **({"inattention": 5, "window": 72} | shape))
    created = PlantNet(settings, RankerSettings(hidden=6), WORDS, LABELS, relevance, backward)
    with torch.no_grad():
        for parameter in created.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return created.eval()


def notes(lengths: list[int], seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(*pad_notes([rng.integers(2, WORDS, n) for n in lengths]))


@pytest.mark.parametrize("backward", [False, True])
def test_logits_do_not_depend_on_the_window(backward):
    batch = notes([20_000])
    with torch.no_grad():
        windows, expected = net(backward).logits(batch), net(backward, window=20_000).logits(batch)
    torch.testing.assert_close(windows, expected, atol=1e-4, rtol=1e-4)


class Largest(TorchDispatchMode):
    """The size of the largest tensor of floats that is created in this context."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        created = func(*args, **(kwargs or {}))
        tensors = created if isinstance(created, tuple | list) else [created]
        floats = (x.numel() for x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point())
        self.size = max([self.size, *floats])
        return created


WINDOW = {"inattention_scope": "window"}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shape", [{}, {"literal_zero": True}], ids=str)
def test_inattention_of_windows_is_the_same_in_training_inference_and_attention(backward, shape):
    """The loss reads whole notes, `logits` window by window, `attention` whole notes again."""
    batch = notes([37, 12, 5])
    batch = replace(batch, targets=(torch.rand(3, LABELS, generator=torch.Generator().manual_seed(0)) < 0.5).float())
    model = net(backward, window=10, inattention=4, static=False, **WINDOW, **shape)
    with torch.no_grad():
        logits = model.logits(batch)
        expected = binary_cross_entropy_with_logits(logits, batch.targets)
        torch.testing.assert_close(model(batch), expected, atol=1e-6, rtol=1e-5)
        states = model.encoder(model._reverse(batch.tokens, batch.lengths))[0]
        for row, length in enumerate(batch.lengths.tolist()):
            weights = model._reverse(model.attention(batch), batch.lengths)[row, :, :length]
            created = 2 * (weights @ states[row, :length] * model.weights).sum(1) + model.bias
            torch.testing.assert_close(created, logits[row], atol=1e-5, rtol=1e-5)
        whole_note = net(backward, window=10, inattention=4, static=False, **shape).logits(batch)
    assert not torch.allclose(logits[0], whole_note[0]), "4 tokens of each window are more than 4 of the note"
    torch.testing.assert_close(logits[2], whole_note[2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [{}, {"inattention": 0}, {"literal_zero": True}, WINDOW], ids=str)
def test_memory_does_not_grow_with_the_note(shape):
    """The largest tensor is the same for 160 and for 1,600 words."""
    model, actual = net(window=16, **shape), []
    for times in (10, 100):
        with torch.no_grad(), Largest() as largest:
            model.logits(Batch(*pad_notes([np.tile(np.arange(2, 18), times)])))
        actual.append(largest.size)
    assert actual[0] == actual[1] < 1600


@pytest.mark.parametrize("max_selected", [1, 10_000])
def test_parts_of_the_labels_share_one_encoding(monkeypatch, max_selected):
    """The logits are those of all labels at once."""
    model, batch, reads = net(window=10), notes([37, 12]), []
    with torch.no_grad():
        expected = model.logits(batch)
    monkeypatch.setattr("nosology.models.plant.plant_model._MAX_LABELS", 2)
    monkeypatch.setattr("nosology.models.plant.plant_model._MAX_SELECTED", max_selected)
    real = model.encoder.forward
    monkeypatch.setattr(model.encoder, "forward", lambda *arguments: (reads.append(1), real(*arguments))[1])
    with torch.no_grad():
        torch.testing.assert_close(model.logits(batch), expected, atol=1e-6, rtol=1e-5)
    assert len(reads) == 4 * (3 if max_selected == 1 else 1)  # windows of ten tokens, three parts of two labels


def test_logits_follow_from_attention():
    """Also if tokens that are not selected have some weight, as in the paper."""
    batch = notes([30])
    zero, ours = (net(literal_zero=literal, static=False) for literal in (True, False))
    for model in (zero, ours):
        with torch.no_grad():
            states, weights = model.encoder(batch.tokens)[0], model.attention(batch)[0, :, :30]
            created = 2 * (weights @ states[0, :30] * model.weights).sum(1) + model.bias
            torch.testing.assert_close(created, model.logits(batch)[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(zero.attention(batch), ours.attention(batch))


def test_backward_net_reads_reversed_notes():
    forward, backward = net(), net(backward=True)
    batch = notes([9, 5])
    reversed_batch = Batch(
        *pad_notes([batch.tokens[i, : int(n)].numpy()[::-1].copy() for i, n in enumerate(batch.lengths)])
    )
    with torch.no_grad():
        torch.testing.assert_close(backward.logits(batch), forward.logits(reversed_batch), atol=1e-5, rtol=1e-5)
        there, back = backward.attention(batch), forward.attention(reversed_batch)
    torch.testing.assert_close(there[1, :, :5], back[1, :, :5].flip(1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scorer", ["mlp", "dot"])
def test_ranker_scores_equal_the_formula(scorer):
    torch.manual_seed(0)
    ranker = Ranker(RankerSettings(scorer=scorer, hidden=6), 8, WORDS, LABELS)
    words, vectors = torch.tensor([9, 2, 3, 4, 2, 30, 11]), torch.randn(7, 8)
    for training in (True, False):
        actual = ranker.train(training)(words, vectors)
        left, right = ranker.of_label(ranker.labels), ranker.of_word(vectors) + ranker.words[words]
        both = left[:, None] * right if scorer == "dot" else (left[:, None] + right).relu()
        torch.testing.assert_close(actual, both @ ranker.weights, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ranker(words, vectors, torch.tensor([3, 1])), actual[[3, 1]], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("off", ["static", "planted"])
def test_each_attention_can_be_switched_off(off):
    model = net(**{off: False})
    with torch.no_grad():
        assert torch.isfinite(model.logits(notes([30]))).all()
    assert (model.ranker is None) == (off == "planted")


@pytest.mark.parametrize("chunk", [1, 2])
def test_training_memory_is_limited_by_the_chunk(monkeypatch, chunk):
    """The largest tensor has two values per label and token of a chunk."""
    monkeypatch.setattr("nosology.attention.pair_scores._TILE", 500)
    monkeypatch.setattr("nosology.models.plant.plant_model._LONG_NOTE", 160)
    model, batch = net(chunk=chunk).train(), notes([160, 155, 150, 140])
    batch = Batch(batch.tokens, batch.lengths, None, torch.zeros(4, LABELS))
    states = model.encoder(batch.tokens)[0].detach().requires_grad_()
    monkeypatch.setattr(model.encoder, "forward", lambda tokens: (states, None))  # without the memory of the LSTM
    with Largest() as largest:
        model(batch).backward()
    tokens = batch.tokens.shape[1]
    assert largest.size < LABELS * tokens * model.settings.size  # the features of one note would have that size
    assert largest.size == max(2 * chunk * LABELS * tokens, states.numel())
    assert states.grad is not None and model.ranker.labels.grad is not None


def stateless(backward: bool = False, **shape) -> PlantNet:
    return net(backward, window=10, **({"stateful": False, "last_windows": 2} | shape))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shape", [{}, WINDOW, {"inattention": 0}, {"literal_zero": True}], ids=str)
def test_decoder_without_state_reads_the_last_windows(backward, shape):
    """Loss, logits and attention agree, and are those of the last two windows: 17 of 37 tokens, all 20 and 12."""
    batch = notes([37, 20, 12])
    batch = replace(batch, targets=(torch.rand(3, LABELS, generator=torch.Generator().manual_seed(0)) < 0.5).float())
    model, whole = stateless(backward, static=False, **shape), net(backward, window=10, static=False, **shape)
    with torch.no_grad():
        logits, weights = model.logits(batch), model._reverse(model.attention(batch), batch.lengths)
        torch.testing.assert_close(model(batch), binary_cross_entropy_with_logits(logits, batch.targets))
        states = model.encoder(model._reverse(batch.tokens, batch.lengths))[0]
        created = 2 * (torch.einsum("blt,btd->bld", weights, states) * model.weights).sum(2) + model.bias
        with_state = whole.logits(batch)
    torch.testing.assert_close(created, logits, atol=1e-5, rtol=1e-5)
    assert not weights[0, :, :20].any() and weights[0, :, 20:37].any(1).all()
    assert not torch.allclose(logits[0], with_state[0], atol=1e-3)
    torch.testing.assert_close(logits[1:], with_state[1:], atol=1e-5, rtol=1e-5)


def test_encoder_carries_its_state_to_a_decoder_without_state():
    """A word before the last windows changes the states that the decoder reads."""
    batch = notes([37])
    other = batch.tokens.clone()
    other[0, 0] = 2 if other[0, 0] != 2 else 3
    with torch.no_grad():
        logits = [stateless().logits(Batch(tokens, batch.lengths)) for tokens in (batch.tokens, other)]
    assert not torch.equal(*logits)


@pytest.mark.parametrize("backward", [False, True])
def test_padding_does_not_change_a_decoder_without_state(backward):
    """The logits of a note are the same next to a longer one, in inference and in the loss."""
    model, batch = stateless(backward), notes([64, 37, 5])
    targets = (torch.rand(3, LABELS, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    with torch.no_grad():
        together, losses = model.logits(batch), []
        for row, length in enumerate(batch.lengths.tolist()):
            alone = Batch(batch.tokens[row : row + 1, :length], batch.lengths[row : row + 1], None, targets[row, None])
            torch.testing.assert_close(model.logits(alone)[0], together[row], atol=1e-5, rtol=1e-5)
            losses.append(model(alone))
        loss = model(replace(batch, targets=targets))
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_gradient_of_a_decoder_without_state_reaches_the_words_before_it():
    model, batch = stateless(), notes([37, 12])
    model(replace(batch, targets=torch.zeros(2, LABELS))).backward()
    assert model.encoder.encoder.weight.grad[batch.tokens[0, 0]].any()
    assert model.queries.grad.any() and model.ranker.labels.grad.any()
