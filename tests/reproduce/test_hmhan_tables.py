"""Tests of the tables of Sasikala et al. (2025), with a tiny transformer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from nosology.config import load_recipe, parse_settings
from nosology.core import Code, DataError
from nosology.corpora.corpus import write_corpus
from nosology.encoders.transformer import load_pretrained
from nosology.evaluation import brief
from nosology.models.hmhan import hmhan_ensemble
from nosology.models.hmhan.report_batches import ReportBatchBuilder
from nosology.reproduce import hmhan_leakage
from nosology.reproduce import hmhan_runs as runs
from nosology.reproduce import hmhan_tables as hmhan
from nosology.reproduce.predictions import load_predictions
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
    return {name: hmhan_leakage.protocol_metrics(recipe, corpus, name, folder / name) for name in names}


def test_only_the_protocol_by_patient_shares_no_patient(tiny, tmp_path):
    notes = [replace(note, split=None, patient=f"p{i // 4}") for i, note in enumerate(small_notes(80))]
    metrics = protocols(tiny, corpus_of(notes, tmp_path / "corpus"), tmp_path)
    assert metrics["by patient"]["shared_patients"] == 0 < metrics["by report"]["shared_patients"]
    resampled, honest = metrics["resampled"], metrics["by patient"]
    assert resampled.keys() == honest.keys()
    assert resampled["density"] != resampled["real.density"] and honest["density"] == honest["real.density"]


def test_rows_of_each_protocol_are_stratified_by_code():
    random = np.random.default_rng(5)
    gold = sparse.csr_matrix((random.random((400, 4)) < [0.5, 0.2, 0.1, 0.05]).astype(np.int8))
    for groups in (np.arange(400), np.arange(400) // 4):
        parts = hmhan_leakage._stratified_parts(gold, groups, 3)
        assert all(len(set(parts[groups == group])) == 1 for group in groups)
        shares = np.array([gold[parts == i].sum(0).A1 / gold.sum(0).A1 for i in range(3)]).T
        assert shares == pytest.approx(np.tile(hmhan_leakage.RATIOS, (4, 1)), abs=0.03)
        assert np.bincount(parts) / 400 == pytest.approx(hmhan_leakage.RATIOS, abs=0.02)


def test_nothing_but_the_assignment_of_rows_differs_between_protocols(tiny, tmp_path, monkeypatch):
    """Every arm has the same labels, settings and batches, stops early on its dev rows, and is tuned on them once."""
    runs, tuned, best = [], [], []
    fit, tune = hmhan_ensemble.fit, hmhan_leakage.tune_on_held_out

    def recording_fit(run):
        curve = []

        def validate(net):
            curve.append(run.validate(net))
            return curve[-1]

        result = fit(replace(run, validate=validate))
        runs.append((run.settings, run.seed, run.use_cuda_graphs, run.net.loss, run.net.class_weights.shape))
        scores = [metrics["micro_f1"] for metrics in curve]
        assert len(scores) == 2 and result.best_epoch == 1 + int(np.argmax(scores))
        best.append(curve[result.best_epoch - 1])
        return result

    def recording_tune(recipe, model, logits, held_out, gold):
        assert len(logits) == held_out.gold.shape[0] == len(held_out.codes) == len(held_out.groups)
        on_dev = brief(model.labels, held_out.codes, model.to_probabilities(logits))
        assert on_dev == pytest.approx(best[-1]), "the best epoch was chosen on the same dev rows"
        tuned.append((recipe, model.labels.codes))
        return tune(recipe, model, logits, held_out, gold)

    monkeypatch.setattr(hmhan_ensemble, "fit", recording_fit)
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
    corpus = corpus_of([replace(note, split=None) for note in small_notes(2)], tmp_path / "corpus")
    with pytest.raises(DataError, match="too few coded notes"):
        protocols(tiny, corpus, tmp_path, ["by patient", "by report"])


def test_resampling_without_synthetic_rows_raises(tiny, tmp_path):
    codes = [Code("icd10cm", code) for code in ("J18.9", "I50.9", "J90", "N17.9")]
    single = [replace(n, codes=(codes[0],) if i > 2 else (codes[i + 1],)) for i, n in enumerate(small_notes(40))]
    with pytest.raises(DataError, match="MLSMOTE needs a rare code with two notes"):
        protocols(tiny, corpus_of(single, tmp_path / "corpus"), tmp_path, ["resampled"])


@pytest.fixture
def tables(small_corpus, tmp_path):
    study = parse_settings(hmhan.STUDY, hmhan.SMALL, "hmhan")
    by_name: dict = {}
    for table in hmhan.tables(study, [small_corpus], tmp_path, list(hmhan.TABLES)):
        by_name.setdefault(table.name, []).append(table)
    return by_name


def task_of(tiny, corpus, folder, *settings, **options):
    recipe = load_recipe("hmhan", [*tiny, "training.epochs=2", *settings]).model_dump(mode="json")
    (folder / "runs").mkdir(exist_ok=True)
    files = [str(folder / name) for name in ("work", "cache", "runs/key.json", "failed.json")]
    return Task("m:f", recipe, [str(corpus.folder)], options, *files)


def test_table_4_compares_three_attentions(tables):
    [four], [parts], [leakage] = (tables[name] for name in ("4", "ablations", "leakage"))
    recipes = [row.runs[0].recipe for row in four.rows]
    assert [recipe.model.attention for recipe in recipes] == ["hierarchical", "single", "none", "hierarchical"]
    assert {recipe.kind for recipe in recipes} == {"hmhan"} and len(four.runs) == 4 * hmhan.SMALL["seeds"]
    assert [row.runs[0].recipe.kind for row in parts.rows][-2:] == ["reports", "linear"]
    assert [row.names[0] for row in leakage.rows][2:] == [
        "resampled",
        "resampled, real test rows",
        "Table 4 (paper)",
        "conclusion (paper)",
    ]


def test_rows_with_the_same_name_are_the_same_run_in_all_tables(tables):
    key = {(name, row.names[0]): row.runs[0].key for name in ("3", "4", "ablations") for row in tables[name][-1].rows}
    assert key["4", "HMHAN"] == key["ablations", "HMHAN"] == key["3", "with SMOTE"]
    assert key["4", "plain cross-entropy"] == key["ablations", "plain cross-entropy"]
    assert key["3", "without SMOTE"] == key["ablations", "without SMOTE"]


def test_reports_without_one_of_the_codes_are_left_out_as_in_the_paper(small_corpus, tmp_path):
    def runs_of(**settings):
        study = parse_settings(hmhan.STUDY, hmhan.SMALL | settings, "hmhan")
        return {name: hmhan.tables(study, [small_corpus], tmp_path, [name])[-1].runs for name in ("1", "ablations")}

    two = {"recipe": {"hmhan": {"labels": {"top_k": 2}}}}
    codes = set(runs.learned_codes(small_corpus, load_recipe("hmhan", ["labels.top_k=2"]).labels))
    chosen = runs_of(**two)
    assert [run.corpora[0].hash for run in chosen["1"].values()] == [small_corpus.hash]
    assert {run.recipe.labels.top_k for run in chosen["ablations"].values()} == {2}, "also of other recipes"
    [notes] = {run.corpora[0].folder: list(run.corpora[0].notes()) for run in chosen["ablations"].values()}.values()
    expected = {note.id: codes & set(note.codes) for note in small_corpus.notes() if codes & set(note.codes)}
    assert {note.id: set(note.codes) for note in notes} == expected and len(notes) < len(small_corpus)
    everything = runs_of(**two, only_coded_reports=False)["ablations"].values()
    assert {run.corpora[0].hash for run in everything} == {small_corpus.hash}


def test_split_without_a_frequent_code_raises(small_corpus, tmp_path):
    rare = Code("icd10cm", "Z99.89")
    notes = [n if n.split != "dev" else replace(n, codes=(rare,)) for n in small_corpus.notes()]
    corpus = corpus_of(notes, tmp_path / "corpus")
    with pytest.raises(DataError, match="has no dev report with one of"):
        hmhan.tables(parse_settings(hmhan.STUDY, hmhan.SMALL, "hmhan"), [corpus], tmp_path, ["4"])


def test_the_papers_numbers_stand_in_the_rows_of_the_same_things(tables):
    assert tables["1"][0].rows[0].paper == {
        "reports": 73461, "columns": 26, "mean_age": 43, "male": 42027, "female": 31434, "codes": 10,
    }  # fmt: skip
    assert tables["2"][0].rows[0].paper["parameters"] == 110_000_000
    assert tables["4"][0].rows[2].paper["micro_recall"] == 0.28
    assert all(row.runs for name in ("1", "2", "4") for row in tables[name][0].rows)


def test_corpus_counts(tiny, small_corpus, tmp_path, tables):
    metrics = runs.run_corpus(task_of(tiny, small_corpus, tmp_path, "labels.top_k=2"))["metrics"]
    notes = list(small_corpus.notes(text=False))
    code, other = runs.learned_codes(small_corpus, load_recipe("hmhan", ["labels.top_k=2"]).labels)
    in_train = [sum(c in note.codes for note in notes if note.split == "train") for c in (code, other)]
    assert metrics[f"{code}.train"] == in_train[0] >= metrics[f"{other}.train"] == in_train[1]
    assert metrics[f"{code}.reports"] == sum(code in note.codes for note in notes)
    assert metrics["frequent.reports"] == sum(bool({code, other} & set(note.codes)) for note in notes)
    assert metrics["all.reports"] == sum(bool(note.codes) for note in notes) < len(notes)
    assert metrics["frequent.codes"] == 2 < metrics["all.codes"]
    [table] = tables["figure-1"]
    counts = [row.cell({key: {"metrics": metrics} for key in table.runs}, "reports") for row in table.rows[:2]]
    assert [cell.mean for cell in counts] == [metrics[f"{code}.reports"], metrics[f"{other}.reports"]]


def test_class_counts_grow_by_the_synthetic_rows_of_rare_codes(tiny, small_corpus, tmp_path):
    rare = small_notes(1)[0].codes[0]
    kept = [n for i, n in enumerate(small_corpus.notes()) if rare not in n.codes or i % 3 == 0]
    corpus = corpus_of(kept, tmp_path / "corpus")
    with_smote, without = (
        runs.run_class_counts(task_of(tiny, corpus, tmp_path, "model.frozen=true", f"smote.ratio={ratio}"))["metrics"]
        for ratio in (2.0, 0.0)
    )
    assert with_smote["synthetic"] > 0 == without["synthetic"]
    assert with_smote[f"{rare}.with"] > with_smote[f"{rare}.without"] == without[f"{rare}.with"]
    assert with_smote["imbalance.with"] < with_smote["imbalance.without"] == without["imbalance.with"]


def test_encoder_sizes(tiny, small_corpus, tmp_path):
    metrics = runs.run_encoder(task_of(tiny, small_corpus, tmp_path))["metrics"]
    _, encoder = load_pretrained(load_recipe("hmhan", tiny).model.encoder, 0, 512)
    assert metrics["parameters"] == sum(weight.numel() for weight in encoder.parameters())
    assert metrics["hidden_size"] == encoder.width


def test_curves_have_a_number_per_epoch_and_the_loss_of_the_net(tiny, small_corpus, tmp_path, tables):
    result = runs.run_curves(task_of(tiny, small_corpus, tmp_path, "training.learning_rate=0.02"))
    curves, metrics = result["curves"], result["metrics"]
    assert {len(values) for values in curves.values()} == {2} and metrics["epochs"] == 2
    assert metrics["dev_loss"] == curves["dev_loss"][metrics["best_epoch"] - 1]
    assert curves["train_loss"][1] < curves["train_loss"][0] and curves["dev_loss"][1] < curves["dev_loss"][0]
    assert all(0.5 < value <= 1 for value in curves["dev_accuracy"] + curves["train_accuracy"])
    [table] = tables["figure-7"]
    table.figures[0].write(dict.fromkeys(table.runs, result), tmp_path)
    assert (tmp_path / "figure-7.png").stat().st_size > 5000


def test_variants_return_metrics_and_predictions(tiny, small_corpus, tmp_path, tables):
    result = runs.run_variant(task_of(tiny, small_corpus, tmp_path))
    metrics = result["metrics"]
    assert metrics["accuracy"] == pytest.approx(1 - metrics["hamming_loss"])
    entry = result["predictions"][""]
    stored = load_predictions(entry | {"file": tmp_path / "runs" / entry["file"]})
    hits, cells = stored.gold.multiply(stored.predicted).sum(), stored.gold.sum() + stored.predicted.sum()
    assert hits and metrics["micro_f1"] == pytest.approx(2 * hits / cells)
    [table] = tables["4"]
    table.figures[0].write(dict.fromkeys(table.runs, result), tmp_path)
    assert (tmp_path / "figure-6.png").stat().st_size > 5000


def test_protocols_return_metrics(tiny, small_corpus, tmp_path):
    task = task_of(tiny, small_corpus, tmp_path, protocol="by report")
    recipe = load_recipe("hmhan", [*tiny, "training.epochs=2"])
    expected = hmhan_leakage.protocol_metrics(recipe, small_corpus, "by report", tmp_path / "expected")
    assert runs.run_protocol(task)["metrics"] == pytest.approx(expected) and expected["micro_f1"]


def test_lime_shows_frequent_words_only(tiny, small_corpus, tmp_path, tables):
    result = runs.run_lime(task_of(tiny, small_corpus, tmp_path, reports=3, samples=30))
    texts = [note.text.lower() for note in small_corpus.notes("train")]
    shown = [word for words in result["words"].values() for word, _ in words]
    assert shown and all(sum(word in text for text in texts) >= 10 for word in shown)
    assert result["metrics"]["reports"] == 3 and 0 <= result["metrics"]["overlap"] <= 1
    [table] = tables["figure-5"]
    table.figures[0].write(dict.fromkeys(table.runs, result), tmp_path)
    assert (tmp_path / "figure-5.png").stat().st_size > 5000


def test_rare_words_are_left_out():
    code = Code("icd10cm", "J18.9")
    pairs = [("fever", 0.2), ("smith", 0.9), ("fever", 0.4), ("no", -0.5)]
    words = runs._word_means({code: pairs}, Counter(fever=20, smith=9, no=30))
    assert words == {str(code): [("no", -0.5), ("fever", pytest.approx(0.3))]}


@pytest.mark.parametrize("name", ["figure-1", "4", "figure-5", "figure-7"])
def test_figures_are_drawn_without_results(tables, name, tmp_path):
    [figure] = tables[name][0].figures
    assert figure.write({}, tmp_path).is_file()
