"""Recipes that learn some codes alone: the most frequent, or rare ones."""

from __future__ import annotations

import pytest

from nosology.config import load_recipe
from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation.measure import measure
from nosology.models.train import train
from nosology.training.examples import codes_in_labels, label_space
from nosology.training.recipe_settings import LabelSettings

A, B, C, D = (Code("icd10cm", code) for code in ("A00.0", "B00.0", "C00.0", "D00.0"))
NOTES = [(A, B, C), (A, B), (A, B), (A, D)]  # A in 4 notes, B in 3, C and D in one


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"top_k": 2}, [A, B]),
        ({"max_notes": 3}, [B, C, D]),
        ({"max_notes": 3, "top_k": 2}, [B, C]),  # of equally frequent ones the first by name
        ({"min_notes": 2, "max_notes": 3}, [B]),
        ({}, [A, B, C, D]),
    ],
)
def test_which_codes_are_learned(told, kept):
    assert list(label_space(LabelSettings(**told), NOTES).codes) == kept


def test_the_other_codes_are_not_asked_for():
    rare = LabelSpace([C, D])
    assert codes_in_labels(LabelSettings(max_notes=1), rare, NOTES) == [(C,), (), (), (D,)]
    assert codes_in_labels(LabelSettings(min_notes=2), LabelSpace([A, B]), NOTES) == NOTES  # a code too rare is a miss
    with pytest.raises(DataError, match=r"no code is left to learn.*labels.max_notes = 2"):
        label_space(LabelSettings(min_notes=2, max_notes=2), NOTES)


def test_a_coder_of_some_codes_is_measured_on_them(small_corpus, tmp_path):
    bundle = train(load_recipe("linear", ["labels.top_k=2"]), [small_corpus], tmp_path / "b")
    assert len(bundle.model.labels) == 2
    whole, known = (measure(bundle, small_corpus, "test", tmp_path / "r", codes=c).evaluation for c in (None, "known"))
    assert known.metrics["micro_recall"] > whole.metrics["micro_recall"]  # other codes are no misses
    assert known.metrics["micro_f1"] > 0.9


@pytest.mark.parametrize(("name", "told"), [("top50", (None, 50)), ("rare50", (9, 50)), ("few", (5, None))])
def test_recipes_of_the_papers_sets(name, told):
    recipe = load_recipe(f"plant-{name}")
    assert (recipe.labels.max_notes, recipe.labels.top_k) == told
    assert (recipe.rates.encoder == 0) == (name == "rare50")
