from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from nosology.core import Code, OutputError
from nosology.core.label_space import LabelSpace
from nosology.evaluation import by_chapter, by_frequency, examine, write_report

CODES = ["A41.9", "I10", "I50.9", "I21.4", "E11.9", "E78.5", "N17.9", "N18.6", "J18.9", "J44.1", "Z79.4", "R51.9"]
LABELS = LabelSpace([*(Code("icd10cm", code) for code in CODES), Code("icd10pcs", "02HV33Z"), Code("icd9cm", "428.0")])
OUTSIDE = Code("icd10cm", "K92.2")
RETIRED = Code("icd10cm", "M54.5")
INVENTED = Code("icd10cm", "<script>")


@pytest.fixture(scope="module")
def evaluation():
    rng = np.random.default_rng(0)
    true = rng.random((80, len(LABELS))) < 0.2
    true[:, 4] = False
    scores = np.clip(0.5 * rng.random(true.shape) + 0.4 * true * rng.random(true.shape), 0, 1).astype(np.float32)
    gold = [[LABELS.codes[j] for j in np.flatnonzero(row)] for row in true]
    gold[0] += [OUTSIDE, RETIRED, INVENTED]
    gold[1] += [OUTSIDE]
    return examine(LABELS, gold, scores, 0.4, replicates=50)


@pytest.fixture(scope="module")
def train_counts():
    return {code: 3 ** (i % 8) for i, code in enumerate(LABELS.codes)} | {OUTSIDE: 4}


@pytest.fixture(scope="module")
def folder(evaluation, train_counts, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "r"
    provenance = {"recipe": "linear", "corpus": {"hash": "ab<cd>"}, "seed": 1, "hardware": ["2 cores", "24 GB"]}
    write_report(out, evaluation, train_counts=train_counts, provenance=provenance, title="A & B <test>")
    return out


def _rows(path):
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_report_has_all_files(folder):
    assert {path.name for path in folder.iterdir()} == {
        "index.html",
        "metrics.json",
        "provenance.json",
        "per_code.csv",
        "chapters.csv",
        "strata.csv",
        "precision_and_recall.png",
        "reliability.png",
        "frequency.png",
        "chapters.png",
    }
    for png in folder.glob("*.png"):
        assert png.read_bytes().startswith(b"\x89PNG")


def test_metrics_file_is_flat_and_equals_the_metrics(folder, evaluation):
    stored = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert {name: stored[name] for name in evaluation.metrics} == evaluation.metrics
    assert all(value is None or isinstance(value, int | float) for value in stored.values())
    assert 0 <= stored["ece"] <= 1


def test_page_loads_nothing_and_escapes_text(folder):
    html = (folder / "index.html").read_text(encoding="utf-8")
    tags = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            tags.append((tag, dict(attributes)))

    Reader().feed(html)
    kinds = {tag for tag, _ in tags}
    assert not kinds & {"script", "link", "iframe", "object", "form", "a"}
    sources = [attributes["src"] for _, attributes in tags if "src" in attributes]
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "url(" not in html
    assert not re.search(r"https?://", html)
    assert "A &amp; B &lt;test&gt;" in html
    assert "ab&lt;cd&gt;" in html
    assert "&lt;script&gt;" in html


def test_codes_outside_the_label_space_are_shown(folder):
    html = (folder / "index.html").read_text(encoding="utf-8")
    assert "True codes outside the label space" in html
    row = next(row for row in _rows(folder / "per_code.csv") if row["code"] == OUTSIDE.code)
    assert (row["nameable"], row["support"], row["fn"], row["tp"], row["auc"]) == ("no", "2", "2", "0", "0.5")
    assert row["description"] == "Gastrointestinal hemorrhage, unspecified"
    assert (row["precision"], row["threshold"]) == ("", "")


def test_rows_per_code_add_up(folder, evaluation):
    rows = _rows(folder / "per_code.csv")
    assert len(rows) == len(LABELS) + 3
    assert sum(int(row["tp"]) for row in rows) == evaluation.counts.tp.sum()
    never_true = next(row for row in rows if row["code"] == CODES[4])
    assert (never_true["recall"], never_true["auc"]) == ("", "")


def test_strata_and_chapters_partition_the_assignments(evaluation, train_counts):
    rows = by_frequency(evaluation, train_counts)
    bands = {row["train_notes"]: row for row in rows}
    assert sum(bands[name]["codes"] for name in ("0", "1-9", "10-99", "100-999", "1000+")) == len(LABELS) + 3
    assert bands["0"]["micro_recall"] == 0
    assert bands["1-5"]["codes"] == sum(1 <= n <= 5 for n in train_counts.values())
    rows = by_chapter(evaluation)
    assert sum(row["true_assignments"] for row in rows) == evaluation.scored.gold.nnz
    circulatory = next(row for row in rows if "irculatory" in row["title"] and row["system"] == "icd10cm")
    assert circulatory["codes"] == 3
    assert sum(row["title"] == "not in the code table" for row in rows) == 1
    assert any("usculoskeletal" in row["title"] for row in rows)


def test_without_train_counts_there_are_no_strata(evaluation, tmp_path):
    write_report(tmp_path / "r", evaluation)
    assert not (tmp_path / "r" / "strata.csv").exists()
    assert {row["train_count"] for row in _rows(tmp_path / "r" / "per_code.csv")} == {""}


def test_notes_without_codes_give_a_report(tmp_path):
    scores = np.full((3, len(LABELS)), 0.2, dtype=np.float32)
    empty = examine(LABELS, [[], [], []], scores, np.full(len(LABELS), 0.5), replicates=10)
    metrics = write_report(tmp_path / "r", empty, train_counts={})
    assert metrics["micro_f1"] is None
    assert "a threshold for each code" in (tmp_path / "r" / "index.html").read_text(encoding="utf-8")


def test_existing_folder_without_a_report_is_refused(evaluation, tmp_path):
    (tmp_path / "thesis.txt").write_text("text")
    with pytest.raises(OutputError, match=r"has no metrics\.json"):
        write_report(tmp_path, evaluation)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
