"""Tests of the tables of Saha Roy et al. (2024): runs, figure and leakage."""

from __future__ import annotations

import numpy as np
import pytest

from nosology.config import checked, load_recipe
from nosology.evaluation.measure import measure
from nosology.models.train import train
from nosology.reproduce import plant_tables as plant
from tests.models.plant.test_plant_trainer import SMALL


@pytest.fixture
def tables(small_corpus, tmp_path):
    study = checked(plant.STUDY, plant.SMALL, "plant")
    return {table.name: table for table in plant.tables(study, [small_corpus], tmp_path, list(plant.TABLES))}


def test_tables_share_the_runs_with_all_train_notes(tables):
    shared = tables["7"].runs.keys()
    assert tables["6"].runs.keys() == shared and len(shared) == 3
    assert shared < tables["figure-4"].runs.keys() and len(tables["figure-4"].runs) == 6
    [first] = [run.key for run in tables["7"].rows[0].runs]
    assert first in tables["8"].runs and first in tables["leakage"].runs


def test_ablations_equal_to_the_recipe_are_omitted(tables):
    assert "one learning rate" not in [row.names[0] for row in tables["8"].rows if row.runs]
    assert "no inattention: 0.424; with that part: 0.4251." in "\n".join(tables["8"].remarks({}))
    assert len(tables["8"].runs) == 9


def test_smaller_shares_of_train_are_subsets_of_larger_ones(small_corpus, tmp_path):
    notes = [
        {note.id: note.split for note in plant._share(small_corpus, share, 0, tmp_path).notes(text=False)}
        for share in (0.2, 0.5)
    ]
    assert notes[0].items() < notes[1].items() < {n.id: n.split for n in small_corpus.notes(text=False)}.items()
    assert [sum(split != "train" for split in part.values()) for part in notes] == [
        sum(note.split != "train" for note in small_corpus.notes(text=False))
    ] * 2


def test_figure_4_interpolates_the_notes_that_plant_needs(tables, tmp_path):
    assert plant.notes_for([(10, 0.2), (20, 0.4)], 0.3) == pytest.approx(15)
    assert plant.notes_for([(10, 0.2), (20, 0.4)], 0.1) == 10 and plant.notes_for([(10, 0.2)], 0.5) is None
    figure = tables["figure-4"]
    results = {}
    for row in figure.rows:
        share = float(row.names[1])
        value = (0.6 if row.names[0] == "PLANT" else 0.3) * share
        for run in row.runs:
            results[run.key] = {"metrics": {"train_notes": 100 * share, "p@5": value, "p@15": value / 2}}
    first = next(iter(figure.remarks(results)))
    assert first == "p@5: LAAT has 0.3000 with 100 train notes; PLANT reaches it with 50."
    [drawn] = figure.figures
    drawn.write({}, tmp_path)
    assert drawn.write(results, tmp_path) == tmp_path / "figure-4.png"
    assert (tmp_path / "figure-4.png").read_bytes().startswith(b"\x89PNG")


def test_stages_of_all_notes_include_test_notes(small_corpus, tmp_path):
    recipe = load_recipe("plant", [*SMALL, "training.epochs=3", "language.training.epochs=1", "ranker.epochs=5"])
    honest = train(recipe, [small_corpus], tmp_path / "bundle")
    leaky = plant.train_on_all_notes(recipe, small_corpus, tmp_path / "leak")
    assert leaky.model.labels.codes == honest.model.labels.codes
    assert not np.array_equal(leaky.model.relevance.scores, honest.model.relevance.scores)
    assert measure(leaky, small_corpus, "test", tmp_path / "report").evaluation.metrics["micro_f1"] > 0.3
