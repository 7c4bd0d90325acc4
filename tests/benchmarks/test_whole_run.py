"""The projection of benchmarks/speed/whole_run.py, and the runs before it that need no GPU."""

import json
import runpy
from pathlib import Path

import pytest

WHOLE_RUN = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/speed/whole_run.py"))


def result(notes: int, seconds: float, *, labels: int = 8192) -> dict:
    """A run in which all but simulation, steps and validation takes some seconds."""
    training = {"notes": 1000, "notes_per_second": 100.0, "validation_seconds": 2.0, "epochs": 1}
    return {
        "notes": notes,
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


def test_preparation_counts_notes_and_codes(tmp_path):
    prepared = WHOLE_RUN["run"](60, 0, [], tmp_path)
    assert prepared["notes"] == sum(sum(sizes.values()) for sizes in prepared["written"].values()) > 20
    assert all(50 < codes < 2000 for codes in prepared["train_codes"].values())
    assert [stage["name"] for stage in prepared["stages"]][:2] == ["simulate", "prepare ten"]
    together = sum(stage["seconds"] for stage in prepared["stages"][1:])
    assert together / 2 - 0.5 < prepared["prepare_seconds"] < together
    assert "training" not in prepared
    assert prepared["prepare_peak_gb"] > max(stage["peak_gb"] for stage in prepared["stages"][1:]) > 0


def test_a_result_file_keeps_other_sizes(tmp_path):
    out = tmp_path / "results.json"
    for notes, seconds in ((2000, 1), (1000, 2), (2000, 3)):
        WHOLE_RUN["write_merged"](out, {"notes": notes, "seconds": seconds})
    assert json.loads(out.read_text()) == [{"notes": 1000, "seconds": 2}, {"notes": 2000, "seconds": 3}]
