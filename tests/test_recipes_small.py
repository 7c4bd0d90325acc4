"""Tied initialization and word-vector epochs of the built-in recipes, for small corpora."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.config import load_recipe
from nosology.encoders.word_vectors import random_vectors
from nosology.models.dual_laat.dual_laat_model import DualLaatNet
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.training.data_loader import Batch, pad_notes
from nosology.training.recipe_settings import WordVectorSettings

WORDS = 60


def untrained(encoder: str, tied: bool, seed: int = 0) -> DualLaatNet:
    """A net over 60 words and 60 codes, each described by one of the words."""
    shape = DualLaatSettings(encoder=encoder, width=64, kernel=3, heads=2, tie_initialization=tied)
    torch.manual_seed(seed)
    net = DualLaatNet(shape, WORDS + 2, 50, torch.from_numpy(random_vectors(WORDS + 2, 50, seed))).eval()
    net.descriptions = torch.arange(2, WORDS + 2)[:, None]
    return net


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(WORDS)), st.integers(0, 99))
def test_tied_initialization_attends_to_words_of_the_description(order, seed):
    note = torch.tensor(order[:40]) + 2
    weights = untrained("conv", True, seed).attention(Batch(*pad_notes([note.numpy()])))[0]
    matching = weights[note - 2, torch.arange(40)]
    assert (matching > 0.5).float().mean() > 0.9
    independent = untrained("conv", False, seed).attention(Batch(*pad_notes([note.numpy()])))[0]
    assert independent.max() < 0.1


@pytest.mark.parametrize("encoder", ["conv", "gru"])
def test_tied_initialization_copies_the_text_encoder(encoder):
    net, independent = untrained(encoder, True), untrained(encoder, False)
    sizes = [{name: weight.shape for name, weight in one.state_dict().items()} for one in (net, independent)]
    assert sizes[0] == sizes[1]
    for text, code in ((net.text_encoder, net.code_encoder), (net.text_projections, net.code_projections)):
        assert all(torch.equal(a, b) for a, b in zip(text.parameters(), code.parameters()))
        assert all(a is not b for a, b in zip(text.parameters(), code.parameters()))


@pytest.mark.parametrize("notes, epochs", [(1, 40), (500, 40), (2000, 10), (4000, 5), (100_000, 5)])
def test_few_notes_get_more_epochs_of_word_vectors(notes, epochs):
    assert WordVectorSettings().resolved(notes).epochs == epochs
    assert WordVectorSettings(epochs=0).resolved(notes).epochs == 0
    assert WordVectorSettings(epochs=3).resolved(notes).epochs == 3


@pytest.mark.parametrize("name", ["caml", "laat", "dual_laat"])
def test_paper_recipes_use_independent_initialization(name):
    paper, ours = load_recipe(f"{name}-paper", []), load_recipe(name, [])
    assert (paper.model.tie_initialization, paper.vectors.epochs) == (False, 5)
    assert (ours.model.tie_initialization, ours.vectors.epochs) == (True, None)
