import json

import pytest
from typer.testing import CliRunner

from nosology.cli.corpus_commands import app
from nosology.core import ConfigError


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
    found = json.loads(run("stats", tmp_path / "c", "--json").stdout)
    assert (found["notes"], found["distinct_codes"]) == (3, 1)


def test_recipe_prints_expected_and_actual_counts(notes, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('kind = "table"\n[expected]\nnotes = 3\ncodes = 7\n')
    result = run("prepare", "table", notes, "--out", tmp_path / "c", "--system", "icd10cm", "--recipe", recipe)
    assert "expected notes         3, got         3: equal" in result.stdout
    assert "expected codes         7, got         2: -5" in result.stdout


def test_unknown_kind_lists_the_allowed_kinds(notes, tmp_path):
    with pytest.raises(ConfigError, match="KIND must be one of mimic4, mimic4-radiology, mimic3, codiesp"):
        run("prepare", "tables", notes, "--out", tmp_path / "c")


def test_all_four_commands_exist():
    shown = run("--help").stdout
    assert all(verb in shown for verb in ("prepare", "stats", "split", "audit"))
