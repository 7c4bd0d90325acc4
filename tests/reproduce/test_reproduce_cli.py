"""Tests of `nosology reproduce` with real processes: killed and resumed studies, tables, invalid input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import ConfigError
from nosology.corpora.corpus import Corpus
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.reproduce import PAPERS

PATIENCE = 240  # seconds, for a busy machine


def command(corpus: Path, folder: Path, *more: str) -> list[str]:
    """One head of the small study: central, federated and one random split."""
    start = [sys.executable, "-m", "nosology", "reproduce", "federated-heads", "--small", "--corpus", str(corpus)]
    return [*start, "--out", str(folder / "out"), "--seeds", "1", "--set", "heads=['mlp']", *more]


def children(pid: int) -> set[int]:
    """The processes that a process has started."""
    processes = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            processes.add(int(stat.parent.name))
    return processes


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

    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as study:
        try:
            wait_for(lambda: results() or study.poll() is not None, "a first result")
            first = children(study.pid)
            in_flight = wait_for(lambda: children(study.pid) - first, "a second run")
        finally:
            os.kill(study.pid, signal.SIGKILL)
    before = results()
    assert len(before) == 1, "the study must be killed before its second result"
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in in_flight), "the end of the run in flight")
    assert results() == before

    ended = subprocess.run(arguments, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 runs: 1 are done, 2 to do" in ended.stdout
    assert results().items() > before.items() and len(results()) == 3
    assert not list((out / "failed").glob("*")) and not list((out / "logs").glob("*"))
    assert not list((out / "work").glob("*/*.run"))
    for number in "34567":
        page = (out / f"table_{number}.md").read_text(encoding="utf-8")
        assert page.startswith("1 runs, none missing.") and f"## Table {number}." in page and page in ended.stdout
        assert (out / f"table_{number}.csv").stat().st_size

    corpus = Corpus.open(next((out / "corpora").glob("corpus-sites-*")))
    for path in (out / "runs").glob("*.json"):
        result = json.loads(path.read_text())
        assert result["metrics"]["micro_f1"] > 0.6, path.name
        if "splits" not in path.name:
            bundle = Bundle.load(out / "work" / path.stem / "bundle")
            measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
            top_level = {name: value for name, value in result["metrics"].items() if "." not in name}
            assert top_level == pytest.approx({name: measured[name] for name in top_level}), path.name


def test_study_with_failed_runs_exits_with_1_and_names_the_reason(small_corpus, tmp_path):
    arguments = command(small_corpus.folder, tmp_path, "3", "--set", "embedders=['no/such-model']")
    ended = subprocess.run(arguments, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count(": failed: embedder.model") == 1
    assert "1 runs, 1 missing (1 of them failed)" in ended.stderr
    assert "failed: embedder.model" in (tmp_path / "out" / "table_3.md").read_text()


def test_invalid_input_raises(small_corpus, tmp_path):
    corpus, out = ["--corpus", str(small_corpus.folder)], ["--out", str(tmp_path / "out")]
    for arguments, sentence in (
        (["grid"], "PAPER must be one of federated-heads, dual-laat, hmhan, plant; got 'grid'"),
        (["dual_laat", "3"], "TABLE of dual-laat must be one of 1, 2, 4; got '3'"),
        (["dual_laat", "1", *out], "--out and --corpus must be given; with --small, a simulated hospital replaces the"),
        (["dual_laat", "1", "--small"], "--out and --corpus must be given"),
        (["dual_laat", "1", *corpus, *out], "--corpus must name the ICD-10 corpus and then one ICD-9 corpus or more"),
        (["dual_laat", "1", *corpus, *corpus, *out], "each corpus must be given once"),
        (
            ["federated_heads", "--small", *out, "--set", "sites.hospitals=3"],
            "federated-heads: [sites] has no key 'hospitals'; allowed: count",
        ),
        (["hmhan", "--small", "--set", "nothing=3", *out], "hmhan: a recipe has no key 'nothing'; allowed: seeds"),
    ):
        refused = CliRunner().invoke(app, ["reproduce", *arguments])
        assert isinstance(refused.exception, ConfigError) and sentence in str(refused.exception), arguments


@pytest.mark.parametrize("paper", PAPERS)
def test_tables_are_listed(paper):
    listed = CliRunner().invoke(app, ["reproduce", paper])
    assert listed.exit_code == 0 and len(listed.stdout.splitlines()) >= 4


def test_removed_commands_name_the_new_command():
    for name, successor in (("grid", "federated-heads"), ("leakage", "hmhan leakage")):
        ended = CliRunner().invoke(app, [name, "small", "--corpus", "x", "--seeds", "2"])
        assert ended.exit_code == 2 and f"nosology reproduce {successor}" in ended.stderr
    assert "leakage" not in CliRunner().invoke(app, ["--help"]).stdout
