"""Tests of runs as processes: keys, resume, crashed and killed runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from nosology.config import load_recipe
from nosology.core import ConfigError
from nosology.corpora.corpus import Corpus
from nosology.reproduce.runner import Run, Runner, StudySettings

# A process that does no work: it logs its run, and ends as the option `end` of the run says.
FAKE = """
import json, os, signal, sys, time
task = json.loads(sys.stdin.readline())
place = os.environ["RUNNER_TEST"]
with open(place, "a") as file:
    file.write("start " + os.path.basename(task["result"]) + "\\n")
if task["options"]["end"] == "kill" and not os.path.exists(place + ".fixed"):
    os.kill(os.getpid(), signal.SIGKILL)
if task["options"]["end"] == "exit" and not os.path.exists(place + ".fixed"):
    sys.exit(3)
if task["options"]["end"] == "failure" and not os.path.exists(place + ".fixed"):
    os.makedirs(os.path.dirname(task["failure"]), exist_ok=True)
    json.dump({"why": "there is no such model"}, open(task["failure"], "w"))
    sys.exit(1)
time.sleep(task["options"].get("seconds", 0))
os.makedirs(os.path.dirname(task["result"]), exist_ok=True)
json.dump({"metrics": {"micro_f1": 0.5}, "seconds": 1.0}, open(task["result"], "w"))
with open(place, "a") as file:
    file.write("end " + os.path.basename(task["result"]) + "\\n")
"""


def fake_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int = 1) -> Runner:
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setenv("RUNNER_TEST", str(tmp_path / "ran"))
    return Runner(tmp_path / "out", tmp_path / "cache", jobs, command=(sys.executable, str(tmp_path / "fake.py")))


def some_runs(corpus: Corpus, *ends: str, repeats: int = 3, **more) -> list[Run]:
    recipe = load_recipe("linear")
    return [Run((end,), "m:f", recipe, (corpus,), i, {"end": end} | more) for end in ends for i in range(repeats)]


def events(tmp_path: Path) -> list[str]:
    lines = (tmp_path / "ran").read_text().splitlines()
    (tmp_path / "ran").write_text("")
    return lines


def started(tmp_path: Path) -> list[str]:
    return [line.removeprefix("start ") for line in events(tmp_path) if line.startswith("start ")]


def test_failed_runs_are_reported_and_repeated(small_corpus, tmp_path, monkeypatch):
    runner = fake_runner(tmp_path, monkeypatch, jobs=2)
    runs = some_runs(small_corpus, "well", "kill", "exit", "failure")
    lines: list[str] = []
    failed = runner.work(runs, lines.append)
    assert len(started(tmp_path)) == len(runs) == 12
    assert {run.names[0]: failed.get(run.key) for run in runs} == {
        "well": None,
        "kill": "it was killed: did memory run out?",
        "exit": "it ended with code 3 and no result",
        "failure": "there is no such model",
    }
    assert runner.failures(runs) == failed
    assert lines[0] == "12 runs: 0 are done, 12 to do" and len(lines) == 1 + 12
    assert "left" in lines[-2] and "left" not in lines[-1]
    done = {key: (tmp_path / "out" / "runs" / f"{key}.json").stat().st_mtime_ns for key in runner.results(runs)}
    assert len(done) == 3

    (tmp_path / "ran.fixed").touch()
    assert runner.work(runs) == {} == runner.failures(runs)
    assert sorted(started(tmp_path)) == sorted(f"{key}.json" for key in failed)
    assert all((tmp_path / "out" / "runs" / f"{key}.json").stat().st_mtime_ns == at for key, at in done.items())
    assert not list((tmp_path / "out" / "failed").glob("*")) and not list((tmp_path / "out" / "logs").glob("*"))

    assert runner.work(runs, lines.append) == {} and lines[-1] == "12 runs: 12 are done, 0 to do"
    assert started(tmp_path) == []


WORK = """
import os, signal

def name_the_server(task):
    print("loud", flush=True)
    return {"metrics": {"server": os.getppid()}}

def kill(task):
    os.kill(os.getpid(), signal.SIGKILL)

def fail(task):
    raise ValueError(f"text of {1} note")  # the source line is in the log, the message is not
"""


def test_runs_are_forks_of_one_server_that_outlives_them(small_corpus, tmp_path, monkeypatch):
    (tmp_path / "work_of_a_run.py").write_text(WORK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    runner, recipe = Runner(tmp_path / "out", tmp_path / "cache"), load_recipe("linear")
    names = ["name_the_server", "kill", "fail", "no_function", "name_the_server"]
    runs = [Run((name,), f"work_of_a_run:{name}", recipe, (small_corpus,), i) for i, name in enumerate(names)]
    failed = runner.work(runs)
    servers = {result["metrics"]["server"] for result in runner.results(runs).values()}
    assert len(runner.results(runs)) == 2 and len(servers) == 1
    assert not Path(f"/proc/{servers.pop()}").exists()
    assert [failed.get(run.key) for run in runs] == [
        None,
        "it was killed: did memory run out?",
        "ValueError at work_of_a_run.py:12",
        failed[runs[3].key],
        None,
    ]
    assert failed[runs[3].key].startswith("AttributeError at run_process.py:")
    logs = {path.stem: path.read_text() for path in (tmp_path / "out" / "logs").iterdir()}
    assert sorted(logs) == sorted(failed)
    assert "line 12, in fail" in logs[runs[2].key] and "text of 1 note" not in logs[runs[2].key]


def test_damaged_results_are_run_again(small_corpus, tmp_path, monkeypatch):
    runner = fake_runner(tmp_path, monkeypatch)
    [run] = some_runs(small_corpus, "well", repeats=1)
    path = tmp_path / "out" / "runs" / f"{run.key}.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"metrics": ', encoding="utf-8")
    assert runner.work([run]) == {} and len(started(tmp_path)) == 1
    assert json.loads(path.read_text())["seconds"] == 1.0


def test_predictions_belong_to_their_run(small_corpus, tmp_path, monkeypatch):
    runner = fake_runner(tmp_path, monkeypatch)
    [well], [kill] = (some_runs(small_corpus, end, repeats=1) for end in ("well", "kill"))
    folder = tmp_path / "out" / "runs"
    folder.mkdir(parents=True)
    stale = [folder / f"{run.key}{name}.safetensors" for run in (well, kill) for name in ("", ".few")]
    other = folder / "another.safetensors"
    for path in (*stale, other):
        path.touch()
    assert list(runner.work([well, kill])) == [kill.key]
    assert not any(path.exists() for path in stale) and other.exists()

    entry = {"few": {"file": f"{well.key}.few.safetensors", "sha256": "x"}}
    (folder / f"{well.key}.json").write_text(json.dumps({"metrics": {}, "seconds": 1.0, "predictions": entry}))
    stale[1].touch()
    assert list(runner.work([well])) == [] and stale[1].exists(), "a finished run keeps its predictions"
    assert runner.results([well])[well.key]["predictions"]["few"]["file"] == str(stale[1])


def test_first_run_of_a_cache_group_runs_alone(small_corpus, tmp_path, monkeypatch):
    runner = fake_runner(tmp_path, monkeypatch, jobs=3)
    recipe, options = load_recipe("linear"), {"end": "well", "seconds": 0.3}
    runs = [Run(("a",), "m:f", recipe, (small_corpus,), i, options, "cache") for i in range(3)]
    assert runner.work(runs) == {}
    seen = events(tmp_path)
    assert seen[1] == seen[0].replace("start", "end"), "the first had ended before the second started"
    assert [line.split()[0] for line in seen[2:4]] == ["start", "start"]


def test_keys_depend_on_all_inputs(small_corpus):
    recipe = load_recipe("linear")

    def key(**changes) -> str:
        values = {"names": ("a",), "function": "m:f", "recipe": recipe, "corpora": (small_corpus,)} | changes
        return Run(**values).key

    different = [key(), key(function="m:g"), key(recipe=load_recipe("linear", ["seed=1"])), key(options={"x": 1})]
    different += [key(corpora=()), key(repeat=1)]
    assert len(set(different)) == 6 and key() == key(cache_group="cache")


def test_study_settings_change_recipes_but_not_settings_of_a_table():
    study = StudySettings(recipe={"laat": {"training": {"epochs": 3}, "labels": {"systems": ["icd10cm"]}}})
    recipe = study.load("laat", "seed=4")
    assert (recipe.training.epochs, recipe.seed, recipe.labels.systems) == (3, 4, ["icd10cm"])
    assert study.load("linear").labels.systems == []
    with pytest.raises(ConfigError, match=r"training\.epochs must not be set"):
        study.load("laat", "training.epochs=2")
    with pytest.raises(ConfigError, match="has no key 'wide'"):
        StudySettings(recipe={"laat": {"model": {"wide": 3}}}).load("laat")
