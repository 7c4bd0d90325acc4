"""The projection of benchmarks/speed/whole_run.py, and the runs before it that need no GPU."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.process_family import end_of, family

SCRIPT = Path(__file__).parents[2] / "benchmarks/speed/whole_run.py"
WHOLE_RUN = runpy.run_path(str(SCRIPT))


def result(notes: int, seconds: float, *, labels: int = 8192) -> dict:
    """A run in which all but simulation, steps and validation takes some seconds."""
    training = {"notes": 1000, "notes_per_second": 100.0, "validation_seconds": 2.0, "epochs": 1}
    return {
        "notes": notes,
        "settings": [],
        "cores": 16,
        "written": {"ten": {"train": notes // 2, "dev": notes // 2}},
        "train_codes": {"ten": 9000, "nine": 4000},
        "prepare_seconds": 5.0,
        "stages": [
            {"name": "simulate", "seconds": 50.0},
            {"name": "prepare ten", "seconds": 5.0},
            {"name": "prepare nine", "seconds": 4.0},  # beside it
            {"name": "train", "seconds": seconds + 12 - 5},
        ],
        "training": training | {"shape": {"labels": labels}},
    }


def test_projection_adds_the_cost_per_note_and_the_steps_of_all_notes():
    found = WHOLE_RUN["projection"](result(2000, 30), result(1000, 20))
    assert found["seconds_around_training"] == 30 and found["ms_per_note_around_training"] == 10
    rest = 30 + 0.01 * (281_000 - 2000) + 10 * 2  # validation of ten epochs
    assert found["hours_mimic"] == pytest.approx((rest + 10 * 281_000 / 2 / 100) / 3600, abs=0.005)


@pytest.mark.parametrize(("labels", "codes"), [(8192, (8192, 4000)), (0, (9000, 4000))])
def test_a_step_scores_a_sample_of_the_codes_of_a_version(labels, codes):
    assert tuple(WHOLE_RUN["codes_per_step"](result(2000, 30, labels=labels)).values()) == codes


def test_preparation_counts_notes_and_codes_and_is_measured_once(tmp_path, capsys):
    prepared = WHOLE_RUN["run"](60, 0, [], tmp_path)
    assert prepared["notes"] == sum(sum(sizes.values()) for sizes in prepared["written"].values()) > 20
    assert all(50 < codes < 2000 for codes in prepared["train_codes"].values())
    assert [stage["name"] for stage in prepared["stages"]][:2] == ["simulate", "prepare ten"]
    together = sum(stage["seconds"] for stage in prepared["stages"][1:])
    assert together / 2 - 0.5 < prepared["prepare_seconds"] < together
    assert "training" not in prepared
    assert prepared["prepare_peak_gb"] > max(stage["peak_gb"] for stage in prepared["stages"][1:]) > 0
    assert "earlier" not in capsys.readouterr().out
    assert WHOLE_RUN["run"](60, 0, [], tmp_path) == prepared
    assert capsys.readouterr().out.count("measured earlier") == 7
    (tmp_path / "stage_split_ten.json").unlink()  # as if it had been stopped there
    again = WHOLE_RUN["run"](60, 0, [], tmp_path)
    lines = capsys.readouterr().out.splitlines()
    anew = [json.loads(line)["name"] for line in lines if "earlier" not in line]
    assert sorted(anew) == ["audit ten", "split ten"]
    assert again["prepare_peak_gb"] is None
    assert again["prepare_seconds"] == WHOLE_RUN["slower_version"](again["stages"])


def commands(folder, monkeypatch):
    """Stages whose commands take no time, and the arguments of those that were run."""
    stages, run = WHOLE_RUN["Stages"](folder), []

    def fake(name, arguments):
        run.append(name)
        return WHOLE_RUN["Stage"](name, 1.0, 1.0, 0.1, None)

    monkeypatch.setattr(stages, "_run", fake)
    return stages, run


def test_a_stage_is_measured_again_for_other_arguments_other_inputs_or_without_its_output(tmp_path, monkeypatch):
    stages, run = commands(tmp_path, monkeypatch)
    out = tmp_path / "out"
    stages.measure("split", "a", out=out)
    stages.measure("split", "a", out=out)  # there is no output
    out.mkdir()
    stages.measure("split", "a", out=out)
    stages.measure("audit", after=["split"])
    assert run == ["split", "split", "audit"]
    stages.measure("split", "b", out=out)
    stages.measure("audit", after=["split"])
    stages.measure("audit", after=["split"])
    assert run == ["split", "split", "audit", "split", "audit"]


def test_a_training_that_continues_a_stopped_one_is_no_whole_stage(tmp_path, monkeypatch):
    stages, _ = commands(tmp_path, monkeypatch)
    corpus, bundle = tmp_path / "ten", tmp_path / "bundle"
    words, checkpoints = corpus / "words", tmp_path / "bundle.run"

    def stop(*_):
        words.mkdir(parents=True, exist_ok=True)
        checkpoints.mkdir(exist_ok=True)
        raise KeyboardInterrupt

    train = ("train", "recipe", "--corpus", str(corpus), "--out", str(bundle), "--set", "training.stop_step=1")
    with monkeypatch.context() as stopped:
        stopped.setattr(stages, "_run", stop)
        with pytest.raises(KeyboardInterrupt):
            stages.measure("train", *train, out=bundle)
    assert not stages.measure("train", *train, out=bundle).is_whole
    bundle.mkdir()
    assert not stages.measure("train", *train, out=bundle).is_whole  # measured earlier
    assert words.exists() and checkpoints.exists()
    assert stages.measure("train", *train[:-1], "training.stop_step=2", out=bundle).is_whole
    assert not words.exists() and not checkpoints.exists()


def test_no_projection_from_a_training_that_was_continued():
    whole = result(1000, 20)
    assert WHOLE_RUN["is_whole"](whole)
    whole["stages"][-1]["is_whole"] = False
    assert not WHOLE_RUN["is_whole"](whole)
    assert not WHOLE_RUN["is_whole"]({"stages": []})  # without a training


def test_the_next_smaller_size_has_the_same_settings_and_cores():
    next_smaller, large = WHOLE_RUN["next_smaller"], result(4000, 30)
    older = {key: value for key, value in result(1000, 20).items() if key not in ("settings", "cores")}
    assert next_smaller([older, large, result(9000, 30)], large) == older
    assert next_smaller([older, result(2000, 20)], large)["notes"] == 2000
    others = [result(2000, 20) | {"settings": ["training.batch=64"]}, result(3000, 20) | {"cores": 2}]
    assert next_smaller([older, *others], large) == older
    assert next_smaller(others, large) is None


def test_an_older_result_has_the_seconds_of_its_slower_version():
    older = result(1000, 20)
    assert WHOLE_RUN["seconds_around_training"](older) == 20
    del older["prepare_seconds"]
    assert WHOLE_RUN["seconds_around_training"](older) == 20  # 5 s for "ten", 4 s for "nine"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", ["simulate", "prepare"])
def test_a_signal_ends_the_commands_and_the_program(tmp_path, number, stage):
    notes = "50000" if stage == "simulate" else "600"
    command = [sys.executable, str(SCRIPT), "--prepare", "--notes", notes, "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            if stage == "prepare":
                assert "simulate" in process.stdout.readline()
            children: list[int] = []
            while len(children) < (2 if stage == "prepare" else 1):
                children = family(process.pid)[1:]
                time.sleep(0.05)
            os.kill(process.pid, number)
            assert process.wait(20) != 0
            assert end_of(children) == []
        finally:
            process.kill()


def test_a_result_file_keeps_other_sizes(tmp_path):
    out = tmp_path / "results.json"
    for notes, seconds in ((2000, 1), (1000, 2), (2000, 3)):
        WHOLE_RUN["write_merged"](out, {"notes": notes, "seconds": seconds})
    assert json.loads(out.read_text()) == [{"notes": 1000, "seconds": 2}, {"notes": 2000, "seconds": 3}]
