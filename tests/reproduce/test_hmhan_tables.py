"""Tests of the tables of Sasikala et al. (2025), with a tiny transformer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nosology.config import checked, load_recipe
from nosology.core import Code, DataError
from nosology.corpora.corpus import write_corpus
from nosology.models.hmhan import hmhan_trainer
from nosology.models.hmhan.report_batches import ReportBatchBuilder
from nosology.reproduce import hmhan_leakage
from nosology.reproduce import hmhan_tables as hmhan
from nosology.reproduce.runner import Task
from tests.conftest import small_notes
from tests.encoders.tiny import tiny_hmhan_settings


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    return tiny_hmhan_settings(tmp_path_factory.mktemp("hmhan"))


def corpus_of(notes, folder):
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


def protocols(tiny, corpus, folder, names=hmhan.PROTOCOLS):
    recipe = load_recipe("hmhan", [*tiny, "training.epochs=2", "model.frozen=true", "smote.ratio=2.0"])
    return {name: hmhan.protocol_metrics(recipe, corpus, name, folder / name) for name in names}


def test_only_the_protocol_by_patient_shares_no_patient(tiny, tmp_path):
    notes = [replace(note, split=None, patient=f"p{i // 4}") for i, note in enumerate(small_notes(80))]
    metrics = protocols(tiny, corpus_of(notes, tmp_path / "corpus"), tmp_path)
    assert metrics["by patient"]["shared_patients"] == 0 < metrics["by report"]["shared_patients"]
    resampled, honest = metrics["resampled"], metrics["by patient"]
    assert resampled.keys() == honest.keys()
    assert resampled["density"] != resampled["real.density"] and honest["density"] == honest["real.density"]


def test_nothing_but_the_assignment_of_rows_differs_between_protocols(tiny, tmp_path, monkeypatch):
    """Every arm has the same labels, settings and batches, stops early on its dev rows, and is tuned on them once."""
    runs, tuned = [], []
    fit, tune = hmhan_trainer.fit, hmhan_leakage.tune_on_held_out

    def recording_fit(run):
        assert run.validate is not None
        result = fit(run)
        runs.append((run.settings, run.seed, run.use_cuda_graphs, run.net.loss, run.net.weights.shape))
        assert result.metrics["micro_f1"] >= 0, "the best epoch was chosen on dev rows"
        return result

    def recording_tune(recipe, model, logits, held_out, gold):
        assert len(logits) == held_out.gold.shape[0] == len(held_out.codes) == len(held_out.groups)
        tuned.append((recipe, model.labels.codes))
        return tune(recipe, model, logits, held_out, gold)

    monkeypatch.setattr(hmhan_trainer, "fit", recording_fit)
    monkeypatch.setattr(hmhan_leakage, "tune_on_held_out", recording_tune)
    notes = [replace(note, split=None, patient=f"p{i // 4}") for i, note in enumerate(small_notes(80))]
    protocols(tiny, corpus_of(notes, tmp_path / "corpus"), tmp_path)
    assert len(runs) == len(tuned) == 3
    assert runs[0] == runs[1] == runs[2] and tuned[0] == tuned[1] == tuned[2]


def test_resampled_batches_have_one_icd_version(tiny, tmp_path, monkeypatch):
    notes = [replace(note, split=None) for note in small_notes(80)]  # coded in either version, or in both
    versions = []
    build = ReportBatchBuilder.build

    def recording_build(self, chosen, labels):
        versions.append(np.unique(self.train.versions[self.rows[chosen]]))
        return build(self, chosen, labels)

    monkeypatch.setattr(ReportBatchBuilder, "build", recording_build)
    protocols(tiny, corpus_of(notes, tmp_path / "corpus"), tmp_path, ["resampled"])
    assert {len(batch_versions) for batch_versions in versions} == {1}


def test_too_few_notes_raise(tiny, tmp_path):
    corpus = corpus_of([replace(note, split=None) for note in small_notes(4)], tmp_path / "corpus")
    with pytest.raises(DataError, match="too few coded notes"):
        protocols(tiny, corpus, tmp_path, ["by patient", "by report"])


def test_resampling_without_synthetic_rows_raises(tiny, tmp_path):
    codes = [Code("icd10cm", code) for code in ("J18.9", "I50.9", "J90", "N17.9")]
    single = [replace(n, codes=(codes[0],) if i > 2 else (codes[i + 1],)) for i, n in enumerate(small_notes(40))]
    with pytest.raises(DataError, match="MLSMOTE needs a rare code with two notes"):
        protocols(tiny, corpus_of(single, tmp_path / "corpus"), tmp_path, ["resampled"])


def test_table_4_compares_three_attentions_and_its_runs_return_metrics(tiny, small_corpus, tmp_path):
    study = checked(hmhan.STUDY, hmhan.SMALL, "hmhan")
    four, parts, leakage = hmhan.tables(study, [small_corpus], tmp_path, list(hmhan.TABLES))
    recipes = [row.runs[0].recipe for row in four.rows]
    assert [recipe.model.attention for recipe in recipes] == ["hierarchical", "single", "none"]
    assert {recipe.kind for recipe in recipes} == {"hmhan"} and len(four.runs) == 3 * study.seeds
    assert [row.runs[0].recipe.kind for row in parts.rows][-2:] == ["reports", "linear"]
    assert four.rows[0].runs[0].key == parts.rows[0].runs[0].key, "the same run in both tables"
    assert [row.names[0] for row in leakage.rows][2:] == [
        "resampled",
        "resampled, real test rows",
        "Table 4 (paper)",
        "conclusion (paper)",
    ]
    recipe = load_recipe("hmhan", [*tiny, "training.epochs=1"]).model_dump(mode="json")
    folder, cache = str(tmp_path / "run"), str(tmp_path / "cache")
    task = Task("m:f", recipe, [str(small_corpus.folder)], {"protocol": "by report"}, folder, cache, "", "")
    for function in (hmhan.run_variant, hmhan.run_protocol):
        assert 0 <= function(task)["metrics"]["micro_f1"] <= 1
