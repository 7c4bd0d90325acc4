"""nosology grid for real: processes, a kill in the middle, tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nosology.corpora.corpus import Corpus
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle

PATIENCE = 240  # seconds, for a busy machine


def command(corpus: Path, place: Path, *more: str) -> list[str]:
    """One head of the small grid: central, federated and one random split."""
    told = [sys.executable, "-m", "nosology", "grid", "small", "--corpus", str(corpus), "--cache", str(place / "cache")]
    return [*told, "--out", str(place / "out"), "--set", "heads=['mlp']", "--set", "splits.count=1", *more]


def children(pid: int) -> set[int]:
    """The processes that a process has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def wait_for(condition, what: str):
    until = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < until, f"{what} did not come about"
        time.sleep(0.02)
    return found


@pytest.mark.timeout(900)  # nine processes that each import torch, on a machine that may be busy
def test_a_grid_that_is_killed_goes_on_and_ends_in_tables(small_corpus, tmp_path):
    out = tmp_path / "out"
    told = command(small_corpus.folder, tmp_path, "--keep-bundles")

    def results() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (out / "runs").glob("corpus-*.json")}

    with subprocess.Popen(told, stdout=subprocess.DEVNULL) as grid:
        try:
            wait_for(lambda: results() or grid.poll() is not None, "a first result")
            first = children(grid.pid)
            in_flight = wait_for(lambda: children(grid.pid) - first, "a second run")
        finally:
            os.kill(grid.pid, signal.SIGKILL)
    before = results()
    assert len(before) == 1, "the grid was to be killed in the middle"
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in in_flight), "the end of the run in flight")
    assert results() == before

    ended = subprocess.run(told, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 runs: 1 are done, 2 to do" in ended.stdout
    assert results().items() > before.items() and len(results()) == 3
    assert not list((out / "failed").glob("*")) and not list((out / "logs").glob("*"))
    assert not list((out / "bundles").glob("*.run"))
    page = (out / "tables.md").read_text(encoding="utf-8")
    assert page.startswith("3 runs, none missing.") and page.count("## Table") == 5
    assert (out / "plot.png").stat().st_size and (out / "tables.csv").stat().st_size

    corpus = Corpus.open(next((out / "corpora").glob("corpus-sites-*")))
    for path in (out / "runs").glob("corpus-*.json"):
        found = json.loads(path.read_text())
        assert found["metrics"]["micro_f1"] > 0.6, path.name
        if "splits" in path.name:
            continue
        bundle = Bundle.load(out / "bundles" / path.stem)
        measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
        assert found["metrics"] == pytest.approx({name: measured[name] for name in found["metrics"]}), path.name


def test_a_grid_with_a_failed_run_ends_with_1_and_says_why(small_corpus, tmp_path):
    told = command(small_corpus.folder, tmp_path, "--set", "embedders=['no/such-model']")
    ended = subprocess.run(told, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count("failed: its notes were not embedded: embedder.model") == 3
    assert "3 runs, 3 missing (3 of them failed)" in (tmp_path / "out" / "tables.md").read_text().replace(".", "")


def test_a_wrong_grid_is_one_sentence(small_corpus, tmp_path):
    told = command(small_corpus.folder, tmp_path, "--set", "sites.hospitals=3")
    ended = subprocess.run(told, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("nosology: small: [sites] has no key 'hospitals'; allowed: count")
    told[told.index("small")] = "smal"
    ended = subprocess.run(told, capture_output=True, text=True)
    assert ended.stderr == "nosology: grid must be a file or one of paper, small; got 'smal'\n"
