"""Tests of the tables of Xu and Dray (2025): their runs and their numbers."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.stats import ttest_rel
from sklearn.metrics import precision_recall_fscore_support

from nosology.config import override, parse_settings
from nosology.core import Code, ConfigError, DataError
from nosology.core.label_space import LabelSpace
from nosology.corpora.splits import split_corpus
from nosology.evaluation import examine
from nosology.reproduce import federated_heads_tables as heads
from nosology.reproduce.result_tables import rows_with_paper_numbers
from nosology.reproduce.runner import Run
from tests.encoders.tiny_embedders import tiny_embedder


def small_study(*settings: str) -> heads.STUDY:
    return parse_settings(heads.STUDY, override(deepcopy(heads.SMALL), settings), "federated_heads")


@pytest.fixture
def small_runs(small_corpus, tmp_path, monkeypatch):
    """The runs of the small tables, all on one corpus without sites and splits."""
    monkeypatch.setattr(heads, "prepared", lambda study, corpora, folder, settings: {"one": small_corpus})
    monkeypatch.setattr(heads, "split_corpora", lambda study, corpus, *rest: [corpus] * study.seeds)

    def runs(*settings: str, wanted=tuple(heads.SETTING)) -> list[Run]:
        tables = heads.tables(small_study(*settings), [small_corpus], tmp_path, wanted)
        return list({key: run for table in tables for key, run in table.runs.items()}.values())

    return runs


def test_full_study_has_216_runs_per_corpus(small_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "prepared", lambda *rest: {"icd10": small_corpus, "icd9": small_corpus})
    monkeypatch.setattr(heads, "split_corpora", lambda study, corpus, *rest: [corpus] * study.seeds)
    tables = heads.tables(heads.STUDY(), [small_corpus, small_corpus], tmp_path, list(heads.SETTING))
    assert [(table.name, table.corpus) for table in tables] == [(n, c) for c in ("icd10", "icd9") for n in "34567"]
    runs = {key: run for table in tables for key, run in table.runs.items()}
    assert Counter(run.names[0] for run in runs.values()) == {"icd10": 216, "icd9": 216}
    assert Counter(run.names[3] for run in runs.values()) == {"central": 36, "federated": 36, "splits": 360}


def test_run_keys_change_with_the_settings(small_runs):
    before = {run.key for run in small_runs()}
    assert before == {run.key for run in small_runs()} and len(before) == 12
    assert not before & {run.key for run in small_runs("recipe.heads.training.epochs=4")}
    assert {run.key for run in small_runs(wanted=["3"])} < before


def test_run_keys_change_with_the_files_of_an_embedder_folder(small_runs, tmp_path):
    folders = [tiny_embedder(tmp_path / name, "bert") for name in ("tuned", "still")]

    def keys() -> dict[str, set[str]]:
        runs = small_runs(f"embedders={[str(folder) for folder in folders]}")
        return {name: {run.key for run in runs if run.names[1] == name} for name in ("tuned", "still")}

    before = keys()
    assert before == keys() and len(before["tuned"]) == 12
    weights = load_file(folders[0] / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, folders[0] / "model.safetensors")
    tuned = keys()
    assert tuned["still"] == before["still"] and not tuned["tuned"] & before["tuned"]
    (folders[0] / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert not keys()["tuned"] & (tuned["tuned"] | before["tuned"])
    (folders[0] / "model.safetensors").unlink()
    assert len(keys()["tuned"]) == 12, "its own runs report what is wrong"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["sites.hospitals=3"], "has no key 'hospitals'; allowed: count"),
        (["heads=['lstm']"], "'mlp', 'deep' or 'res'"),
        (["recipe.heads.model.head=mlp"], "model.head must not be set"),
        (["recipe.heads.model.wide=3"], "has no key 'wide'; allowed: head"),
        (["embedders=['minilm','minilm']"], "must name each once"),
        (["embedders=['arctic-l-v2','/models/snowflake-arctic-embed-l-v2.0']"], "must name each once"),
        (["sites.count=1"], "federation.min_sites must be at most sites.count, 1; got 2"),
    ],
)
def test_invalid_settings_raise(small_runs, settings, sentence):
    with pytest.raises(ConfigError) as refused:
        small_runs(*settings)
    assert sentence in str(refused.value)


def test_corpora_are_written_once_with_codes_of_enough_notes(small_corpus, tmp_path):
    study = small_study("sites.notes=18")
    [(name, prepared)] = heads.prepared(study, [small_corpus], tmp_path, ["central"]).items()
    splits = heads.split_corpora(study, prepared, tmp_path, name)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("notes.parquet")}
    assert name == "corpus" and len(written) == 3 and splits[0].hash != splits[1].hash
    assert heads.prepared(study, [small_corpus], tmp_path, ["central"])["corpus"].hash == prepared.hash
    assert heads.split_corpora(study, prepared, tmp_path, name)[0].hash == splits[0].hash
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("notes.parquet")}
    counts = Counter(code for note in small_corpus.notes() for code in note.codes)
    codes = {code for note in prepared.notes() for code in note.codes}
    assert codes == {code for code in counts if counts[code] >= 54} != set(counts)
    assert {note.site for note in prepared.notes()} == {"site-00", "site-01", "site-02"}


def test_corpus_without_test_notes_raises(tmp_path, small_corpus):
    [two] = split_corpus(small_corpus.folder, tmp_path / "two", ratios=(0.8, 0.2, 0.0))
    with pytest.raises(DataError, match="has no test notes"):
        heads.tables(small_study(), [two], tmp_path / "out", ["3"])


def test_rows_have_the_numbers_of_the_paper(small_runs, small_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "_version", lambda corpus: "icd9")
    study = small_study("embedders=['nomic-v1.5']", "heads=['res']")
    tables = {table.name: table for table in heads.tables(study, [small_corpus], tmp_path, list(heads.SETTING))}
    paper = {name: table.rows[0].paper for name, table in tables.items()}
    assert paper["3"]["micro_f1"] == 0.3776 and paper["4"]["macro_f1"] == 0.1426 and paper["7"]["macro_f1"] == 0.2534
    assert paper["5"]["top50.macro_f1"] == 0.4534 and paper["6"]["top10.macro_precision"] == 0.4520
    assert [row.names for row in tables["3"].rows[1:]] == [("gte-qwen2-1.5b", "DeepResMLP (paper)")], "its best"


def test_every_table_of_the_paper_is_built_once_per_corpus(small_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "prepared", lambda *rest: {"icd10": small_corpus, "icd9": small_corpus})
    monkeypatch.setattr(heads, "split_corpora", lambda study, corpus, *rest: [corpus] * study.seeds)
    monkeypatch.setattr(heads, "_by_name", lambda corpora: dict(zip(("icd10", "icd9"), corpora)))
    tables = heads.tables(heads.STUDY(), [small_corpus, small_corpus], tmp_path, list(heads.TABLES))
    of_notes = ["figure-2", *"34567"]
    expected = [("corpora", "icd10"), ("corpora", "icd9"), ("1", ""), ("2", "")]
    expected += [(name, corpus) for corpus in ("icd10", "icd9") for name in of_notes]
    assert [(table.name, table.corpus) for table in tables] == expected
    assert [figure.name for table in tables for figure in table.figures] == ["figure-2a", "figure-2b"]
    runs = {key: run for table in tables for key, run in table.runs.items()}
    untrained = Counter(run.function.partition(":")[2] for run in runs.values())
    assert untrained == {"run": 432, "count_corpus": 2, "measure_embedder": 6, "measure_head": 3, "time_embedder": 12}


def test_tables_without_notes_need_no_corpus(tmp_path):
    tables = heads.tables(small_study(), [], tmp_path, ["1", "2"])
    assert [table.name for table in tables] == ["1", "2"] and not list(tmp_path.iterdir())


def test_federated_and_central_training_are_compared_by_a_paired_test(small_runs, small_corpus, tmp_path):
    study = small_study("heads=['mlp','deep']")
    tables = heads.tables(study, [small_corpus], tmp_path, ["3", "4"])
    f1 = {("mlp", "central"): 0.5, ("mlp", "federated"): 0.4, ("deep", "central"): 0.3, ("deep", "federated"): 0.4}
    runs = {key: run for table in tables for key, run in table.runs.items()}
    results = {
        key: {"metrics": {"micro_f1": f1[run.names[2:]], "macro_f1": f1[run.names[2:]] / 2}}
        for key, run in runs.items()
    }
    first, *tests = tables[1].remarks(results)
    assert first.endswith("mean +0.0000 of 2 pairs, from -0.1000 to +0.1000.")
    expected = ttest_rel([0.4, 0.4], [0.5, 0.3]).pvalue
    of = f"paired t-test p {expected:.4f}, 2 pairs of embedder and head"
    assert [test.startswith("federated minus central: ") and test.endswith(of) for test in tests] == [True, True]
    assert not list(tables[1].remarks({})), "the corpus has codes of both versions: no numbers of the paper"
    assert not list(heads.tables(study, [small_corpus], tmp_path, ["4"])[0].remarks(results))


def test_paper_numbers_are_compared_by_the_same_test():
    micro, macro = heads._federated_minus_central_in_the_paper("icd9")
    tables = [rows_with_paper_numbers("federated_heads", number, {}, within="icd9 / ") for number in "43"]
    federated, central = ([row.paper["micro_f1"] for row in sorted(rows, key=str)] for rows in tables)
    assert [len(federated), federated[0], central[0]] == [18, 0.3632, 0.3769], "arctic-l-v2 / DeepMLP"
    mean, p = np.mean(federated) - np.mean(central), ttest_rel(federated, central).pvalue
    assert micro.startswith(f"federated (paper) minus central (paper): micro_f1 {mean:+.4f}")
    assert f"paired t-test p {p:.4f}, 18 pairs" in micro and "macro_f1" in macro


def test_heads_are_compared_over_splits_and_the_paper_has_deviations(small_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "prepared", lambda *rest: {"one": small_corpus})
    monkeypatch.setattr(heads, "split_corpora", lambda study, corpus, *rest: [corpus] * study.seeds)
    monkeypatch.setattr(heads, "_version", lambda corpus: "icd10")
    study = small_study("embedders=['qwen3-embedding-0.6b']", "heads=['mlp','deep','res']", "seeds=3")
    [table] = heads.tables(study, [small_corpus], tmp_path, ["7"])
    f1 = {"mlp": [0.4, 0.5, 0.6], "deep": [0.3, 0.5, 0.4], "res": [0.5, 0.5, 0.7]}
    results = {run.key: {"metrics": {"micro_f1": f1[run.names[2]][run.repeat]}} for run in table.runs.values()}
    tests = list(table.remarks(results))
    assert len(tests) == 2 and tests[0].endswith(f"p {ttest_rel(f1['mlp'], f1['deep']).pvalue:.4f}, 3 splits")
    assert tests[0].startswith("qwen3-embedding-0.6b / MLP minus qwen3-embedding-0.6b / DeepMLP: micro_f1 +0.1000")
    assert str(table.rows[0].cell(results, "micro_f1")) == "0.5000 ± 0.1000 [0.3938 ± 0.0073]"


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_top_metrics_equal_scikit_learn(seed, k):
    rng = np.random.default_rng(seed)
    codes = [Code("icd10cm", f"A{i:02d}") for i in range(10)]
    gold, predicted = (rng.random((30, 10)) < 0.4 for _ in range(2))
    gold[0], predicted[0] = True, True  # every code is true in a note: then scikit-learn's mean is ours
    notes = Counter(dict(zip(codes, rng.integers(1, 5, 10).tolist())))
    true = [[codes[j] for j in np.flatnonzero(row)] for row in gold]
    evaluation = examine(LabelSpace(codes), true, predicted.astype(np.float32), 0.5, replicates=0)
    columns = sorted(range(10), key=lambda j: (-notes[codes[j]], codes[j]))[:k]
    metrics = heads.top_metrics(evaluation.counts, notes, k)
    for average in ("macro", "micro"):
        wanted = precision_recall_fscore_support(gold[:, columns], predicted[:, columns], average=average)[:3]
        assert [metrics[f"{average}_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(wanted)


def test_client_means_are_weighted_by_the_notes_of_each_site_and_differ_from_pooled_metrics():
    rng = np.random.default_rng(0)
    codes = [Code("icd10cm", f"A{i:02d}") for i in range(6)]
    gold, predicted = (rng.random((40, 6)) < 0.4 for _ in range(2))
    sites = ["site-00"] * 30 + ["site-01"] * 10
    predicted[30:] = gold[30:]  # the small site is perfect
    true = [[codes[j] for j in np.flatnonzero(row)] for row in gold]
    evaluation = examine(LabelSpace(codes), true, predicted.astype(np.float32), 0.5, replicates=0)
    means = heads.client_means(evaluation, sites, Counter(dict.fromkeys(codes, 3)))
    by_site = [precision_recall_fscore_support(gold[:30], predicted[:30], average="micro")[2], 1.0]
    assert means["micro_f1"] == pytest.approx((30 * by_site[0] + 10 * by_site[1]) / 40)
    assert abs(means["micro_f1"] - evaluation.metrics["micro_f1"]) > 0.01
    assert means.keys() == heads.table_metrics(evaluation.counts, Counter()).keys()
    with pytest.raises(DataError, match="got 40 of 39"):
        heads.client_means(evaluation, sites[1:], Counter())


def test_federated_tables_have_client_means_and_central_tables_have_pooled_metrics(small_runs, small_corpus, tmp_path):
    for metrics, prefix in (("client_mean", "clients."), ("pooled", "")):
        study = small_study(f"sites.metrics={metrics}")
        tables = heads.tables(study, [small_corpus], tmp_path, ["3", "4", "6"])
        assert [table.rows[0].prefix for table in tables] == ["", prefix, prefix]
    assert heads.STUDY().sites.skew == "random", "the paper's partition"
