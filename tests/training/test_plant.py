"""PLANT, stage by stage and as a whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nosology.config import load_recipe
from nosology.corpora.corpus import write_corpus
from nosology.models.bundle import Bundle
from nosology.models.measure import measure
from nosology.models.plant import Plant, PlantNets
from nosology.models.state_cache import StateCache
from nosology.serving.coder import Coder
from nosology.training.examples import train_and_dev
from nosology.training.neural import Asked, fit_labels
from nosology.training.plant import Chain, paced
from nosology.training.run import train
from tests.conftest import small_notes

SMALL = [
    "words.min_notes=2",
    "model.size=16",
    "model.hidden=20",
    "model.layers=2",
    "model.inattention=3",
    "language.training.epochs=2",
    "language.training.batch=4",
    "language.window=10",
    "ranker.epochs=30",
    "ranker.list=16",
    "ranker.steps=0",
    "ranker.k=10",
    "training.epochs=10",
    "training.batch=8",
    "training.learning_rate=1e-2",
]


@pytest.fixture(scope="module")
def bundle(small_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant") / "bundle"
    train(load_recipe("plant", [*SMALL, "model.direction=both"]), [small_corpus], folder)
    return folder


def test_it_learns_and_codes(bundle, small_corpus, tmp_path):
    found = measure(Bundle.load(bundle), small_corpus, "test", tmp_path / "report").evaluation.metrics
    assert found["micro_f1"] > 0.9
    text = "Seen in clinic today. Known congestive heart failure, stable."
    top = Coder.load(bundle, systems=["icd10cm"]).code(text, top=1)[0]
    assert top.code == "I50.9"
    assert any(word in span.text for span in top.evidence for word in ("congestive", "heart", "failure"))


def test_the_words_that_tell_a_code(bundle):
    model = Bundle.load(bundle).model
    column = next(j for j, code in enumerate(model.labels.codes) if code.code == "I50.9")
    assert {word for word, _ in model.words(column, 2)} <= {"congestive", "heart"}  # "failure" is in another code too


def test_only_train_notes_enter_the_stages(small_corpus, tmp_path):
    """Dev and test notes are replaced by others: language model, relevance and ranker are the same."""
    recipe = load_recipe("plant", SMALL)
    other = [
        note
        if note.split == "train"
        else replace(note, text="Quite another text about fractures.", codes=note.codes[:1])
        for note in small_notes(160)
    ]
    changed = write_corpus(other, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    chains = [
        Chain.of(recipe, train_and_dev([corpus], 0.15, 0)[0], tmp_path / name)
        for name, corpus in (("a", small_corpus), ("b", changed))
    ]
    assert chains[0].reader == chains[1].reader and chains[0].labels == chains[1].labels
    np.testing.assert_array_equal(chains[0].relevance().words, chains[1].relevance().words)
    states = [chain.net(backward=False).state_dict() for chain in chains]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=0, rtol=0)


def test_test_notes_do_not_enter_the_classifier(small_corpus, tmp_path):
    """The whole coder, with dev notes as they were and other test notes: no weight and no threshold is another one."""
    other = [
        note if note.split != "test" else replace(note, text="Quite another text.", codes=note.codes[:1])
        for note in small_notes(160)
    ]
    changed = write_corpus(other, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    recipe = load_recipe("plant", [*SMALL, "training.epochs=2", "ranker.epochs=3"])
    first, second = (train(recipe, [c], tmp_path / n) for n, c in (("a", small_corpus), ("b", changed)))
    assert first.decision == second.decision
    for name, value in first.model.net.state_dict().items():
        torch.testing.assert_close(second.model.net.state_dict()[name], value, atol=0, rtol=0)


def test_stages_are_made_once(small_corpus, tmp_path, monkeypatch):
    recipe = load_recipe("plant", SMALL)
    examples = train_and_dev([small_corpus], 0.15, 0)[0]
    first = Chain.of(recipe, examples, tmp_path).net(False)
    for stage in ("nosology.training.plant.fit", "nosology.training.ranker.fit"):
        monkeypatch.setattr(stage, lambda *a, **k: pytest.fail("a stage was made again"))
    later = load_recipe("plant", [*SMALL, "model.inattention=2", "rates.ranker=0.1", "training.epochs=3"])
    again = Chain.of(later, examples, tmp_path).net(False)  # another classifier, the same stages before it
    for name, value in first.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, atol=0, rtol=0)


def test_a_frozen_part_does_not_move(small_corpus, tmp_path):
    """After one epoch of gradual unfreezing only the decoder has learned."""
    recipe = load_recipe("plant", [*SMALL, "training.epochs=1"])
    examples = train_and_dev([small_corpus], 0.15, 0)[0]
    before = Chain.of(recipe, examples, tmp_path / "a").net(False)
    bundle = train(recipe, [small_corpus], tmp_path / "bundle")
    after = bundle.model.net.nets[0]
    for number, part in enumerate(zip(before.groups(), after.groups())):
        moved = [not torch.equal(a, b) for a, b in zip(part[0][1], part[1][1])]
        assert all(moved) if number == 0 else not any(moved), part[0][0]


def test_an_encoder_that_does_not_learn_reads_each_note_once(small_corpus, tmp_path, monkeypatch):
    """The same coder comes out, whether states are kept or computed anew each epoch; the encoder stays as it was."""
    reads, weights = [], []
    for kept in (4.0, 0.0):
        recipe = load_recipe("plant", [*SMALL, "rates.encoder=0", "training.epochs=4", f"model.cache_gb={kept}"])
        examples = train_and_dev([small_corpus], 0.15, 0)[0]
        chain = Chain.of(recipe, examples, tmp_path / str(kept))
        net = chain.net(False)
        before = {name: value.clone() for name, value in net.encoder.state_dict().items()}
        model = Plant(chain.labels, np.ones(6), chain.reader, PlantNets([net]), recipe.model)
        asked = Asked.of(chain.labels, np.arange(6), 0)
        monkeypatch.setattr(StateCache, "states", _counting(reads, StateCache.states))
        reads.append(0)
        fit_labels(recipe, model, asked, chain.notes, None, tmp_path / f"c{kept}", "", parts=paced(net, recipe.rates))
        monkeypatch.undo()
        for name, value in net.encoder.state_dict().items():
            assert torch.equal(before[name], value), name
        weights.append(net.state_dict())
    notes = len(chain.notes.reads)
    assert reads == [notes, 4 * notes]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=1e-4, rtol=1e-3)


def _counting(reads: list[int], real):
    """StateCache.states that counts the notes that are read."""

    def states(self, notes, lengths, width, read):
        def counted():
            reads[-1] += len(notes)
            return read()

        return real(self, notes, lengths, width, counted)

    return states


def test_the_cache_has_a_bound():
    cache = StateCache(100 * 4 * 4 / 2**30)  # room for 100 states of 4 numbers
    notes, lengths = torch.tensor([0, 1, 2]), torch.tensor([60, 50, 40])
    states = torch.randn(3, 60, 4)
    for _ in range(2):
        found = cache.states(notes, lengths, 60, lambda: states)
        assert torch.equal(found, states) and cache.bytes == 100 * 4 * 4  # the first and the last have found room
    found = cache.states(notes[[2, 0]], lengths[[2, 0]], 64, lambda: pytest.fail("they are there"))
    assert torch.equal(found[0, :40], states[2, :40]) and torch.equal(found[1, :60], states[0])
    cache.clear()
    assert cache.bytes == 0


def test_paces_are_those_of_the_recipe(small_corpus, tmp_path):
    recipe = load_recipe("plant", [*SMALL, "rates.ranker=0.3", "rates.encoder=0.4", "rates.fall=2.0"])
    net = Chain.of(recipe, train_and_dev([small_corpus], 0.15, 0)[0], tmp_path).net(False)
    found = paced(net, recipe.rates)
    assert [part.rate for part in found] == [1.0, 0.3, 0.4, 0.2, 0.1]
    assert [part.begins for part in found] == [0, 1, 2, 3, 4]
    assert sum(len(part.parameters) for part in found) == len(list(net.parameters()))
