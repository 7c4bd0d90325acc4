import json
import sys

import pytest
from typer.testing import CliRunner

from nosology.cli.corpus_commands import app
from nosology.core import ConfigError, DataError, OutputError
from nosology.corpora.corpus import Corpus
from nosology.corpora.prepare import KINDS


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text('id,text,codes\n1,"heart failure, again",I50.9;I10\n2,cough,I10\n3,cough,\n3,cough,\n')
    return path


def test_prepare_then_stats(notes, tmp_path):
    result = run("prepare", "table", notes, "--out", tmp_path / "c", "--system", "icd10cm", "--min-count", 2)
    assert result.exit_code == 0
    assert "3 notes (none 3), 1 without codes" in result.stdout
    assert "filter min_count: min count 2, code occurrences left out 1, notes left out 0" in result.stdout
    assert "1 notes with the id of an earlier note, left out: notes.csv row 5" in result.stdout
    shown = run("stats", tmp_path / "c").stdout
    assert "icd10cm          1 codes, 2 occurrences" in shown
    stats = json.loads(run("stats", tmp_path / "c", "--json").stdout)
    assert (stats["notes"], stats["distinct_codes"]) == (3, 1)


def test_misspelt_columns_are_named(tmp_path):
    notes = tmp_path / "notes.csv"
    notes.write_text("id,text,code,spilt,ward\n1,cough,I10,test,north\n")
    result = run("prepare", "table", notes, "--out", tmp_path / "c", "--min-count", 1)
    assert result.stderr.splitlines() == [
        f"caution: notes.csv: column '{name}' is kept as a further field; did you mean {field}?"
        for name, field in (("code", "codes"), ("spilt", "split"))
    ]
    with pytest.raises(DataError, match=r"no note is left.*did you mean codes"):
        run("prepare", "table", notes, "--out", tmp_path / "d", "--drop-uncoded")
    notes.write_text("id,text,split\n1,cough,test\n")
    result = run("prepare", "table", notes, "--out", tmp_path / "c")
    assert result.stderr == "caution: notes.csv: there is no column codes, so its notes have no codes\n"


def test_recipe_prints_expected_and_actual_counts(notes, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('kind = "table"\n[expected]\nnotes = 3\ncodes = 7\n')
    result = run("prepare", "table", notes, "--out", tmp_path / "c", "--system", "icd10cm", "--recipe", recipe)
    assert "expected notes         3, got         3: equal" in result.stdout
    assert "expected codes         7, got         2: -5" in result.stdout


def test_unknown_kind_lists_the_allowed_kinds(notes, tmp_path):
    with pytest.raises(ConfigError, match="KIND must be one of mimic4, mimic4-radiology, mimic3, codiesp"):
        run("prepare", "tables", notes, "--out", tmp_path / "c")


@pytest.mark.parametrize("option", [["--lang", "en"], ["--system", "icd10cm"], ["--strict"]])
def test_options_without_effect_on_reviews_are_refused(tmp_path, option):
    with pytest.raises(ConfigError, match=f"{option[0]} has no effect on reviews; leave it out"):
        run("prepare", "reviews", tmp_path / "store.db", "--out", tmp_path / "c", *option)


def test_reviews_without_the_packages_of_the_workbench(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nosology.workbench.database", None)
    with pytest.raises(DataError, match="no such store"):
        run("prepare", "reviews", tmp_path / "store.db", "--out", tmp_path / "c")
    (tmp_path / "store.db").touch()
    with pytest.raises(ConfigError, match=r"pip install 'nosology\[workbench\]'"):
        run("prepare", "reviews", tmp_path / "store.db", "--out", tmp_path / "c")


@pytest.mark.parametrize("words", [["prepare", "table", "{notes}", "--min-count", 2], ["prepare", "table", "{notes}"]])
def test_prepare_checks_out_and_splits_before_it_reads_notes(notes, tmp_path, monkeypatch, words):
    monkeypatch.setitem(KINDS, "table", lambda *_, **__: (pytest.fail("notes were read") for _ in [0]))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    words = [str(word).format(notes=notes) for word in words]
    with pytest.raises(OutputError, match="will not overwrite"):
        run(*words, "--out", tmp_path / "mine")
    with pytest.raises(DataError, match="no such split file"):
        run(*words, "--out", tmp_path / "c", "--splits", tmp_path / "missing.csv")


def test_prepare_says_what_left_no_note(tmp_path):
    (tmp_path / "notes.csv").write_text("id,text,codes\n1,{\\rtf1 x},I10\n2,cough,I10\n")
    (tmp_path / "splits.csv").write_text("id,split\n3,train\n")
    words = ["prepare", "table", tmp_path / "notes.csv", "--out", tmp_path / "c", "--system", "icd10cm"]
    with pytest.raises(DataError, match=r"no note is left .*; 1 notes that are RTF.*; filter splits: 1 notes left out"):
        run(*words, "--splits", tmp_path / "splits.csv")


def test_all_four_commands_exist():
    shown = run("--help").stdout
    assert all(verb in shown for verb in ("prepare", "stats", "split", "audit"))


def test_select_leaves_out_reviewed_notes_and_writes_a_table_or_a_corpus(notes, tmp_path):
    notes.write_text(
        "id,text,codes\n" + "".join(f"{i},heart failure number {i} in bed {i % 3},I50.9;I10\n" for i in range(8))
    )
    run("prepare", "table", notes, "--out", tmp_path / "c", "--system", "icd10cm")
    notes.write_text("id,text\n1,heart failure number 1 in bed 1\n")
    run("prepare", "table", notes, "--out", tmp_path / "done")
    options = ["--corpus", tmp_path / "c", "--coder", "day-one", "--notes", 3, "--reviewed", tmp_path / "done"]
    result = run("select", *options, "--out", tmp_path / "chosen.csv")
    assert result.exit_code == 0 and "3 of 8 notes" in result.stdout
    rows = (tmp_path / "chosen.csv").read_text("utf-8").splitlines()
    chosen = [row.split(",")[1] for row in rows[1:]]
    assert len(set(chosen)) == 3 and "1" not in chosen
    assert run("select", *options, "--out", tmp_path / "s").exit_code == 0
    assert [note.id for note in Corpus.open(tmp_path / "s").notes()] == chosen
    with pytest.raises(DataError, match="no note to select"):
        run("select", *options, "--reviewed", tmp_path / "c", "--out", tmp_path / "none.csv")
    for folder in ("c", "done"):
        with pytest.raises(ConfigError, match="must be another folder"):
            run("select", *options, "--out", tmp_path / folder)
    with pytest.raises(OutputError, match="is no selection"):
        run("select", *options, "--out", notes)
    assert run("select", *options, "--out", tmp_path / "chosen.csv").exit_code == 0  # a selection is replaced
