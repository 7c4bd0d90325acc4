"""Coding on a Ray cluster of two workers gives the predictions of one process."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from nosology.core import ConfigError
from nosology.serving.coder import Coder
from nosology.serving.ray_engine import code_on_ray
from tests.conftest import small_notes

# A separate process: Ray's threads and its log handlers would outlive a test.
PROGRAM = """
import json, sys
from nosology.core import Note
from nosology.serving.ray_engine import code_on_ray
notes = [Note(**row, extra={"age": 4} if row["id"] == "n3" else {}) for row in map(json.loads, sys.stdin)]
for note_id, codes in code_on_ray(notes, bundle=sys.argv[1], top=3, workers=2):
    print(json.dumps([note_id, json.loads(codes)]))
"""


def test_far_more_workers_than_cores_of_this_machine_are_refused(small_bundle):
    with pytest.raises(ConfigError, match=r"workers must be at most \d+, 8 per core; got 5000"):
        list(code_on_ray(small_notes(1), bundle=small_bundle, workers=5000))


@pytest.mark.timeout(600)
def test_two_workers_give_the_predictions_of_one_process_in_order(small_bundle):
    notes = small_notes(150, seed=3)
    lines = "\n".join(json.dumps({"id": note.id, "text": note.text}) for note in notes)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(small_bundle)],
        input=lines,
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"},
        timeout=590,
    )
    assert (run.returncode, run.stderr) == (0, "")  # nothing of Ray
    predictions = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert [note_id for note_id, _ in predictions] == [note.id for note in notes]
    coder = Coder.load(small_bundle)
    for (_, codes), suggestions in zip(predictions, coder.code_all((note.text for note in notes), 3)):
        assert codes == [json.loads(json.dumps(item.to_json())) for item in suggestions]


KILLING = """
import json, os, signal, sys
from pathlib import Path
from nosology.core import Note
from nosology.serving import ray_engine
ray_engine._TASK = ray_engine._BATCH = 8
class Killed(ray_engine.RayCoder):
    def __call__(self, block):
        if "n37" in list(block["id"]) and not Path(sys.argv[2]).exists():
            Path(sys.argv[2]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(block)
ray_engine.RayCoder = Killed
notes = [Note(**row) for row in map(json.loads, sys.stdin)]
for note_id, codes in ray_engine.code_on_ray(notes, bundle=sys.argv[1], top=3, workers=2):
    print(json.dumps([note_id, len(json.loads(codes))]))
"""


@pytest.mark.timeout(600)
def test_task_of_a_killed_worker_is_repeated(small_bundle, tmp_path):
    notes = [replace(note, id=f"n{number}") for number, note in enumerate(small_notes(60, seed=3))]
    killed = tmp_path / "killed"
    run = subprocess.run(
        [sys.executable, "-c", KILLING.replace("sys.argv[2]", repr(str(killed))), str(small_bundle)],
        input="\n".join(json.dumps({"id": note.id, "text": note.text}) for note in notes),
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"},
        timeout=590,
    )
    assert (run.returncode, run.stderr) == (0, "") and killed.exists()
    assert [json.loads(line)[0] for line in run.stdout.splitlines()] == [note.id for note in notes]


@pytest.mark.timeout(600)
def test_a_note_that_is_no_text_has_an_error_in_its_place(small_bundle, tmp_path):
    (tmp_path / "notes.csv").write_text("id,text\na,heart failure\nb,<p>x</p><br><br><br>\nc,diabetes\n")
    command = [sys.executable, "-m", "nosology", "code", str(small_bundle), str(tmp_path / "notes.csv"), "--json"]
    run = subprocess.run([*command, "--engine", "ray"], capture_output=True, text=True, timeout=590)
    records = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 1 and [record["id"] for record in records] == ["a", "b", "c"]
    assert ["error" in record for record in records] == [False, True, False] and records[0]["codes"]
    assert "note b cannot be used: the note is HTML or XML" in run.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--engine", "ray", "--json", "--release", "1850"], "release must be one of"),
        (["--engine", "ray", "--json", "--system", "icd11"], "system must be one of"),
        (["--engine", "ray", "--json", "--address", "127.0.0.1:1"], "--address must be that of a running Ray cluster"),
        (["--engine", "ray", "--json", "--address", "nowhere"], "--address must be that of a running Ray cluster"),
        (["--workers", "3"], "--workers has no effect without --engine ray"),
        (["--address", "auto"], "--address has no effect without --engine ray"),
    ],
)
def test_wrong_options_are_refused_with_one_sentence(small_bundle, tmp_path, options, sentence):
    (tmp_path / "n.txt").write_text("x")
    command = [sys.executable, "-m", "nosology", "code", str(small_bundle), str(tmp_path / "n.txt"), *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=290)
    assert run.returncode == 1 and run.stderr.startswith("nosology: ") and run.stderr.count("\n") == 1
    assert sentence in run.stderr


def test_unknown_engines_are_refused(small_bundle, tmp_path):
    from nosology.cli.coder_commands import code

    (tmp_path / "n.txt").write_text("x")
    for engine, as_json in (("spark", True), ("ray", False)):
        with pytest.raises(ConfigError, match=rf"--engine must be local, or ray with --json.*got '{engine}'"):
            code(small_bundle, [str(tmp_path / "n.txt")], as_json=as_json, engine=engine)
