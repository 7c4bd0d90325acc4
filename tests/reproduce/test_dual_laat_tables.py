"""Tests of the tables of Liu and Nguyen (2026): corpora, runs, one run."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from nosology.config import checked, override
from nosology.core import Code
from nosology.corpora.corpus import write_corpus
from nosology.reproduce import dual_laat_tables as dual
from nosology.reproduce.runner import Task
from tests.conftest import small_notes


@pytest.fixture(scope="module")
def study():
    return checked(dual.STUDY, override(deepcopy(dual.SMALL), ["patients=12"]), "dual_laat")


@pytest.fixture(scope="module")
def corpora(study, tmp_path_factory):
    return dual.simulate(study, tmp_path_factory.mktemp("dual") / "simulated")


def test_simulate_returns_one_corpus_per_icd_version(corpora):
    versions = [{code.system[:4] for note in corpus.notes(text=False) for code in note.codes} for corpus in corpora]
    assert versions == [{"icd1"}, {"icd9"}]
    patients = [{(note.patient, note.split) for note in corpus.notes(text=False)} for corpus in corpora]
    assert not {p for p, split in patients[0] if split == "test"} & {p for p, s in patients[1] if s == "train"}


def test_mixed_rows_add_only_train_notes_of_other_corpora(study, corpora, tmp_path):
    tables = dual.tables(study, corpora, tmp_path, list(dual.TABLES))
    assert [table.name for table in tables] == ["1", "2", "4"]
    assert tables[0].runs.keys() == tables[1].runs.keys() == tables[2].runs.keys()
    names = [row.names[0] for row in tables[0].rows if row.runs]
    assert names == ["CAML", "DualLAAT, CNN", "DualLAAT, CNN + ICD-9"]
    single, mixed = tables[0].rows[1].runs[0], tables[0].rows[2].runs[0]
    assert single.corpora == (corpora[0],) and mixed.corpora[0] is corpora[0]
    assert {note.split for note in mixed.corpora[1].notes(text=False)} == {"train"}
    assert tables[0].rows[2].paper["map"] == 0.604 and tables[1].rows[2].paper["micro_f1"] == 0.107
    assert next(row.names[0] for row in tables[2].rows if not row.runs) == "PLM-ICD (paper)"


def test_run_returns_metrics_of_each_set_of_codes(study, tmp_path):
    rare = Code("icd10cm", "J90")
    notes = small_notes(80)
    for split in ("train", "dev", "test"):
        row = next(i for i, note in enumerate(notes) if note.split == split and note.codes[0].system == "icd10cm")
        notes[row] = replace(notes[row], codes=(*notes[row].codes, rare))
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    recipe = study.load("dual_laat", "model.width=16", "model.heads=1")
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": 1})})
    task = Task("m:f", recipe.model_dump(mode="json"), [str(corpus.folder)], {}, str(tmp_path / "run"), "", "", "")
    result = dual.run(task)
    metrics = result["metrics"]
    assert result["undefined"] == {}
    for chosen in ("frequent", "rare", "full"):
        assert 0 <= metrics[f"{chosen}.map"] <= 1
    assert metrics["micro_f1"] == metrics["full.micro_f1"]
