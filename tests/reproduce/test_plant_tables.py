"""Tests of the tables and figures of Saha Roy et al. (2024): which runs they have, what a run returns, drawings."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nosology.config import load_recipe, parse_settings
from nosology.core import Code, ConfigError
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.evaluation.measure import measure
from nosology.models.train import train
from nosology.reproduce import plant_figures as figures
from nosology.reproduce import plant_runs, result_tables
from nosology.reproduce import plant_tables as plant
from nosology.reproduce.plant_study import PARTS, TRAIN_NOTES, sources_of
from nosology.reproduce.runner import Run, Task
from tests.conftest import small_notes
from tests.models.plant.test_plant_trainer import SMALL

NINE = [Code("icd9cm", code) for code in ("V45.81", "518.81", "250.00", "401.9")]


def make_tables(study: dict, corpora: list[Corpus], folder: Path) -> dict[str, list[result_tables.Table]]:
    made = plant.tables(parse_settings(plant.STUDY, study, "plant"), corpora, folder, list(plant.TABLES))
    return {name: [table for table in made if table.name == name] for name in plant.TABLES}


@pytest.fixture
def tables(small_corpus, tmp_path):
    return {name: table for name, [table] in make_tables(plant.SMALL, [small_corpus], tmp_path).items()}


@pytest.fixture
def icd9_corpus(tmp_path):
    notes = [replace(note, codes=(NINE[i % 4], NINE[(i + 1) % 4])) for i, note in enumerate(small_notes(40))]
    return write_corpus(notes, tmp_path / "nine", source={"kind": "test"}, filters=[], counts={})


def runs_of(table: result_tables.Table, *names: str) -> list[Run]:
    return [run for row in table.rows if row.names == names for run in row.runs]


def test_one_corpus_fills_all_tables_with_shared_runs(tables):
    whole = tables["3"].runs.keys()
    assert whole == tables["7"].runs.keys() == tables["9"].runs.keys() == tables["figure-2"].runs.keys()
    assert len(whole) == 4 and tables["figure-3"].runs.keys() < tables["6"].runs.keys()
    [main] = runs_of(tables["3"], "PLANT")
    assert main.options["explained"] == 10 and main.key in tables["leakage"].runs
    assert [run.key for run in runs_of(tables["6"], "PLANT that learns all codes")] == [main.key]
    assert [run.key for run in runs_of(tables["8"], "direction", "forward")] == [main.key]
    assert len({run.key for table in tables.values() for run in table.runs.values()}) == 38


def test_icd9_stands_for_mimic3_and_icd10_for_mimic4(small_corpus, icd9_corpus, tmp_path):
    found = sources_of([small_corpus, icd9_corpus])
    assert [(source.paper, source.corpus) for source in found] == [
        ("MIMIC-III", icd9_corpus),
        ("MIMIC-IV", small_corpus),
    ]
    made = make_tables(plant.SMALL, [small_corpus, icd9_corpus], tmp_path / "out")
    for names, corpora in (
        (("3", "4", "5", "6", "9", "figure-3"), [icd9_corpus]),
        (("7", "figure-2", "figure-5"), [small_corpus]),
        (("8", "figure-4", "leakage"), [icd9_corpus, small_corpus]),
    ):
        for name in names:
            assert [table.corpus for table in made[name]] == [corpus.folder.name for corpus in corpora], name
            train = {note.id for note in corpora[0].notes("train", text=False)}
            for run in made[name][0].runs.values():
                assert {note.id for note in run.corpora[0].notes("train", text=False)} <= train
    assert len(made["2"][0].rows) == len(made["figure-6"][0].rows) == 2
    with pytest.raises(
        ConfigError, match="one corpus, or one in icd9 and one in icd10, must be given; got icd10, icd10"
    ):
        sources_of([small_corpus, small_corpus])


def test_paper_settings_follow_section_5(small_corpus, icd9_corpus, tmp_path):
    """Epochs, inattention, learning rates, frozen parts and directions of each comparison."""
    made = make_tables({"seeds": 5}, [small_corpus, icd9_corpus], tmp_path)
    for table, epochs, k, rate in zip(made["8"], ((5, 3, 1, 10), (5, 7, 7, 10)), (56, 8), (0.5, 0.3333)):
        for part, expected in zip(PARTS, (*epochs, load_recipe("plant-paper").training.epochs)):
            for row in (row for row in table.rows if row.runs and row.names[0] == part):
                assert len(row.runs) == 5
                recipe, variant = row.runs[0].recipe, row.names[1]
                assert recipe.training.epochs == expected
                assert recipe.model.inattention == (0 if variant == "without inattention" else k)
                assert recipe.model.inattention_scope == ("note" if variant == "inattention per note" else "window")
                assert recipe.model.stateful == (not variant.startswith("stateless"))
                assert recipe.rates.ranker == (1.0 if variant == "- disc" else rate)
                assert (recipe.rates.encoder == 0) == (part not in ("unfreezing", "direction"))
                assert recipe.rates.gradual == (variant == "gradual unfreezing" or part == "direction")
                assert recipe.model.direction == ("both" if variant == "both directions" else "forward")
    [five] = made["figure-5"]
    assert {(run.recipe.training.epochs, run.recipe.training.patience) for run in five.runs.values()} == {(60, 60)}
    learned = [run.recipe.model for run in runs_of(five, figures.LANT)]
    assert len(learned) == 5 and not any(model.static or model.planted for model in learned)
    assert {run.recipe.training.epochs for run in made["figure-4"][0].runs.values() if run.names[0] != "linear"} == {5}
    for name, labels in (("4", (None, 50)), ("5", (9, 50)), ("6", (5, None))):
        chosen = [run.recipe.labels for row in made[name][0].rows if not row.prefix for run in row.runs]
        assert len(chosen) == 20 and {(label.max_notes, label.top_k) for label in chosen} == {labels}
        assert all(label.systems == [] for label in chosen)
    assert {run.recipe.rates.encoder for run in runs_of(made["5"][0], "PLANT")} == {0.0}


def test_settings_of_the_user_replace_those_of_the_paper(small_corpus, tmp_path):
    study = {"seeds": 1, "recipe": {"plant": {"training": {"epochs": 2}, "model": {"window": 50}}}}
    made = make_tables(study, [small_corpus], tmp_path)
    for name in ("7", "8", "figure-5"):
        plants = [run.recipe for run in made[name][0].runs.values() if run.recipe.kind == "plant"]
        assert {(recipe.training.epochs, recipe.model.window) for recipe in plants} == {(2, 50)}
    with pytest.raises(ConfigError, match=r"rates\.encoder must not be set: the table sets it"):
        make_tables({"recipe": {"plant": {"rates": {"encoder": 0.1}}}}, [small_corpus], tmp_path)


def test_coders_of_the_user_are_added_replaced_or_left_out():
    study = parse_settings(plant.STUDY, {"coders": {"PLANT": "plant", "CAML": "", "PLM-ICD": "plm_icd-paper"}}, "plant")
    assert study.coders == {"PLANT": "plant", "LAAT": "laat-paper", "linear": "linear", "PLM-ICD": "plm_icd-paper"}
    with pytest.raises(
        ConfigError, match=r"coders\.PLANT must be a recipe of kind plant; got 'linear', of kind linear"
    ):
        parse_settings(plant.STUDY, {"coders": {"PLANT": "linear"}}, "plant")
    with pytest.raises(ConfigError, match="must have a recipe for PLANT"):
        parse_settings(plant.STUDY, {"coders": {"PLANT": ""}}, "plant")


def test_rows_have_the_paper_numbers(tables):
    def number(table: str, metric: str, *names: str) -> float:
        [row] = [row for row in tables[table].rows if row.names == names]
        return row.paper[metric]

    assert number("3", "p@15", "PLANT") == 0.618 and number("7", "p@15", "PLM-ICD (paper)") == 0.55
    assert number("4", "macro_auc", "CAML") == 0.884 and number("5", "micro_f1", "PLANT") == 0.842
    assert number("6", "macro_recall", "AGMHT (paper)") == 0.199
    assert number("8", "p@15", "state", "stateless") == 0.4338
    assert number("figure-4", "p@5", f"{figures.LANT}", "10,337 (paper)") == 0.5
    assert number("figure-3", "macro_f1", "KEPT (paper)") == 0.2942
    [row] = tables["2"].rows
    assert row.paper["documents"] == 122279 and row.paper["words_per_note.q3"] == 1931


def test_metrics_that_the_paper_tests_are_tested_unless_they_need_scores(tables):
    def tested(name: str) -> str:
        results = {key: {"metrics": {}} for key in tables[name].runs}  # without predictions, a line names the metrics
        return next(line for line in tables[name].remarks(results) if line.startswith("PLANT minus "))

    six = "macro_f1, micro_f1, macro_precision, micro_precision, macro_recall, micro_recall"
    for name, metrics in (("5", "macro_f1, micro_f1"), ("6", six), ("7", "macro_f1, micro_f1, p@5, p@8, p@15")):
        assert f": {metrics} not tested by approximate randomisation: " in tested(name)


def test_smaller_numbers_of_train_notes_are_subsets_of_larger_ones(small_corpus, tmp_path):
    plan = plant.PlantPlan(plant.STUDY(), sources_of([small_corpus]), tmp_path)
    parts = [
        {note.id: note.split for note in plan._train_part(small_corpus, count, 0).notes(text=False)}
        for count in (20, 50)
    ]
    assert [list(part.values()).count("train") for part in parts] == [20, 50]
    assert parts[0].items() < parts[1].items() < {n.id: n.split for n in small_corpus.notes(text=False)}.items()
    assert plan._train_part(small_corpus, 80, 0) is small_corpus
    others = plan._train_part(small_corpus, 20, 1).notes("train", text=False)
    assert {note.id for note in others} != {id for id, split in parts[0].items() if split == "train"}


def test_only_coded_notes_are_the_sets_of_the_paper(small_corpus, tmp_path):
    notes = list(small_corpus.notes())
    few = [n.id for n in notes if n.split == "train"][:4] + [n.id for n in notes if n.split != "train"][:30]
    notes = [replace(note, codes=(*note.codes, NINE[0]) if note.id in few else note.codes) for note in notes]
    corpus = write_corpus(notes, tmp_path / "few", source={"kind": "test"}, filters=[], counts={})
    study = parse_settings(plant.STUDY, plant.SMALL | {"only_coded_notes": True}, "plant")
    [table] = plant.tables(study, [corpus], tmp_path, ["6"])
    [run] = runs_of(table, "PLANT")
    kept = list(run.corpora[0].notes(text=False))
    assert {note.id for note in kept} == set(few) and {note.codes for note in kept} == {(NINE[0],)}
    assert run.recipe.labels.max_notes is None and run.options["codes"] == "known"


def test_figure_4_interpolates_the_notes_that_plant_needs(tables, tmp_path):
    assert figures.notes_for([(10, 0.2), (20, 0.4)], 0.3) == pytest.approx(15)
    assert figures.notes_for([(10, 0.2), (20, 0.4)], 0.1) == 10 and figures.notes_for([(10, 0.2)], 0.5) is None
    table, results = tables["figure-4"], {}
    for row in table.rows:
        for run in row.runs:
            notes = int(row.names[1])
            value = (0.6 if row.names[0] == "PLANT" else 0.3) * notes / 80
            results[run.key] = {"metrics": {"train_notes": notes, "p@5": value, "p@15": value / 2}}
    first = next(iter(table.remarks(results)))
    assert first == f"p@5: {figures.LANT} has 0.3000 with 80 train notes; PLANT reaches it with 40."


def test_figure_4_has_the_numbers_of_train_notes_of_each_corpus_of_the_paper(
    small_corpus, icd9_corpus, tmp_path, monkeypatch
):
    for paper, ours in zip(("MIMIC-III", "MIMIC-IV"), TRAIN_NOTES):
        rows = result_tables.rows_with_paper_numbers("plant", "figure-4", {}, within=f"{paper} / ")
        assert len(rows) == 4 and {row.paper["train_notes"] for row in rows} < set(ours), paper
    monkeypatch.setattr(plant, "TRAIN_NOTES", ([10], [30, 50_000]))
    for given, counts in ({}, ["10", "30", "80"]), ({"train_notes": [15]}, ["15", "15"]):
        study = parse_settings(plant.STUDY, plant.SMALL | {"train_notes": []} | given, "plant")
        made = plant.tables(study, [small_corpus, icd9_corpus], tmp_path / "out", ["figure-4"])
        assert [row.names[1] for table in made for row in table.rows if row.runs and row.names[0] == "PLANT"] == counts


def test_figures_are_drawn_with_and_without_results(tables, tmp_path):
    curves = {"train_loss": [0.5, 0.3], "dev_loss": [0.4, 0.5], "p@15": [0.1, 0.2], "notes_per_code": [9, 2, 1]}
    metrics = plant_runs.curve_metrics(curves) | {"macro_f1": 0.2, "band.1-9": 0.1, "p@5": 0.3, "p@15": 0.2}
    assert metrics["curve.lowest_loss_epoch"] == 1 and metrics["curve.p@15_best"] == 0.2
    for name in plant.TABLES:
        for figure in tables[name].figures:
            results = {
                key: {"metrics": metrics | {"train_notes": int(run.names[2].split()[0])}, "curves": curves}
                if run.names[0] != "counts"
                else {"metrics": {"codes": 3, "codes_under_10": 3}, "curves": curves}
                for key, run in tables[name].runs.items()
            }
            empty = figure.write({}, tmp_path).read_bytes()
            assert empty.startswith(b"\x89PNG") and figure.write(results, tmp_path).read_bytes() != empty
    assert {path.stem for path in tmp_path.glob("*.png")} == {f"figure-{number}" for number in range(2, 7)}


def test_epoch_curves_are_means_of_steps(tmp_path):
    rows = [(1, 0.5, ""), (1, 0.3, 0.45), (2, 0.2, 0.44)]
    with (tmp_path / "curves_classifier_forward.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("epoch", "loss", "dev_loss"), *rows])
    curves = plant_runs.epoch_curves(tmp_path)
    assert curves["train_loss"] == pytest.approx([0.4, 0.2]) and curves["dev_loss"] == [0.45, 0.44]
    assert plant_runs.epoch_curves(tmp_path / "linear") == {}


def test_corpus_is_counted(icd9_corpus, tmp_path):
    """Words: 1 to 40 in a note, and two numbers without a letter, which do not count."""
    notes = [replace(note, text=f"{i * 'fever '}B12 80 4.5.") for i, note in enumerate(icd9_corpus.notes())]
    corpus = write_corpus(notes, tmp_path / "words", source={"kind": "test"}, filters=[], counts={})
    task = Task("", {}, [str(corpus.folder)], {}, str(tmp_path), "", "", "")
    result = plant_runs.count_corpus(task)
    metrics = result["metrics"]
    assert metrics["documents"] == metrics["patients"] == 40 and metrics["codes"] == 4
    assert metrics["codes_per_note.median"] == metrics["codes_per_note.q3"] == 2 and metrics["codes_under_10"] == 0
    assert (metrics["train_percent"], metrics["dev_percent"], metrics["test_percent"]) == (50.0, 25.0, 25.0)
    assert result["curves"]["notes_per_code"] == [20] * 4 and metrics.keys() >= plant.CORPUS_COLUMNS.keys()
    assert [metrics[f"words_per_note.{part}"] for part in ("q1", "median", "q3")] == [10, 20, 30]


QUICK = {
    "seeds": 1,
    "coders": {"PLANT": "plant", "LAAT": "", "CAML": ""},
    "train_notes": [30],
    "explained": 4,
    "examples": ["I50.9"],
    "recipe": {
        "plant": {
            "words": {"min_notes": 2},
            "model": {"size": 16, "hidden": 20, "layers": 1},
            "language": {"training": {"epochs": 1, "batch": 4}, "window": 10},
            "ranker": {"epochs": 5, "list_size": 16, "steps": 0, "k": 10},
            "training": {"epochs": 3},
        },
    },
}


def result_of(run: Run, folder: Path) -> dict:
    """The result of a run in this process, with the paths of its predictions."""
    (folder / "runs").mkdir(exist_ok=True)
    recipe, corpora = run.recipe.model_dump(mode="json"), [str(corpus.folder) for corpus in run.corpora]
    places = [str(folder / part) for part in (run.key, "cache", f"runs/{run.key}.json", "failed.json")]
    result = plant_runs.run(Task(run.function, recipe, corpora, dict(run.options), *places))
    for entry in result["predictions"].values():
        entry["file"] = str(folder / "runs" / entry["file"])
    return result


def test_runs_fill_tables_4_7_and_9_and_the_tests_of_significance(small_corpus, tmp_path):
    study = parse_settings(plant.STUDY, QUICK, "plant")
    made = plant.tables(study, [small_corpus], tmp_path, ["4", "7", "9"])
    runs = {key: run for table in made for key, run in table.runs.items()}
    results = {key: result_of(run, tmp_path) for key, run in runs.items()}
    assert len(runs) == 4
    four, seven, nine = made
    for table in made:
        for row in table.rows:
            if row.runs:
                assert all(row.cell(results, metric).values for metric in table.columns), (table.name, row.names)
    assert any("PLANT minus linear: p@15" in line for line in seven.remarks(results))
    assert any("PLANT minus linear: micro_f1" in line for line in four.remarks(results))
    words = [line for line in nine.remarks(results) if line.startswith("I50.9, PLANT: ")]
    assert len(words) == 1 and "no word" not in words[0]
    [main] = runs_of(seven, "PLANT")
    assert len(results[main.key]["curves"]["dev_loss"]) == 3


def test_stages_of_all_notes_include_test_notes(small_corpus, tmp_path):
    recipe = load_recipe("plant", [*SMALL, "training.epochs=3", "language.training.epochs=1", "ranker.epochs=5"])
    honest = train(recipe, [small_corpus], tmp_path / "bundle")
    leaky = plant_runs.train_on_all_notes(recipe, small_corpus, tmp_path / "leak")
    assert leaky.model.labels.codes == honest.model.labels.codes
    assert not np.array_equal(leaky.model.relevance.scores, honest.model.relevance.scores)
    assert measure(leaky, small_corpus, "test", tmp_path / "report").evaluation.metrics["micro_f1"] > 0.3
