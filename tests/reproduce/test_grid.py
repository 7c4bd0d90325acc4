"""The grid: what is to be run, what happens to runs that die, what the tables say."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy import sparse
from sklearn.metrics import precision_recall_fscore_support

from nosology.cli.grid import load_grid, recipes_of
from nosology.core import Code, ConfigError, DataError
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus
from nosology.evaluation.counts import Counts
from nosology.reproduce.grid import Folder, Run, plan, prepare
from nosology.reproduce.grid_plot import PLOT, write_plot
from nosology.reproduce.grid_run import METRICS, top_counts
from nosology.reproduce.grid_tables import Cell, missing, tables, write_tables
from nosology.reproduce.grid_work import Worker
from tests.encoders.tiny_embedders import tiny_embedder

# A process that does no work: it notes which run it was, and ends as the run's head says.
FAKE = """
import json, os, signal, sys
task = json.loads(sys.stdin.readline())
head, place = task["recipe"]["model"]["head"], os.environ["GRID_TEST"]
name = os.path.basename(task["result"])
with open(place, "a") as file:
    file.write(name + "\\n")
if task["setting"] == "embed":
    found = {"key": "k", "dim": 2, "identity": {}}
    if task["recipe"]["embedder"]["model"] == "broken":
        json.dump({"why": "there is no such model"}, open(task["failure"], "w"))
        sys.exit(1)
elif head == "deep" and not os.path.exists(place + ".mended"):
    os.kill(os.getpid(), signal.SIGKILL)
elif head == "res" and not os.path.exists(place + ".mended"):
    sys.exit(3)
else:
    numbers = dict.fromkeys(task["metrics"], 0.5)
    found = {"metrics": numbers, "top": {str(k): numbers for k in task["top"]}, "seconds": 1.0}
os.makedirs(os.path.dirname(task["result"]), exist_ok=True)
json.dump(found, open(task["result"], "w"))
""".replace('task["metrics"]', repr(METRICS))


def small_runs(corpus: Corpus, *overrides: str, name: str = "small") -> list[Run]:
    """The runs of a grid, on splits that need not be made: all on one corpus."""
    grid = load_grid(name, list(overrides))
    return plan(grid, recipes_of(grid, name), {"one": (corpus, [corpus] * grid.splits.count)})


def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int = 1) -> Worker:
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setenv("GRID_TEST", str(tmp_path / "ran"))
    for name in ("runs", "failed"):
        (tmp_path / "out" / name).mkdir(parents=True)
    command = (sys.executable, str(tmp_path / "fake.py"))
    return Worker(Folder(tmp_path / "out"), tmp_path / "cache", jobs, command=command)


def ran(tmp_path: Path) -> list[str]:
    found = (tmp_path / "ran").read_text().split()
    (tmp_path / "ran").write_text("")
    return [name for name in found if not name.startswith("embed-")]


def test_the_papers_grid_is_216_runs_a_corpus(small_corpus):
    grid = load_grid("paper", [])
    prepared = {name: (small_corpus, [small_corpus] * 10) for name in ("icd10", "icd9")}
    runs = plan(grid, recipes_of(grid, "paper"), prepared)
    assert Counter(run.corpus for run in runs) == {"icd10": 216, "icd9": 216}
    assert Counter(run.setting for run in runs) == {"central": 36, "federated": 36, "splits": 360}
    assert len({run.id for run in runs}) == 432


def test_an_id_changes_with_what_the_result_follows_from(small_corpus):
    before = {run.id for run in small_runs(small_corpus)}
    assert before == {run.id for run in small_runs(small_corpus)}
    assert not before & {run.id for run in small_runs(small_corpus, "recipe.training.epochs=4")}
    federated = {run.id for run in small_runs(small_corpus) if run.setting == "federated"}
    assert before - {run.id for run in small_runs(small_corpus, "recipe.federation.rounds=4")} == federated


def test_an_id_changes_with_the_files_of_an_embedder_that_is_a_folder(small_corpus, tmp_path):
    folders = [tiny_embedder(tmp_path / name, "bert") for name in ("tuned", "still")]

    def ids() -> dict[str, set[str]]:
        runs = small_runs(small_corpus, f"embedders={[str(folder) for folder in folders]}")
        return {name: {run.id for run in runs if run.embedder == name} for name in ("tuned", "still")}

    before = ids()
    assert before == ids() and len(before["tuned"]) == 8
    weights = load_file(folders[0] / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, folders[0] / "model.safetensors")
    tuned = ids()
    assert tuned["still"] == before["still"] and not tuned["tuned"] & before["tuned"]
    (folders[0] / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert not ids()["tuned"] & (tuned["tuned"] | before["tuned"])
    (folders[0] / "model.safetensors").unlink()
    assert len(ids()["tuned"]) == 8, "what is wrong with it is for its own runs to say"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["sites.hospitals=3"], "has no key 'hospitals'; allowed: count"),
        (["heads=['lstm']"], "'mlp', 'deep' or 'res'"),
        (["recipe.model.head=mlp"], "recipe.model.head must not be set"),
        (["recipe.model.wide=3"], "has no key 'wide'; allowed: head"),
        (["embedders=['minilm','minilm']"], "must name each once"),
        (["sites.count=1"], "recipe.federation.min_sites must be at most sites.count, 1; got 2"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(small_corpus, overrides, sentence):
    with pytest.raises(ConfigError) as refused:
        small_runs(small_corpus, *overrides)
    assert sentence in str(refused.value)


def test_corpora_are_prepared_once_and_keep_codes_that_sites_can_share(small_corpus, tmp_path):
    grid, folder = load_grid("small", ["sites.notes=18"]), Folder(tmp_path)
    first = prepare(grid, [small_corpus.folder], folder)
    whole, splits = first["corpus"]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("notes.parquet")}
    assert len(written) == 3 and len(splits) == 2 and splits[0].hash != splits[1].hash
    assert prepare(grid, [small_corpus.folder], folder)["corpus"][0].hash == whole.hash
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("notes.parquet")}
    counts = Counter(code for note in small_corpus.notes() for code in note.codes)
    kept = {code for note in whole.notes() for code in note.codes}
    assert kept == {code for code in counts if counts[code] >= 54} != set(counts)
    assert {note.site for note in whole.notes()} == {"site-00", "site-01", "site-02"}


def test_a_corpus_without_test_notes_is_refused(tmp_path, small_corpus):
    from nosology.corpora.splits import split_corpus

    split_corpus(small_corpus.folder, tmp_path / "two", ratios=(0.8, 0.2, 0.0))
    with pytest.raises(DataError, match="has no test notes"):
        prepare(load_grid("small", []), [tmp_path / "two"], Folder(tmp_path / "out"))


def test_runs_that_die_are_noted_and_tried_again_and_the_others_go_on(small_corpus, tmp_path, monkeypatch):
    worker = fake_worker(tmp_path, monkeypatch, jobs=2)
    runs = small_runs(small_corpus, "heads=['mlp','deep','res']", "splits.count=1")
    lines: list[str] = []
    failed = worker.work(runs, lines.append)
    assert len(ran(tmp_path)) == len(runs) == 9
    why = {run.head: failed.get(run.id) for run in runs}
    assert why == {
        "mlp": None,
        "deep": "it was killed: did memory run out?",
        "res": "it ended with code 3 and no result",
    }
    assert worker.folder.failures(runs) == failed
    assert lines[0] == "9 runs: 0 are done, 9 to do" and len(lines) == 1 + 1 + 9
    assert "left" in lines[-2] and "left" not in lines[-1]
    done = {name: worker.folder.result(name).stat().st_mtime_ns for name in worker.folder.found(runs)}

    (tmp_path / "ran.mended").touch()
    assert worker.work(runs) == {} == worker.folder.failures(runs)
    assert sorted(ran(tmp_path)) == sorted(f"{name}.json" for name in failed)
    assert all(worker.folder.result(name).stat().st_mtime_ns == time for name, time in done.items())

    assert worker.work(runs, lines.append) == {} and lines[-1] == "9 runs: 9 are done, 0 to do"
    assert ran(tmp_path) == []


def test_an_embedder_that_cannot_be_had_fails_its_own_runs_alone(small_corpus, tmp_path, monkeypatch):
    worker = fake_worker(tmp_path, monkeypatch)
    runs = small_runs(small_corpus, "heads=['mlp']", "embedders=['broken','minilm']", "splits.count=1")
    failed = worker.work(runs)
    assert set(failed) == {run.id for run in runs if run.embedder == "broken"}
    assert set(failed.values()) == {"its notes were not embedded: there is no such model"}
    assert worker.folder.failures(runs) == failed and len(worker.folder.found(runs)) == 3


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_mean_and_std_are_those_of_a_sample(values):
    cell = Cell(tuple(values), len(values))
    assert cell.mean == pytest.approx(np.mean(values))
    assert cell.std == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert str(cell) == f"{cell.mean:.4f} ± {cell.std:.4f}"


def test_cells_say_what_is_missing():
    assert str(Cell((), 2)) == "-"
    assert str(Cell((0.5,), 1)) == "0.5000"
    assert str(Cell((0.25, 0.5), 3)) == "0.3750 ± 0.1768 (2 of 3)"


def results_of(runs: list[Run]) -> dict[str, dict]:
    """A result for each run, every number its own."""
    rng = np.random.default_rng(0)

    def numbers() -> dict[str, float]:
        return dict(zip(METRICS, rng.random(len(METRICS)).tolist()))

    return {run.id: {"metrics": numbers(), "top": {"10": numbers(), "50": numbers()}} for run in runs}


def test_tables_show_the_numbers_of_their_runs(small_corpus, tmp_path):
    runs = small_runs(small_corpus)
    results = results_of(runs)
    write_tables(tmp_path, runs, results, {}, [10, 50])
    rows = list(csv.DictReader((tmp_path / "tables.csv").read_text(encoding="utf-8").splitlines()))
    assert Counter(row["table"] for row in rows) == dict.fromkeys("34567", 12)
    for row in rows:
        setting = {"3": "central", "4": "federated", "5": "central", "6": "federated", "7": "splits"}[row["table"]]
        mine = [results[run.id] for run in runs if run.setting == setting and run.head == row["head"]]
        values = [(one["top"][row["top"]] if row["top"] else one["metrics"])[row["metric"]] for one in mine]
        assert float(row["mean"]) == fmean(values) and len(values) == int(row["runs"]) == int(row["of"])
        assert (row["std"] == "") == (row["table"] != "7")
        assert row["metric"].startswith("macro") or row["table"] in "347"
    page = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert page.startswith("8 runs, none missing.") and page.count("## Table") == 5 and " - " not in page
    best = max((results[run.id]["metrics"]["micro_f1"], run.head) for run in runs if run.setting == "central")
    assert f"**{best[0]:.4f}**" in page.split("## Table 4")[0]


def test_missing_runs_are_dashes_and_are_counted(small_corpus, tmp_path):
    runs = small_runs(small_corpus)
    every = results_of(runs)
    results = {run.id: every[run.id] for run in runs if run.setting == "central" or run.split == 0}
    failed = {runs[1].id: "it was killed"}
    assert missing(runs, results, failed) == "4 missing (1 of them failed)"
    write_tables(tmp_path, runs, results, failed, [10, 50])
    page = (tmp_path / "tables.md").read_text(encoding="utf-8")
    federated = page.split("## Table 4")[1].split("## Table 5")[0]
    assert federated.count("| - ") == 12
    assert page.count("(1 of 2)") == 12 and f"- {runs[1].id}: it was killed" in page
    write_plot(tmp_path, runs, results)
    write_plot(tmp_path, runs, {})
    assert (tmp_path / PLOT).read_bytes().startswith(b"\x89PNG")


def test_table_numbers_and_settings_are_the_papers():
    assert [(table.number, table.setting) for table in tables([10, 50])] == [
        (3, "central"),
        (4, "federated"),
        (5, "central"),
        (6, "federated"),
        (7, "splits"),
    ]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_top_codes_score_as_in_scikit_learn(seed, k):
    rng = np.random.default_rng(seed)
    codes = [Code("icd10cm", f"A{i:02d}") for i in range(10)]
    gold, predicted = (rng.random((30, 10)) < 0.4 for _ in range(2))
    gold[0], predicted[0] = True, True  # every code is true somewhere: then scikit-learn's mean is ours
    seen = Counter(dict(zip(codes, rng.integers(1, 5, 10).tolist())))
    counts = Counts.of(LabelSpace(codes), 10, *(sparse.csr_matrix(m.astype(np.int8)) for m in (gold, predicted)))
    columns = sorted(range(10), key=lambda j: (-seen[codes[j]], codes[j]))[:k]
    found = top_counts(counts, seen, k).metrics()
    for average in ("macro", "micro"):
        wanted = precision_recall_fscore_support(gold[:, columns], predicted[:, columns], average=average)[:3]
        if len(columns) > 1:
            assert [found[f"{average}_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(wanted)


def test_a_damaged_result_is_run_again(small_corpus, tmp_path, monkeypatch):
    worker = fake_worker(tmp_path, monkeypatch)
    runs = small_runs(small_corpus, "heads=['mlp']", "settings=['central']")
    worker.folder.result(runs[0].id).write_text('{"metrics": ', encoding="utf-8")
    assert worker.work(runs) == {} and len(ran(tmp_path)) == 1
    assert json.loads(worker.folder.result(runs[0].id).read_text())["seconds"] == 1.0
