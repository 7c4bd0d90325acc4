"""Tests of `nosology reproduce` with real processes: killed and resumed studies, tables, invalid input."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from html import escape, unescape
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import ConfigError
from nosology.corpora.corpus import Corpus
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.reproduce import PAPERS
from nosology.reproduce.result_tables import label
from tests.federated.deployed_federation import descendants

PATIENCE = 240  # seconds, for a busy machine


PROGRAM = [sys.executable, "-m", "nosology"]


def command(corpus: Path, folder: Path, *more: str) -> list[str]:
    """One head of the small study: four runs that train nothing, then central, federated and one random split."""
    start = ["reproduce", "federated-heads", "--corpus", str(corpus), "--small", "--seeds", "1"]
    settings = ["--set", "heads=['mlp']", "--set", "timed_notes=2"]
    return [*start, *settings, "--out", str(folder / "out"), *more]


def wait_for(condition, what: str):
    until = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < until, f"no {what} in time"
        time.sleep(0.02)
    return value


@pytest.mark.timeout(900)  # processes that each import torch, on a machine that may be busy
def test_killed_study_resumes_and_writes_tables(small_corpus, tmp_path):
    out = tmp_path / "out"
    arguments = command(small_corpus.folder, tmp_path, "--keep-bundles")

    def results() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}

    def second_has_started() -> bool:  # a run has a log until it has succeeded
        logs = {path.stem for path in (out / "logs").glob("*.log")}
        return bool(results() and logs - {Path(name).stem for name in results()})

    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.DEVNULL) as study:
        try:
            wait_for(lambda: second_has_started() or study.poll() is not None, "a second run")
            in_flight = descendants(study.pid)
        finally:
            os.kill(study.pid, signal.SIGKILL)
    before = results()
    assert in_flight and len(before) == 1, "the study must be killed before its second result"
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in in_flight), "the end of the run in flight")
    assert results() == before

    ended = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 runs: 1 are done, 6 to do" in ended.stdout
    assert results().items() > before.items() and len(results()) == 7
    assert not list((out / "failed").glob("*")) and not list((out / "logs").glob("*"))
    assert not list((out / "work").glob("*/*.run"))
    for name in ("corpora", "figure-2", *"1234567"):
        page = (out / f"table_{name}.md").read_text(encoding="utf-8")
        assert page.startswith("1 run, none missing.") and f"## {label(name)}." in page and page in ended.stdout
        assert (out / f"table_{name}.csv").stat().st_size
    assert (out / "figure-2.png").read_bytes().startswith(b"\x89PNG")

    corpus = Corpus.open(next((out / "corpora").glob("corpus-sites-*")))
    trained = [path for path in (out / "runs").glob("*.json") if "-mlp-" in path.name]
    assert len(trained) == 3
    for path in trained:
        result = json.loads(path.read_text())
        assert result["metrics"]["micro_f1"] > 0.6, path.name
        if "splits" not in path.name:
            bundle = Bundle.load(out / "work" / path.stem / "bundle")
            measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
            top_level = {name: value for name, value in result["metrics"].items() if "." not in name}
            assert top_level == pytest.approx({name: measured[name] for name in top_level}), path.name
    check_every_table_is_filled("federated-heads", out, command(small_corpus.folder, tmp_path))
    check_second_call_changes_nothing(out, arguments)


def test_study_with_failed_runs_exits_with_1_and_names_the_reason(small_corpus, tmp_path):
    arguments = command(small_corpus.folder, tmp_path, "3", "--set", "embedders=['no/such-model']")
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, env=offline)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count(": failed: embedder.model") == 1
    assert "1 run, 1 missing (1 of them failed)" in ended.stderr
    assert "failed: embedder.model" in (tmp_path / "out" / "table_3.md").read_text()


def test_invalid_input_raises(small_corpus, tmp_path):
    corpus, out = ["--corpus", str(small_corpus.folder)], ["--out", str(tmp_path / "out")]
    for arguments, sentence in (
        (["grid"], "PAPER must be one of federated-heads, dual-laat, hmhan, plant; got 'grid'"),
        (["dual_laat", "7"], "TABLE of dual-laat must be one of 1, 2, 3, 4, 5, 6, figure-1; got '7'"),
        (["dual_laat", "1", *out], "--out and --corpus must be given; with --small, a simulated hospital replaces the"),
        (["dual_laat", "1", "--small"], "--out and --corpus must be given"),
        (["dual_laat", "1", *corpus, *out], "a corpus must be coded in one ICD version; got"),
        (["dual_laat", "1", *corpus, *corpus, *out], "each corpus must be given once"),
        (
            ["federated_heads", "--small", *out, "--set", "sites.hospitals=3"],
            "federated-heads: [sites] has no key 'hospitals'; allowed: count",
        ),
        (["hmhan", "--small", "--set", "nothing=3", *out], "hmhan: a study has no key 'nothing'; allowed: seeds"),
        (["hmhan", "--small", "--set", "recipe.hmhan-paper.seed=3", *out], "kinds of models: linear, lexicon"),
        # Of recipes that the wanted table does not use, or that would end after training.
        (["plant", "2", "--small", "--set", "recipe.plant.training.epoch=1", *out], "[training] has no key 'epoch'"),
        (["plant", "2", "--small", "--set", "coders.X=nope", *out], "recipe must be a file or one of"),
        (
            ["dual_laat", "2", "--small", "--set", "models.cnn=linear", *out],
            "models.cnn must be a recipe of kind dual_laat; got 'linear', of kind linear",
        ),
        (["dual_laat", "5", "--small", "--set", "models.caml=laat", *out], "models.caml must be a recipe of kind caml"),
        (["hmhan", "1", "--small", "--set", "base=linear", *out], "base must be a recipe of kind hmhan; got 'linear'"),
        (["hmhan", "1", "--small", "--set", "recipe.reports.nothing=1", *out], "no key 'nothing'"),
        (["federated_heads", "corpora", "--small", "--set", "recipe.heads.nothing=1", *out], "no key 'nothing'"),
        # Settings of the tables, before anything is written.
        (
            ["hmhan", "4", "--small", "--set", "recipe.hmhan.model.attention=single", *out],
            "recipe.hmhan.model.attention must not be set: the table sets it",
        ),
        (["hmhan", "3", "--small", "--set", "recipe.hmhan.smote.ratio=1", *out], "smote.ratio must not be set"),
        (
            ["hmhan", "ablations", "--small", "--set", "recipe.linear.labels.top_k=3", *out],
            "recipe.linear.labels.top_k",
        ),
        (["dual_laat", "--small", "--set", "recipe.dual_laat.seed=3", *out], "recipe.dual_laat.seed must not be set"),
        (["federated_heads", "--small", "--set", "recipe.heads.model.head=mlp", *out], "recipe.heads.model.head must"),
        (["plant", "8", "--small", "--set", "recipe.plant.rates.encoder=1", *out], "recipe.plant.rates.encoder must"),
        (["plant", "--small", "--set", "train_notes=[20, -5]", *out], "should be greater than or equal to 1; got -5"),
    ):
        refused = CliRunner().invoke(app, ["reproduce", *arguments])
        assert isinstance(refused.exception, ConfigError) and sentence in str(refused.exception), arguments
    assert not (tmp_path / "out").exists(), "nothing ran"


def test_too_few_patients_are_named(tmp_path):
    arguments = ["reproduce", "hmhan", "4", "--small", "--set", "patients=1", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, arguments)
    assert str(refused.exception) == "the simulated hospital is too small: patients must be more than 1"


@pytest.mark.parametrize("paper", PAPERS)
def test_tables_are_listed(paper):
    listed = CliRunner().invoke(app, ["reproduce", paper])
    assert listed.exit_code == 0 and len(listed.stdout.splitlines()) >= 4
    assert CliRunner().invoke(app, ["reproduce", paper.replace("-", "_")]).stdout == listed.stdout
    if paper == "hmhan":
        assert "4          HMHAN and its baselines, with figure 6" in listed.stdout


def check_every_table_is_filled(paper: str, out: Path, arguments: list[str]) -> None:
    page = (out / "index.html").read_text(encoding="utf-8")
    for name, title in import_module(PAPERS[paper]).TABLES.items():
        heading = f"<h2>{escape(label(name))}. {escape(title)}</h2>"
        section = page.partition(heading)[2].partition("</section>")[0]
        assert re.search(r'<span class="ours">(<b>)?[0-9.,]+', section), f"{name} has no number of ours"
    assert shlex.join(["nosology", *arguments]) in unescape(page)


def check_second_call_changes_nothing(out: Path, arguments: list[str]) -> None:
    page = (out / "index.html").read_text(encoding="utf-8")
    results = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0 and re.search(r"^(\d+) runs: \1 are done, 0 to do$", again.stdout, re.M), again.output
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()} == results
    assert (out / "index.html").read_text(encoding="utf-8") == page


# Less than --small: the fewest notes and steps with which every table has numbers. The study above, which is killed,
# fills the tables of federated-heads.
SMALLER = {
    "dual-laat": [
        "patients=60",  # far fewer have no frequent code
        *("models.caml=''", "models.laat=''", "models.plm_icd=''", "models.gru=dual_laat-paper-cnn"),
        *("recipe.dual_laat.training.epochs=1", "recipe.dual_laat.vectors.epochs=1"),
    ],
    "hmhan": ["patients=15", "recipe.hmhan.training.epochs=1"],
    "plant": [
        "patients=15",
        "train_notes=[50000]",
        *("recipe.plant.training.epochs=1", "recipe.plant.model.size=16", "recipe.plant.model.hidden=16"),
        *("recipe.plant.ranker.epochs=1", "recipe.plant.ranker.steps=5"),
    ],
}


def small_study(paper: str, out: Path, settings: list[str], *tables: str) -> list[str]:
    """The arguments of a study on a simulated hospital."""
    words = [word for setting in ["rows=1", *settings] for word in ("--set", setting)]
    return ["reproduce", paper, *tables, "--small", "--seeds", "1", *words, "--out", str(out)]


@pytest.mark.timeout(900)  # processes that each import torch, on a machine that may be busy
@pytest.mark.parametrize("paper", [paper for paper in PAPERS if paper != "federated-heads"])
def test_small_study_fills_every_table_and_runs_once(paper, tmp_path):
    out = tmp_path / "out"
    arguments = small_study(paper, out, SMALLER[paper])
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    check_every_table_is_filled(paper, out, arguments)
    check_second_call_changes_nothing(out, arguments)


def test_hospitals_of_federated_heads_are_simulated(tmp_path):
    """Their notes are counted; the study above trains on a corpus that is given."""
    arguments = small_study("federated-heads", tmp_path / "out", ["patients=30", "heads=['mlp']"], "corpora")
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    (result,) = (json.loads(path.read_text()) for path in (tmp_path / "out" / "runs").glob("*.json"))
    assert result["metrics"]["all.patients"] == 30 and result["metrics"]["frequent.train"] > 0
    page = (tmp_path / "out" / "table_corpora.md").read_text(encoding="utf-8")
    assert page.startswith("1 run, none missing.") and f"| {result['metrics']['all.notes']} |" in page


def test_removed_commands_name_the_new_command():
    for name, successor in (("grid", "federated-heads"), ("leakage", "hmhan leakage")):
        ended = CliRunner().invoke(app, [name, "small", "--corpus", "x", "--seeds", "2"])
        assert ended.exit_code == 2 and f"nosology reproduce {successor}" in ended.stderr
    assert "leakage" not in CliRunner().invoke(app, ["--help"]).stdout
