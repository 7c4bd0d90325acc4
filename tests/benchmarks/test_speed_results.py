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


def test_models_of_embedding_keep_the_rows_of_others_of_the_same_device(tmp_path):
    write, file = runpy.run_path(str(SPEED / "embedding.py"))["write"], tmp_path / "results.json"
    card, cpu = {"device": "NVIDIA H200", "pack_tokens": 65_536}, {"ratio": 1.1}
    write(file, "cpu", cpu)
    write(file, "gpu", card | {"rows": {"a": 1, "b": 2}, "distance": {"a": 0.1}})
    write(file, "gpu", card | {"rows": {"b": 3}, "distance": {"b": 0.2}})
    measured = {"cpu": cpu, "gpu": card | {"rows": {"a": 1, "b": 3}, "distance": {"a": 0.1, "b": 0.2}}}
    assert json.loads(file.read_text()) == measured
    other = {"device": "NVIDIA A100", "pack_tokens": 65_536, "rows": {"b": 4}, "distance": {"b": 0.3}}
    write(file, "gpu", other)
    assert json.loads(file.read_text()) == {"cpu": cpu, "gpu": other}


def test_small_and_large_stages_of_plant_do_not_mix(tmp_path):
    write, file = runpy.run_path(str(SPEED / "plant.py"))["write"], tmp_path / "results.json"
    for name, small in (("ranker", True), ("ranker", False), ("language", True)):
        write(file, name, {"ms": 1.0}, small)
    [(small, rows), (large, _)] = sorted(json.loads(file.read_text()).items(), key=lambda item: -len(item[1]["rows"]))
    assert small == f"{large}, small" and list(rows["rows"]) == ["ranker", "language"]
