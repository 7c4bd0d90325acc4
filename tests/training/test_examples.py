"""Training data: train and dev notes, and the codes that a model learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nosology.config import load_recipe
from nosology.core import Code, DataError, Note
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import write_corpus
from nosology.evaluation.measure import measure
from nosology.models.train import train
from nosology.training.examples import (
    Examples,
    codes_in_labels,
    label_space,
    train_and_dev,
    union,
    validation_rows,
)
from nosology.training.recipe_settings import LabelSettings
from tests.conftest import small_notes

A, B, C, D = (Code("icd10cm", code) for code in ("A00.0", "B00.0", "C00.0", "D00.0"))
NOTES = [(A, B, C), (A, B), (A, B), (A, D)]  # A in 4 notes, B in 3, C and D in one


def corpus(notes, folder):
    return write_corpus(notes, folder, source={}, filters=[], counts={})


def test_splits_of_a_corpus_are_used(small_corpus):
    train, dev, was_split = train_and_dev([small_corpus], 0.15, 0)
    assert (len(train), len(dev), was_split) == (80, 40, False)
    notes = [note for note in small_notes(160) if note.split == "dev"]
    assert list(dev.texts()) == [note.text for note in notes]
    assert dev.codes == [note.codes for note in notes]
    assert len(union(train, dev)) == 120


def test_dev_split_off_train_keeps_patients_together_in_any_order(tmp_path):
    notes = [replace(note, split="train", patient=f"p{i // 4}") for i, note in enumerate(small_notes(200))]
    parts = []
    for name, ordered in (("a", notes), ("b", notes[::-1])):
        train, dev, was_split = train_and_dev([corpus(ordered, tmp_path / name)], 0.3, 0)
        assert was_split
        patients = [{note.patient for note in part.corpora[0].notes() if part.keep(note)} for part in (train, dev)]
        assert not patients[0] & patients[1]
        assert 0.1 < len(dev) / len(notes) < 0.5
        parts.append(sorted(dev.texts()))
    assert parts[0] == parts[1]


def test_dev_split_off_train_shares_no_duplicate_with_train(tmp_path):
    notes = [replace(note, split="train", patient=f"p{i}") for i, note in enumerate(small_notes(60))]
    notes += [replace(note, id=f"again-{i}", patient=f"q{i}") for i, note in enumerate(notes[:40])]
    notes += [Note(f"normal-{i}", "No acute disease. " * 5, f"r{i}", codes=notes[0].codes) for i in range(60)]
    notes = [replace(note, split="train") for note in notes]
    train, dev, was_split = train_and_dev([corpus(notes, tmp_path / "c")], 0.15, 0)
    assert was_split and not set(train.texts()) & set(dev.texts())
    assert 20 <= len(dev) <= 24, "60 equal notes exceed 15% of 160"


def test_if_all_notes_are_duplicates_patients_are_split(tmp_path):
    notes = [Note(f"n{i}", "Pneumonia.", f"p{i // 2}", codes=small_notes(1)[0].codes) for i in range(8)]
    train, dev, _ = train_and_dev([corpus(notes, tmp_path / "c")], 0.25, 0)
    assert (len(train), len(dev)) == (6, 2)
    assert len({note.patient for note in dev.notes()}) == 1


def test_dev_split_off_uncoded_notes_keeps_patients_together(tmp_path):
    notes = [replace(note, split=None, codes=(), patient=f"p{i // 4}") for i, note in enumerate(small_notes(40))]
    train, dev, was_split = train_and_dev([corpus(notes, tmp_path / "c")], 0.3, 0)
    assert was_split and len(dev) == 12
    assert not {note.patient for note in train.notes()} & {note.patient for note in dev.notes()}


def test_notes_without_a_split_are_ignored_if_others_have_one(tmp_path):
    notes = [replace(note, split=note.split if note.split != "test" else None) for note in small_notes(40)]
    train, dev, _ = train_and_dev([corpus(notes, tmp_path / "c")], 0.15, 0)
    assert len(train) + len(dev) == 30


def test_no_train_notes_is_an_error(tmp_path):
    notes = [replace(note, split="test") for note in small_notes(8)]
    with pytest.raises(DataError, match="a corpus must have train notes; got the splits test"):
        train_and_dev([corpus(notes, tmp_path / "c")], 0.15, 0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 2}, [A, B]),
        ({"max_notes": 3}, [B, C, D]),
        ({"max_notes": 3, "top_k": 2}, [B, C]),  # equally frequent codes: the first by name
        ({"min_notes": 2, "max_notes": 3}, [B]),
        ({}, [A, B, C, D]),
    ],
)
def test_label_space_follows_the_settings(settings, expected):
    assert list(label_space(LabelSettings(**settings), NOTES).codes) == expected


def test_codes_outside_the_subset_are_not_evaluated():
    rare = LabelSpace([C, D])
    assert codes_in_labels(LabelSettings(max_notes=1), rare, NOTES) == [(C,), (), (), (D,)]
    assert (
        codes_in_labels(LabelSettings(min_notes=2), LabelSpace([A, B]), NOTES) == NOTES
    )  # a code that is too rare counts as a miss
    with pytest.raises(DataError, match=r"no code is left to learn.*labels.max_notes = 2"):
        label_space(LabelSettings(min_notes=2, max_notes=2), NOTES)


def test_model_of_a_subset_is_evaluated_on_it(small_corpus, tmp_path):
    bundle = train(load_recipe("linear", ["labels.top_k=2"]), [small_corpus], tmp_path / "b")
    assert len(bundle.model.labels) == 2
    all_codes, known = (
        measure(bundle, small_corpus, "test", tmp_path / "r", codes=c).evaluation for c in (None, "known")
    )
    assert known.metrics["micro_recall"] > all_codes.metrics["micro_recall"]  # other codes are not misses
    assert known.metrics["micro_f1"] > 0.9


@pytest.mark.parametrize(("name", "expected"), [("top50", (None, 50)), ("rare50", (9, 50)), ("few", (5, None))])
def test_plant_recipes_select_the_code_sets_of_the_paper(name, expected):
    recipe = load_recipe(f"plant-{name}")
    assert (recipe.labels.max_notes, recipe.labels.top_k) == expected
    assert (recipe.rates.encoder == 0) == (name == "rare50")


def test_the_hash_depends_on_which_notes_are_selected(small_corpus):
    halves = [Examples([small_corpus], lambda note, odd=odd: int(note.id[1:]) % 2 == odd) for odd in (0, 1)]
    assert len(halves[0]) == len(halves[1]) and halves[0].hash != halves[1].hash
    assert Examples([small_corpus], halves[0].keep).hash == halves[0].hash


def test_validation_rows_are_sampled_without_repetition():
    rows = validation_rows(50, 7, seed=1)
    assert len(rows) == 7 and (np.diff(rows) > 0).all() and rows[-1] < 50
    assert np.array_equal(rows, validation_rows(50, 7, seed=1)) and not np.array_equal(rows, validation_rows(50, 7, 2))
    for size in (0, 50, 51):
        assert validation_rows(50, size, seed=1).tolist() == list(range(50))
