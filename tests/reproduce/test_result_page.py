"""Tests of the page of a study: every table and every number of the paper is on it, and nothing is loaded."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html import unescape

import pytest

from nosology.config import load_recipe
from nosology.core import OutputError
from nosology.evaluation import Difference
from nosology.reproduce.result_page import StudyCall, check_paper, write_page
from nosology.reproduce.result_tables import (
    ResultFigure,
    Row,
    SignificanceLine,
    Table,
    rows_with_paper_numbers,
    write_tables,
)
from nosology.reproduce.runner import Run

COLUMNS = {"micro_f1": "F1", "hamming_loss": "Hamming loss", "notes": "notes"}
TITLES = {"4": "Models", "figure-7": "Examples", "leakage": "Protocols <that> leak"}
MODELS = ("HMHAN", "single attention", "no attention")


@pytest.fixture
def runs(small_corpus) -> dict[str, list[Run]]:
    recipe = load_recipe("linear")
    return {name: [Run((name,), "m:f", recipe, (small_corpus,), i) for i in range(2)] for name in MODELS}


@pytest.fixture
def results(runs) -> dict[str, dict]:
    """Two seeds of three models; HMHAN is best in F1, and "no attention" in Hamming loss."""
    values = zip(MODELS, ((0.5, 0.3), (0.4, 0.25), (0.3, 0.1)))
    return {
        runs[name][seed].key: {
            "metrics": {"micro_f1": f1 + seed / 50, "hamming_loss": loss + seed / 50, "notes": 1234},
            "seconds": 90.0,
        }
        for name, (f1, loss) in values
        for seed in range(2)
    }


@pytest.fixture
def tables(runs) -> dict[str, Table]:
    rows = rows_with_paper_numbers("hmhan", "4", runs)
    figure = ResultFigure("figure-7", "F1 of models", lambda results, figure: figure.subplots().plot([1, 2]))
    return {
        "4": Table("4", TITLES["4"], ("model",), COLUMNS, rows, remarks=lambda results: ["A <remark>."]),
        "figure-7": Table("figure-7", TITLES["figure-7"], ("model",), COLUMNS, rows, "reports", figures=[figure]),
        "leakage": Table("leakage", TITLES["leakage"], ("model",), COLUMNS, rows),
    }


def call(small_corpus, **changes) -> StudyCall:
    settings = {"seeds": 2, "recipe": {"hmhan": {"epochs": 1}}}
    command = "nosology reproduce hmhan --small --out 'my out'"
    values = {"title": "A & B (2025)", "tables": TITLES, "command": command, "settings": settings}
    return StudyCall(**values | {"corpora": [small_corpus], "simulated": False} | changes)


def written(tmp_path, study_call, tables, results, failed=None) -> str:
    write_tables(tmp_path, tables, results, failed or {})
    return write_page(tmp_path, study_call, tables, results, failed or {}).read_text(encoding="utf-8")


def text_of(html: str) -> str:
    """The visible text of a part of a page, with single blanks."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def section(page: str, anchor: str) -> str:
    """The text of a section."""
    return text_of(page.partition(f'<section id="{anchor}">')[2].partition("</section>")[0])


def test_page_has_every_table_with_our_values_the_papers_and_their_difference(small_corpus, tables, results, tmp_path):
    page = written(tmp_path, call(small_corpus), list(tables.values()), results)
    assert "A & B (2025)" in text_of(page)
    assert section(page, "table-4").startswith("Table 4. Models model runs F1 Hamming loss notes")
    for anchor in ("table-4", "figure-7", "table-leakage"):
        assert f'href="#{anchor}"' in page
        text = section(page, anchor)
        assert "HMHAN 2 0.5100 ± 0.0141 [0.91] −0.4000 0.3100 ± 0.0141 [0.07] +0.2400 1,234" in text
        assert "single attention 2 0.4100 ± 0.0141 [0.37] +0.0400 0.2600 ± 0.0141 [0.16] +0.1000 1,234" in text
        assert "no attention 2 0.3100 ± 0.0141 [0.42] −0.1100 0.1100 ± 0.0141 [0.09] +0.0200 1,234" in text
        assert "nosology reproduce hmhan --small --out 'my out'" in text
    assert page.count("<b>0.5100</b>") == page.count("<b>0.1100</b>") == 3, "the best F1 and the lowest Hamming loss"
    assert "<b>0.3100</b>" not in page and "<b>1,234</b>" not in page, "counts have no best"
    assert "A <remark>." in text_of(page) and "Protocols <that> leak" in text_of(page)


def test_page_needs_no_network_and_no_script(small_corpus, tables, results, tmp_path):
    page = written(tmp_path, call(small_corpus), list(tables.values()), results)
    assert "<script" not in page and "http:" not in page and "https:" not in page and "url(" not in page
    [(alt, source)] = re.findall(r'<img alt="([^"]*)" src="([^"]*)"', page)
    assert alt == "Figure 7. F1 of models, reports"
    encoded = source.removeprefix("data:image/png;base64,")
    assert base64.b64decode(encoded) == (tmp_path / "figure-7.png").read_bytes()


def test_two_figures_of_one_name_are_refused(tables, results, tmp_path):
    with pytest.raises(ValueError, match="each figure must have its own name; got figure-7, figure-7"):
        write_tables(tmp_path, [tables["figure-7"], tables["figure-7"]], results, {})


def test_page_keeps_tables_of_earlier_calls_and_names_those_that_have_not_run(small_corpus, tables, results, tmp_path):
    first = written(tmp_path, call(small_corpus), [tables["figure-7"]], results)
    assert "Table 4 Models not run yet" in text_of(first) and not section(first, "table-4")
    second = written(tmp_path, call(small_corpus, command="another command"), [tables["4"]], results)
    assert section(first, "figure-7") == section(second, "figure-7"), "it has the command that made it"
    assert section(second, "table-4").endswith("another command")
    assert second.index('id="table-4"') < second.index('id="figure-7"'), "in the order of the paper"
    assert "Table 'leakage' Protocols <that> leak not run yet" in text_of(second)


def test_folder_of_another_paper_is_refused(small_corpus, tables, results, tmp_path):
    check_paper(tmp_path, "A & B (2025)")
    written(tmp_path, call(small_corpus), [tables["4"]], results)
    check_paper(tmp_path, "A & B (2025)")
    with pytest.raises(OutputError, match=r"it has tables of A & B \(2025\); give another folder"):
        check_paper(tmp_path, "C (2026)")


def test_negative_differences_have_a_minus_sign(small_corpus, runs, tables, results, tmp_path):
    rows = Row(("ICD-10",)), Row(("no attention",))
    test = Difference(-0.1, 0.5, -1.25, 1.05)
    line = SignificanceLine(rows, "micro_f1", test, "paired t-test", "2 seeds")
    page = written(tmp_path, call(small_corpus), [replace(tables["4"], remarks=lambda results: [line])], results)
    assert "ICD-10 minus no attention F1 −0.1000 −1.2500 to +1.0500 0.5000" in section(page, "table-4")


def test_failed_and_missing_runs_are_listed_with_their_reasons(small_corpus, runs, tables, results, tmp_path):
    for name in ("HMHAN", "no attention"):
        del results[runs[name][1].key]
    failed = {runs["HMHAN"][1].key: "out of <memory>"}
    page = written(tmp_path, call(small_corpus), [tables["4"]], results, failed)
    text = section(page, "table-4")
    assert "HMHAN 1 of 2 0.5000 [0.91] −0.4100" in text
    assert "2 missing runs run why HMHAN, run 2 out of <memory> no attention, run 2 has not run" in text
    assert "6 runs, 2 missing (1 of them failed)" in text_of(page.partition("</nav>")[0])


def test_setting_has_command_corpus_and_settings(small_corpus, tables, results, tmp_path):
    page = written(tmp_path, call(small_corpus), [tables["4"]], results)
    text = section(page, "setting")
    assert "160 train 80, dev 40, test 40" in text and small_corpus.hash[:12] in text
    assert "seeds 2 recipe.hmhan.epochs 1" in text and "simulated hospital" not in page
    assert "simulated hospital" in written(tmp_path, call(small_corpus, simulated=True), [tables["4"]], results)


def test_rows_beyond_the_first_are_not_run_but_keep_the_papers_numbers(runs):
    rows = [Row(("HMHAN",), tuple(runs["HMHAN"])), Row(("no attention",), tuple(runs["no attention"]), {"f1": 0.42})]
    table = Table("4", "Models", ("model",), {"f1": "F1"}, rows)
    assert table.with_first_rows(None) == table
    shorter = table.with_first_rows(1)
    assert shorter.runs.keys() == {run.key for run in runs["HMHAN"]} and shorter.rows[1].paper == {"f1": 0.42}
