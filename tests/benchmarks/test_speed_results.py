"""Benchmarks of variants keep the other results of their files."""

import json
import runpy
from pathlib import Path

SPEED = Path(__file__).parents[2] / "benchmarks/speed"


def test_a_corpus_of_the_lexicon_keeps_the_results_of_others(tmp_path):
    write, file = runpy.run_path(str(SPEED / "lexicon.py"))["write"], tmp_path / "results.json"
    write(file, "simulated notes", {"rows": [1]})
    write(file, "corpus", {"rows": [2]})
    write(file, "simulated notes", {"rows": [3]})
    assert json.loads(file.read_text()) == {"simulated notes": {"rows": [3]}, "corpus": {"rows": [2]}}


def test_evaluations_of_other_sizes_settings_and_devices_have_other_names():
    entry = runpy.run_path(str(SPEED / "evaluation.py"))["entry"]
    sizes = {"notes": 2400, "codes": 14_000, "candidates": 0, "old_notes": 0}
    assert entry("caml", sizes, [], "NVIDIA H200") == "caml, 2,400 notes, 14,000 codes, NVIDIA H200"
    others = [
        entry("laat", sizes, [], "NVIDIA H200"),
        entry("caml", sizes | {"notes": 9}, [], "NVIDIA H200"),
        entry("caml", sizes | {"candidates": 500}, [], "NVIDIA H200"),
        entry("caml", sizes, ["model.filters=64"], "NVIDIA H200"),
        entry("caml", sizes, [], "x86_64"),
    ]
    assert len({*others, entry("caml", sizes, [], "NVIDIA H200")}) == 6
