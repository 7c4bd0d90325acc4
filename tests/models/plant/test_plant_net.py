"""PLANT's net: long notes in windows, both directions, the ranker's scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.utils._python_dispatch import TorchDispatchMode

from nosology.models.plant.plant_net import PlantNet, Ranker
from nosology.models.plant.plant_settings import PlantSettings, RankerSettings
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import Batch, pad_notes

WORDS, LABELS = 50, 6


def net(backward: bool = False, **shape) -> PlantNet:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    matrices = (rng.random((60, WORDS)) < 0.3, rng.random((60, LABELS)) < 0.3)
    relevance = Relevance.of(*(sparse.csr_matrix(m.astype(np.int8)) for m in matrices))
    told = PlantSettings(size=8, hidden=10, layers=2, **({"inattention": 5, "window": 72} | shape))
    made = PlantNet(told, RankerSettings(hidden=6), WORDS, LABELS, relevance, backward)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made.eval()


def notes(lengths: list[int], seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(*pad_notes([rng.integers(2, WORDS, n) for n in lengths]))


@pytest.mark.parametrize("backward", [False, True])
def test_a_note_of_20000_words_in_windows_equals_the_whole(backward):
    batch = notes([20_000])
    with torch.no_grad():
        windows, whole = net(backward).logits(batch), net(backward, window=20_000).logits(batch)
    torch.testing.assert_close(windows, whole, atol=1e-4, rtol=1e-4)


class Largest(TorchDispatchMode):
    """The largest number of numbers of any tensor of floats that is made while it is on."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = made if isinstance(made, tuple | list) else [made]
        floats = (x.numel() for x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point())
        self.size = max([self.size, *floats])
        return made


@pytest.mark.parametrize("shape", [{}, {"inattention": 0}, {"literal_zero": True}], ids=str)
def test_what_is_in_memory_does_not_grow_with_the_note(shape):
    """The largest tensor of anything that the windowed reading makes is as large for 160 as for 1,600 words."""
    model, found = net(window=16, **shape), []
    for times in (10, 100):
        with torch.no_grad(), Largest() as largest:
            model.logits(Batch(*pad_notes([np.tile(np.arange(2, 18), times)])))
        found.append(largest.size)
    assert found[0] == found[1] < 1600


@pytest.mark.parametrize("kept", [1, 10_000])
def test_labels_are_asked_in_parts_and_notes_are_read_once(monkeypatch, kept):
    """As many labels as have room share one reading; the logits are those of all labels at once."""
    model, batch, reads = net(window=10), notes([37, 12]), []
    with torch.no_grad():
        whole = model.logits(batch)
    monkeypatch.setattr("nosology.models.plant.plant_net._INSIDE", 2)
    monkeypatch.setattr("nosology.models.plant.plant_net._KEPT", kept)
    real = model.encoder.forward
    monkeypatch.setattr(model.encoder, "forward", lambda *given: (reads.append(1), real(*given))[1])
    with torch.no_grad():
        torch.testing.assert_close(model.logits(batch), whole, atol=1e-6, rtol=1e-5)
    assert len(reads) == 4 * (3 if kept == 1 else 1)  # windows of ten tokens, three parts of two labels


def test_attention_is_what_the_logits_are_made_of():
    """Also where the paper's zero leaves the tokens that are not kept some weight."""
    batch = notes([30])
    zero, ours = (net(literal_zero=literal, static=False) for literal in (True, False))
    for model in (zero, ours):
        with torch.no_grad():
            states, weights = model.encoder(batch.tokens)[0], model.attention(batch)[0, :, :30]
            made = 2 * (weights @ states[0, :30] * model.weights).sum(1) + model.bias
            torch.testing.assert_close(made, model.logits(batch)[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(zero.attention(batch), ours.attention(batch))


def test_the_backward_net_reads_from_the_end():
    forward, backward = net(), net(backward=True)
    batch = notes([9, 5])
    turned = Batch(*pad_notes([batch.tokens[i, : int(n)].numpy()[::-1].copy() for i, n in enumerate(batch.lengths)]))
    with torch.no_grad():
        torch.testing.assert_close(backward.logits(batch), forward.logits(turned), atol=1e-5, rtol=1e-5)
        there, back = backward.attention(batch), forward.attention(turned)
    torch.testing.assert_close(there[1, :, :5], back[1, :, :5].flip(1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scorer", ["mlp", "dot"])
def test_the_ranker_scores_pairs(scorer):
    torch.manual_seed(0)
    ranker = Ranker(RankerSettings(scorer=scorer, hidden=6), 8, WORDS, LABELS)
    words, vectors = torch.tensor([9, 2, 3, 4, 2, 30, 11]), torch.randn(7, 8)
    for training in (True, False):
        found = ranker.train(training)(words, vectors)
        left, right = ranker.of_label(ranker.labels), ranker.of_word(vectors) + ranker.words[words]
        both = left[:, None] * right if scorer == "dot" else (left[:, None] + right).relu()
        torch.testing.assert_close(found, both @ ranker.weights, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ranker(words, vectors, torch.tensor([3, 1])), found[[3, 1]], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("off", ["static", "planted"])
def test_attentions_can_be_left_out(off):
    model = net(**{off: False})
    with torch.no_grad():
        assert torch.isfinite(model.logits(notes([30]))).all()
    assert (model.ranker is None) == (off == "planted")


@pytest.mark.parametrize("chunk", [1, 2])
def test_nothing_of_labels_x_tokens_x_features_is_in_memory(monkeypatch, chunk):
    """A training step, derivatives too: two numbers a label and token of the notes at hand are the most there is."""
    monkeypatch.setattr("nosology.attention.planted_attention._TILE", 500)
    monkeypatch.setattr("nosology.models.plant.plant_net._LONG", 160)
    model, batch = net(chunk=chunk).train(), notes([160, 155, 150, 140])
    batch = Batch(batch.tokens, batch.lengths, None, torch.zeros(4, LABELS))
    states = model.encoder(batch.tokens)[0].detach().requires_grad_()
    monkeypatch.setattr(model.encoder, "forward", lambda tokens: (states, None))  # the LSTM's memory is its own
    with Largest() as largest:
        model(batch).backward()
    tokens = batch.tokens.shape[1]
    assert largest.size < LABELS * tokens * model.settings.size  # what the features of one note would be
    assert largest.size == max(2 * chunk * LABELS * tokens, states.numel())
    assert states.grad is not None and model.ranker.labels.grad is not None
