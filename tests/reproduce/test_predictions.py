"""Tests of stored predictions and of the randomisation tests that compare them."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from nosology.config import load_recipe
from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation import Evaluation, approximate_randomisation, examine
from nosology.reproduce.predictions import load_predictions, save_predictions
from nosology.reproduce.result_tables import Row, SignificanceLine, randomisation_tests
from nosology.reproduce.runner import Run, Task

CODES = [Code("icd10cm", name) for name in ("I10", "I50.9", "E11.9", "J18.9", "N17.9", "Z99.9")]
NOISE = {"PLANT": 0.2, "LAAT": 0.5, "linear": 0.3}  # of the scores of each row
METRICS = ("macro_f1", "macro_precision", "macro_recall", "micro_f1", "p@5", "map")


def evaluation_of(noise: float, seed: int, notes: int = 40) -> Evaluation:
    """The evaluation of a model on the same notes; the last code is never true."""
    true = np.random.default_rng(7).random((notes, len(CODES))) < 0.35
    true[:, -1] = False
    gold = [[code for code, is_true in zip(CODES, row) if is_true] for row in true]
    random = np.random.default_rng([seed, int(100 * noise)])
    scores = np.clip(0.6 * true + 0.2 + noise * random.normal(size=true.shape), 0, 1).astype(np.float32)
    return examine(LabelSpace(CODES), gold, scores, 0.5, replicates=0)


def task_of(run: Run, folder: Path) -> Task:
    return Task("m:f", {}, [], {}, "", "", str(folder / f"{run.key}.json"), "")


@pytest.fixture
def study(small_corpus, tmp_path):
    """Rows of three seeds, their results, and their evaluations by row and seed."""
    recipe = load_recipe("linear")
    rows = [Row((name,), tuple(Run((name,), "m:f", recipe, (small_corpus,), i) for i in range(3))) for name in NOISE]
    results, evaluations = {}, {}
    for row in rows:
        for run in row.runs:
            whole, few = (evaluation_of(NOISE[row.names[0]] + more, run.repeat) for more in (0, 0.3))
            evaluations[row.names[0], run.repeat], evaluations[row.names[0], run.repeat, "few"] = whole, few
            entries = save_predictions(task_of(run, tmp_path), whole) | save_predictions(
                task_of(run, tmp_path), few, "few"
            )
            for entry in entries.values():
                entry["file"] = str(tmp_path / entry["file"])
            results[run.key] = {"metrics": {}, "predictions": entries}
    return rows, results, evaluations


def expected_line(evaluations, other: str, metric: str, *name: str) -> str:
    """The line for PLANT minus another row, computed from the evaluations themselves."""
    pairs = [(evaluations["PLANT", seed, *name], evaluations[other, seed, *name]) for seed in range(3)]
    tests = [approximate_randomisation(*pair, metric, replicates=200) for pair in pairs]
    prefix = "".join(f"{part}." for part in name)
    return (
        f"PLANT minus {other}: {prefix}{metric} {fmean(test.value for test in tests):+.4f}, approximate randomisation "
        f"p {max(test.p for test in tests):.4f}, largest p of 3 seeds"
    )


def test_stored_predictions_give_the_same_tests_as_the_evaluations(tmp_path, study):
    rows, results, evaluations = study
    first, second = rows[0].runs[0], rows[1].runs[0]
    stored = [load_predictions(results[run.key]["predictions"][""]) for run in (first, second)]
    for metric in METRICS:
        direct = approximate_randomisation(evaluations["PLANT", 0], evaluations["LAAT", 0], metric, replicates=300)
        assert approximate_randomisation(*stored, metric, replicates=300) == direct
    assert set(stored[0].space.codes) <= set(CODES) and stored[0].gold_codes == stored[1].gold_codes


def test_rows_are_compared_seed_by_seed_with_the_largest_p(study):
    rows, results, evaluations = study
    lines = list(randomisation_tests(rows, METRICS, results, replicates=200))
    assert lines == [expected_line(evaluations, other, m) for other in ("LAAT", "linear") for m in METRICS]
    assert all(isinstance(line, SignificanceLine) for line in lines) and len(set(lines)) == len(lines)
    assert lines[0].parts[:2] == ("PLANT minus LAAT", "macro_f1")
    assert list(randomisation_tests(rows[:1], METRICS, results)) == []


def test_prefix_of_a_row_or_a_metric_selects_its_predictions(study):
    rows, results, evaluations = study
    line = expected_line(evaluations, "LAAT", "micro_f1", "few")
    assert list(randomisation_tests(rows[:2], ["few.micro_f1"], results, replicates=200)) == [line]
    prefixed = [Row(row.names, row.runs, {}, "few.") for row in rows[:2]]
    short = line.replace("few.micro_f1", "micro_f1")
    assert list(randomisation_tests(prefixed, ["micro_f1"], results, replicates=200)) == [short]
    assert line != expected_line(evaluations, "LAAT", "micro_f1").replace("micro_f1", "few.micro_f1")


def test_each_row_has_its_own_prefix(study):
    rows, results, evaluations = study
    [line] = randomisation_tests([rows[0], Row(("few",), rows[0].runs, {}, "few.")], ["map"], results, replicates=20)
    pairs = [(evaluations["PLANT", seed], evaluations["PLANT", seed, "few"]) for seed in range(3)]
    means = [first.metrics["map"] - second.metrics["map"] for first, second in pairs]
    assert line.startswith(f"PLANT minus few: map {fmean(means):+.4f}, ") and fmean(means) > 0.01


def test_seeds_without_a_result_do_not_count(study):
    rows, results, _ = study
    del results[rows[0].runs[0].key], results[rows[1].runs[1].key]
    [line] = randomisation_tests(rows[:2], ["map"], results, replicates=50)
    alone = [Row(row.names, row.runs[2:]) for row in rows[:2]]
    assert [line] == list(randomisation_tests(alone, ["map"], results, replicates=50)) and line.endswith(", 1 seed")


def test_missing_and_damaged_predictions_are_named_in_place_of_the_test(study):
    rows, results, _ = study
    key = rows[1].runs[1].key
    path = Path(results[key]["predictions"][""]["file"])
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    lines = list(randomisation_tests(rows, ["map", "p@5"], results, replicates=20))
    assert lines[0].startswith("PLANT minus LAAT: map, p@5 not tested by approximate randomisation: ")
    assert f"{key}.safetensors is damaged" in lines[0] and len(lines) == 3
    assert all(line.startswith("PLANT minus linear") and isinstance(line, SignificanceLine) for line in lines[1:])
    path.unlink()
    assert f"{key}.safetensors is missing" in next(randomisation_tests(rows, ["map"], results, replicates=20))
    del results[key]["predictions"]
    assert "LAAT, run 2 has stored no predictions" in next(randomisation_tests(rows, ["map"], results, replicates=20))


def test_runs_on_other_notes_are_not_compared(study, tmp_path):
    rows, results, _ = study
    run = rows[1].runs[0]
    [entry] = save_predictions(task_of(run, tmp_path), evaluation_of(0.3, 0, notes=39)).values()
    results[run.key]["predictions"][""] = entry | {"file": str(tmp_path / entry["file"])}
    line = next(randomisation_tests(rows, ["map"], results, replicates=20))
    assert line.startswith(
        "PLANT minus LAAT: map not tested by approximate randomisation: two models can be compared only"
    )
    line = next(randomisation_tests(rows[::2], ["macro_auc"], results, replicates=20))
    assert line.startswith(
        "PLANT minus linear: macro_auc not tested by approximate randomisation: metric must be one of"
    )


def test_files_are_small_and_checked(study):
    rows, results, _ = study
    entry = results[rows[0].runs[0].key]["predictions"][""]
    content = Path(entry["file"]).read_bytes()
    assert b"I50.9" in content and len(content) < 10_000
    with pytest.raises(DataError, match="is damaged"):
        load_predictions(entry | {"sha256": "0" * 64})
