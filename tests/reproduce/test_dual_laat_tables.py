"""Tests of the tables of Liu and Nguyen (2026): corpora, runs, rows, one run."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from nosology.cli import app
from nosology.config import load_recipe, override, parse_settings
from nosology.core import Code, ConfigError, Note
from nosology.corpora.corpus import write_corpus
from nosology.models.dual_laat.dual_laat_model import DualLaatNet
from nosology.reproduce import dual_laat_tables as dual
from nosology.reproduce.dual_laat_corpora import ROLES, by_role, statistics, with_frequent_codes
from nosology.reproduce.dual_laat_layout import DeviationRow, SumRow
from nosology.reproduce.result_tables import Row, rows_with_paper_numbers, write_tables
from nosology.reproduce.runner import Run, Task
from nosology.training.recipe_settings import Recipe
from tests.conftest import small_notes

ICD9 = {"icd10cm": "icd9cm", "icd10pcs": "icd9proc"}


def study_of(*settings: str) -> dual.DualLaatStudy:
    return parse_settings(dual.STUDY, override(deepcopy(dual.SMALL), ["patients=12", *settings]), "dual-laat")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """ICD-10, ICD-9, and ICD-9 in the place of MIMIC-III."""
    return dual.simulate(study_of(), tmp_path_factory.mktemp("dual") / "simulated")


def by_name(tables):
    """The tables by name and corpus."""
    return {(table.name, table.corpus.partition(" (")[0]): table for table in tables}


def text_of(table) -> str:
    return " ".join(table.remarks({}))


def test_corpora_are_told_apart_in_any_order(corpora, tmp_path):
    ten, nine, three = corpora
    assert by_role([three, ten, nine], "mimic3") == {ROLES[0]: three, ROLES[1]: nine, ROLES[2]: ten}
    assert by_role([nine], "mimic3") == {"mimic4-icd9": nine}
    assert by_role([nine], nine.folder.name) == {"mimic3-icd9": nine}
    read = write_corpus(nine.notes(), tmp_path / "x", source={"kind": "mimic3"}, filters=[], counts={})
    assert by_role([nine, read], "mimic3") == {"mimic3-icd9": read, "mimic4-icd9": nine}
    with pytest.raises(ConfigError, match=r"one corpus must be given for MIMIC-IV ICD-9; got .*--set mimic3=NAME"):
        by_role([nine, three], "none of them")
    both = write_corpus(small_notes(20), tmp_path / "both", source={}, filters=[], counts={})
    with pytest.raises(ConfigError, match="one ICD version"):
        by_role([both], "mimic3")


def test_simulated_test_patients_are_not_trained_on_in_the_other_version(corpora):
    patients = [{(note.patient, note.split) for note in corpus.notes(text=False)} for corpus in corpora[:2]]
    assert not {p for p, split in patients[0] if split == "test"} & {p for p, s in patients[1] if s == "train"}


def test_tables_have_every_row_of_the_paper_and_share_runs(corpora, tmp_path):
    tables = by_name(dual.tables(study_of(), corpora, tmp_path, list(dual.TABLES)))
    assert [name for name, _ in tables] == ["1", "1", "1", "2", "2", "3", "4", "5", "6", "6", "figure-1"]
    for table in tables.values():
        for row in table.rows:
            assert row.paper, row.names
            assert bool(row.runs) != row.names[-1].endswith("(paper)")
    only_paper = [row.names[0] for table in tables.values() for row in table.rows if not row.runs]
    assert only_paper == ["CoRelation (paper)"]
    runs = {key: run for table in tables.values() for key, run in table.runs.items()}
    assert len(runs) == 1 + 2 * (
        3 + 1 + 2 + 3 + 2
    )  # statistics; per seed PLM-ICD, with all codes, CAML and LAAT, CNN, GRU
    ten = tables["1", "MIMIC-IV ICD-10"].rows
    assert [row.names[0] for row in ten] == [
        *("PLM-ICD", "DualLAAT, CNN (ICD-10 only)", "DualLAAT, CNN", "DualLAAT (ICD-10 only)", "DualLAAT"),
    ]
    single, mixed = ten[3].runs[0], ten[4].runs[0]
    assert single.options | {"codes": ""} == {"roles": [ROLES[2], *ROLES[:2]], "trained": 1, "codes": ""}
    assert mixed.options["roles"] == list(ROLES) and mixed.options["trained"] == 3
    assert ten[0].runs[0].options["codes"] == "frequent" and len(ten[0].runs[0].corpora) == 1
    assert tables["1", "MIMIC-III ICD-9"].rows[1].runs == ten[4].runs
    assert tables["4", "MIMIC-IV ICD-10"].rows[0].runs[0].options["codes"] == "full"


def test_word_vectors_of_the_trained_corpora_only(corpora, tmp_path):
    [table] = dual.tables(study_of("vectors=train"), corpora, tmp_path, ["4"])
    assert table.rows[1].runs[0].options["roles"] == ["mimic4-icd10"]


def test_tables_of_missing_corpora_are_left_out_with_a_sentence(corpora, tmp_path):
    tables = by_name(dual.tables(study_of(), corpora[:1], tmp_path, list(dual.TABLES)))
    assert "MIMIC-III ICD-9, MIMIC-IV ICD-9" in text_of(tables["1", "MIMIC-IV ICD-10"])
    assert "MIMIC-IV ICD-9" in text_of(tables["2", "MIMIC-IV ICD-10"])
    assert [row.names[0] for row in tables["4", "MIMIC-IV ICD-10"].rows if not row.runs][1:] == ["DualLAAT (paper)"]
    assert "needs two corpora" in text_of(tables["4", "MIMIC-IV ICD-10"])
    assert [bool(row.runs) for row in tables["figure-1", "MIMIC-IV ICD-10"].rows] == [True, False, True, False]
    nine = by_name(dual.tables(study_of("models.plm_icd=''"), corpora[1:], tmp_path, list(dual.TABLES)))
    assert not nine["4", ""].rows and "MIMIC-IV ICD-10" in text_of(nine["4", ""])
    assert [row.names[0] for row in nine["1", "MIMIC-III ICD-9"].rows] == ["DualLAAT", "PLM-ICD (paper)"]
    assert list(nine["5", ""].columns) == list(ROLES[:2])
    write_tables(tmp_path, list(nine.values()), {}, {})
    assert "no corpus was given" in (tmp_path / "table_4.md").read_text()


def icd9(note: Note) -> Note:
    code = {"0DTJ4ZZ": "47.01", "I50.9": "428.0", "J18.9": "486", "M54.5": "724.2", "E11.9": "250.00"}
    pairs = [(ICD9.get(c.system, c.system), code.get(c.code, c.code)) for c in note.codes]
    return replace(note, codes=tuple(dict.fromkeys(Code(*pair) for pair in pairs)))


def icd10(note: Note) -> Note:
    return replace(note, codes=tuple(code for code in note.codes if code.system != "icd9cm"))


def with_rare(notes: list[Note], rare: Code) -> list[Note]:
    """The coded notes, with a rare code in one note of each split."""
    notes = [note for note in notes if note.codes]
    for split in ("train", "dev", "test"):
        row = next(i for i, note in enumerate(notes) if note.split == split)
        notes[row] = replace(notes[row], codes=(*notes[row].codes, rare))
    return notes


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A corpus of ICD-10 and one of ICD-9; both have frequent codes and a rare one."""
    folder = tmp_path_factory.mktemp("two")
    ten = with_rare([icd10(note) for note in small_notes(80)], Code("icd10cm", "J90"))
    nine = with_rare([icd9(note) for note in small_notes(80, seed=1)], Code("icd9cm", "511.9"))
    return [
        write_corpus(notes, folder / name, source={}, filters=[], counts={})
        for name, notes in (("ten", ten), ("nine", nine))
    ]


def task_of(recipe, corpora, folder, **options) -> Task:
    folders = [str(corpus.folder) for corpus in corpora]
    return Task("m:f", recipe.model_dump(mode="json"), folders, options, str(folder), "", "", "")


def test_run_measures_each_corpus_it_was_trained_on_with_each_set_of_codes(two, tmp_path):
    study = study_of("recipe.dual_laat.model.width=8", "recipe.dual_laat.model.heads=1")
    recipe = study.load("dual_laat-paper-cnn", "seed=0")
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": 1})})
    roles = ["mimic4-icd10", "mimic4-icd9"]
    sizes = []
    for trained in (1, 2):
        options = {"roles": roles, "trained": trained, "codes": "full"}
        result = dual.run(task_of(recipe, two, tmp_path / f"{trained}", **options))
        metrics = result["metrics"]
        assert result["undefined"] == {}
        measured = {name.rpartition(".")[0] for name in metrics if name.endswith(".map")}
        assert measured == {f"{role}.{codes}" for role in roles[:trained] for codes in ("frequent", "rare", "full")}
        assert all(0 <= metrics[f"{place}.map"] <= 1 for place in measured)
        assert metrics["micro_f1"] == metrics["mimic4-icd10.full.micro_f1"] and metrics["hours"] > 0
        sizes.append((result["n_train"], metrics["millions"]))
    train_notes = [sum(note.split == "train" for note in corpus.notes(text=False)) for corpus in two]
    assert [n for n, _ in sizes] == [train_notes[0], sum(train_notes)]


def test_baselines_learn_frequent_codes_only(two, tmp_path):
    recipe = study_of().load("caml", "model.filters=8", "seed=0", "labels.systems=[]")
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": 1})})
    options = {"roles": ["mimic4-icd10"], "trained": 1, "codes": "frequent"}
    result = dual.run(task_of(recipe, two[:1], tmp_path, **options))
    assert list(result["undefined"]) == ["mimic4-icd10.rare"]  # it does not know them
    assert result["metrics"]["mimic4-icd10.frequent.map"] > 0 and "paper_vocabulary" not in result["metrics"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]  # no copy of notes is left
    narrowed = with_frequent_codes(two[0], tmp_path / "notes")
    assert Code("icd10cm", "J90") not in {code for note in narrowed.notes(text=False) for code in note.codes}


@pytest.mark.parametrize("recipe, size", [("dual_laat-paper", 37_332_425), ("dual_laat-paper-cnn", 14_665_673)])
def test_size_with_the_vocabulary_of_the_paper(recipe, size):
    settings = load_recipe(recipe)
    with torch.device("meta"):
        net = DualLaatNet(settings.model, 999, settings.vectors.size)
    assert dual._size(SimpleNamespace(kind="dual_laat", net=net))["paper_vocabulary"] == size


@pytest.mark.parametrize("name", ["dual_laat-paper", "dual_laat-paper-cnn"])
def test_paper_recipes_have_the_settings_of_the_paper(name):
    recipe = load_recipe(name)
    model, training, vectors = recipe.model, recipe.training, recipe.vectors
    gru = name == "dual_laat-paper"
    assert (model.encoder, model.width, model.dropout) == (("gru", 512, 0.3) if gru else ("conv", 256, 0.2))
    assert gru or model.kernel == 10
    assert (model.labels, model.max_description, model.heads, vectors.max_words) == (8192, 48, 4, 4000)
    assert (vectors.size, vectors.min_notes, vectors.cleaning) == (100, 3, "benchmark")
    assert (model.output_bias, model.tie_initialization, recipe.labels.min_notes) == ("default", False, 1)
    assert (training.schedule, training.learning_rate, training.warmup) == ("linear", 1e-3, 2000)
    assert (training.batch, training.epochs, training.weight_decay) == (32, 10, 1e-3 if gru else 0)


def test_statistics_count_notes_and_codes_of_each_set(tmp_path):
    frequent = [Code("icd10cm", code) for code in ("I10", "J18.9")]
    notes = [
        Note(f"n{i}", "text", split=("train", "dev", "test")[i % 3], codes=tuple(frequent[: 1 + i % 2]))
        for i in range(24)
    ]
    notes[0] = replace(notes[0], codes=(*notes[0].codes, Code("icd10cm", "J90"), Code("icd10cm", "J91.8")))
    values = statistics(write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={}))
    assert values.keys() == {" / ".join(row.names) for row in dual._paper_rows("5")}
    assert (values["notes / number"], values["notes / test, %"]) == (24, pytest.approx(100 / 3))
    assert [values[f"{name} codes / number"] for name in ("frequent", "all", "rare")] == [2, 4, 2]
    assert values["frequent codes / per note, mean"] == values["frequent codes / per note, median"] == 1.5
    assert values["frequent codes / per note, standard deviation"] == 0.5
    assert values["all codes / per note, mean"] == pytest.approx(38 / 24)
    assert (values["rare codes / notes with one or more"], values["rare codes / per note, median"]) == (1, 2)
    few = write_corpus(notes[:3], tmp_path / "few", source={}, filters=[], counts={})
    assert "frequent codes / number" not in statistics(few)


def results_of(rows, values):
    """Results of the runs of rows: the metrics of each by row and seed."""
    return {run.key: {"metrics": metrics} for row, own in zip(rows, values) for run, metrics in zip(row.runs, own)}


def test_rows_of_sums_and_of_deviations(corpora):
    runs = [Run((name,), "m:f", Recipe(kind="x"), (), seed) for seed in (0, 1) for name in ("a", "b")]
    row = SumRow(("three models",), tuple(runs), {"hours": 95})
    results = results_of([row], [[{"hours": h} for h in (1, 2, 30, 40)]])
    assert row.cell(results, "hours").values == (3, 70) and row.cell(results, "hours").paper == 95
    del results[runs[-1].key]
    assert (row.cell(results, "hours").values, row.cell(results, "hours").runs) == ((3,), 2)
    deviation = DeviationRow(("LAAT",), (runs[0], runs[2]), {"map": 0.002}, "p.")
    results = results_of([deviation], [[{"p.map": 0.5}, {"p.map": 0.7}]])
    assert deviation.cell(results, "map").mean == pytest.approx(0.02**0.5)
    assert not Row(("LAAT",), (runs[0],)).cell(results, "map").values


def test_significance_tests_compare_mixed_with_single_training(corpora, tmp_path):
    [table] = dual.tables(study_of(), corpora, tmp_path, ["4"])
    _, single, mixed = table.rows[:3]
    values = [
        [{f"{row.prefix}micro_f1": score + seed} for seed in (0.0, 0.01)]
        for row, score in ((single, 0.5), (mixed, 0.6))
    ]
    lines = list(table.remarks(results_of([single, mixed], values)))
    assert lines[0] == "Mixed training: MIMIC-III ICD-9, MIMIC-IV ICD-9, MIMIC-IV ICD-10."
    assert lines[1].startswith("DualLAAT minus DualLAAT (ICD-10 only): micro_f1 +0.1000") and len(lines) == 2


def test_confirmed_counts_name_the_numbers_that_differ(corpora, tmp_path):
    [table] = dual.tables(study_of(), corpora, tmp_path, ["5"])
    paper = {f"{row.prefix}{role}": value for row in table.rows for role, value in row.paper.items()}
    mean = "all codes / per note, mean.mimic4-icd10"
    values = paper | {mean: paper[mean] + 0.04, "rare codes / number.mimic4-icd10": 18142}
    lines = list(table.remarks({table.rows[0].runs[0].key: {"metrics": values}}))
    assert lines[0] == "MIMIC-III ICD-9: 23 of 23 numbers are those of the paper."
    assert lines[2] == "MIMIC-IV ICD-10: 22 of 23 numbers are those of the paper; not these: rare codes number."


def test_command_counts_the_notes_of_the_simulated_corpora(tmp_path):
    arguments = ["reproduce", "dual-laat", "5", "--small", "--set", "patients=12", "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    page = (tmp_path / "out" / "table_5.md").read_text()
    assert "| of | number | MIMIC-III ICD-9 | MIMIC-IV ICD-9 | MIMIC-IV ICD-10 |" in page
    assert "[52,712]" in page and "MIMIC-III ICD-9: 0 of 23 numbers are those of the paper." in page


def test_figure_1_shows_the_relative_gains(corpora, tmp_path):
    [table] = dual.tables(study_of(), corpora, tmp_path, ["figure-1"])
    scores = (0.2, 0.3, 0.4, 0.42)
    values = [[{f"{row.prefix}f1": score}] * 2 for row, score in zip(table.rows, scores)]
    results = results_of(table.rows, values)
    assert list(table.remarks(results)) == [
        "rare codes, micro F1: relative gain by ICD-9 notes +50%; in the paper +27%.",
        "frequent codes, macro F1: relative gain by ICD-9 notes +5%; in the paper +7%.",
    ]
    write_tables(tmp_path, [table], results, {})
    assert (tmp_path / "figure-1.png").stat().st_size > 5000


def test_numbers_of_the_paper_agree_with_each_other():
    one = {row.names[0]: row.paper for row in rows_with_paper_numbers("dual_laat", "1", {}, within="mimic4-icd10 / ")}
    six = {row.names[0]: row.paper for row in rows_with_paper_numbers("dual_laat", "6", {}, within="mimic4-icd10 / ")}
    assert one["PLM-ICD (paper)"] == six["PLM-ICD (paper)"]
    assert one["DualLAAT (paper)"] == six["DualLAAT (+ ICD-9) (paper)"]
    assert one["DualLAAT, CNN (paper)"] == six["DualLAAT, CNN (+ ICD-9) (paper)"]
    counts = {" ".join(row.names): row.paper for row in dual._paper_rows("5")}
    for role in ROLES:
        sizes = [counts[f"{name} codes number"][role] for name in ("frequent", "rare", "all")]
        assert sizes[0] + sizes[1] == sizes[2]
    two = {row.names[0]: row.paper for row in rows_with_paper_numbers("dual_laat", "2", {}, within="mimic4-icd10 / ")}
    figure = [row.paper["f1"] for row in dual._paper_rows("figure-1")]
    assert figure[:2] == [row["micro_f1"] for row in two.values()]
    assert figure[2:] == [one[f"DualLAAT{name} (paper)"]["macro_f1"] for name in (" (ICD-10 only)", "")]
