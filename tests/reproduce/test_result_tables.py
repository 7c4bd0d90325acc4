"""Tests of the tables of results, complete and with missing runs."""

from __future__ import annotations

import csv
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.config import load_recipe
from nosology.evaluation import Difference, paired_t_test
from nosology.reproduce.result_tables import (
    Cell,
    Row,
    SignificanceLine,
    Table,
    label,
    missing,
    number,
    paired_tests,
    rows_with_paper_numbers,
    write_tables,
)
from nosology.reproduce.runner import Run

COLUMNS = {"micro_f1": "F1", "hamming_loss": "Hamming loss"}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_mean_and_std_equal_numpy(values):
    cell = Cell(tuple(values), len(values))
    assert cell.mean == pytest.approx(np.mean(values))
    assert cell.std == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert str(cell) == f"{cell.mean:.4f} ± {cell.std:.4f}"


def test_counts_are_shown_without_decimals():
    assert str(Cell((121344, 121344), 2, 121_344)) == "121,344 [121,344]"
    assert str(Cell((100, 103), 2)) == "101.5 ± 2.1213"
    assert str(Cell((1.0,), 1)) == "1.0000", "a metric, not a count"
    assert str(Cell((1234.56, 1234.56), 2)) == "1,234.6 ± 0.0000"
    assert (number(-3, sign="+"), number(0.25, sign="+"), number(26.125)) == ("-3", "+0.2500", "26.12")


def test_numbers_of_the_paper_keep_their_digits():
    rows = rows_with_paper_numbers("federated_heads", "3", {}, within="icd10 / qwen3-embedding-0.6b / ")
    paper = next(row.paper for row in rows if row.names == ("DeepMLP (paper)",))
    assert str(Cell((), 0, paper["macro_precision"])) == "- [0.2090]" and paper["macro_precision"] == 0.209


def test_names_of_tables_and_figures():
    names = {"4": "Table 4", "figure-7": "Figure 7", "figure-2b": "Figure 2b", "leakage": "Table 'leakage'"}
    assert {name: label(name) for name in names} == names


def test_cell_shows_missing_runs_and_the_number_of_the_paper():
    assert str(Cell((), 2)) == "-"
    assert str(Cell((0.5,), 1)) == "0.5000"
    assert str(Cell((0.25, 0.5), 3)) == "0.3750 ± 0.1768 (2 of 3)"
    assert str(Cell((0.5,), 1, 0.91)) == "0.5000 [0.91]" and str(Cell((), 0, 0.4)) == "- [0.4]"
    assert str(Cell((0.5,), 1, 0.39, 0.007)) == "0.5000 [0.39 ± 0.007]"


def some_runs(corpus) -> dict[str, list[Run]]:
    recipe = load_recipe("linear")
    return {name: [Run((name,), "m:f", recipe, (corpus,), i) for i in range(2)] for name in ("HMHAN", "no attention")}


def results_of(runs) -> dict[str, dict]:
    rng = np.random.default_rng(0)
    every = [run for row_runs in runs.values() for run in row_runs]
    return {run.key: {"metrics": dict(zip(COLUMNS, rng.random(2).tolist()))} for run in every}


def test_tables_show_means_and_numbers_of_the_paper(small_corpus, tmp_path):
    runs = some_runs(small_corpus)
    results = results_of(runs)
    rows = rows_with_paper_numbers("hmhan", "4", runs)
    table = Table("4", "Models", ("model",), COLUMNS, rows, "reports", lambda r: paired_tests(rows, "micro_f1", r))
    assert write_tables(tmp_path, [table], results, {}) == [tmp_path / "table_4.md"]
    lines = list(csv.DictReader((tmp_path / "table_4.csv").read_text(encoding="utf-8").splitlines()))
    assert len(lines) == 3 * 2, "two rows of ours, and one of the paper that we have no run for"
    for line in lines[:4]:
        values = [results[run.key]["metrics"][line["metric"]] for run in runs[line["row"]]]
        assert float(line["mean"]) == fmean(values) and line["runs"] == line["of"] == "2"
    assert [float(line["paper"]) for line in lines] == [0.91, 0.07, 0.42, 0.09, 0.37, 0.16]
    page = (tmp_path / "table_4.md").read_text(encoding="utf-8")
    assert page.startswith("4 runs, none missing.") and "## Table 4. Models, reports" in page
    assert "single attention (paper) | - [0.37]" in page and "paired t-test p" in page
    means = {(line["row"], line["metric"]): line["mean"] for line in lines[:4]}
    best = {"micro_f1": max, "hamming_loss": min}
    for metric, choose in best.items():
        assert f"**{choose(float(v) for (_, m), v in means.items() if m == metric):.4f} ±" in page


def test_missing_runs_are_counted_and_shown_as_dashes(small_corpus, tmp_path):
    runs = some_runs(small_corpus)
    every = results_of(runs)
    results = {runs["HMHAN"][0].key: every[runs["HMHAN"][0].key]}
    failed = {runs["HMHAN"][1].key: "it was killed"}
    table = Table("4", "Models", ("model",), COLUMNS, [Row((name,), tuple(runs[name])) for name in runs])
    assert missing(table.runs, results, failed) == "4 runs, 3 missing (1 of them failed)"
    write_tables(tmp_path, [table], results, failed)
    page = (tmp_path / "table_4.md").read_text(encoding="utf-8")
    assert page.count("(1 of 2)") == 2 and "| no attention | - | - |" in page
    assert f"- {runs['HMHAN'][1].key} failed: it was killed" in page


def test_paired_tests_pair_runs_of_equal_seeds(small_corpus):
    recipe = load_recipe("linear")
    values = {"a": {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.2}, "b": {2: 0.8, 1: 0.3, 0: 0.0, 4: 0.7}}
    runs = {
        name: [Run((name,), "m:f", recipe, (small_corpus,), seed) for seed in by_seed]
        for name, by_seed in values.items()
    }
    results = {
        run.key: {"metrics": {"x.f1": values[name][run.repeat]}} for name, of_row in runs.items() for run in of_row
    }
    rows = [Row((name,), tuple(of_row), {}, "x.") for name, of_row in runs.items()]
    [line] = paired_tests(rows, "f1", results)
    expected = paired_t_test([0.1, 0.5, 0.9], [0.0, 0.3, 0.8])
    assert line.startswith(f"a minus b: f1 {expected.value:+.4f} (95% {expected.low:+.4f} to {expected.high:+.4f})")
    assert line.endswith(f"paired t-test p {expected.p:.4f}, 3 seeds")
    tiny = SignificanceLine((rows[0], rows[1]), "f1", Difference(0.1, 1e-7), "paired t-test", "3 seeds")
    assert tiny.endswith("paired t-test p < 0.0001, 3 seeds")
    del results[runs["a"][0].key], results[runs["a"][1].key]
    assert list(paired_tests(rows, "f1", results)) == [], "one seed is left"


def test_table_without_columns_has_its_remark_only(tmp_path):
    table = Table("3", "Sizes", (), {}, [], remarks=lambda results: ["Left out."])
    write_tables(tmp_path, [table], {}, {})
    page = (tmp_path / "table_3.md").read_text(encoding="utf-8")
    assert page == "0 runs, none missing. In brackets: the paper's numbers.\n\n## Table 3. Sizes\n\n\nLeft out.\n"
