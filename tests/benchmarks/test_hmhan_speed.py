"""The trainings of benchmarks/speed/hmhan.py run on a CPU, also the one whose figures need a GPU."""

import runpy
from pathlib import Path

HMHAN = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/speed/hmhan.py"))


def test_reports_learn_from_states_on_disk(tmp_path):
    training = HMHAN["Training"](30, tmp_path, device="cpu", reports=48)
    measured = training.measured(training.on_disk, 16, use_cuda_graphs=False)
    assert measured["reports_per_second"] > 0 and measured["profiled_reports"] == 48


def test_attention_is_timed_both_ways(tmp_path):
    rates = HMHAN["training_on_cpu"](30, tmp_path, reports=48)
    assert len(rates) == 2 and min(rates.values()) > 0
