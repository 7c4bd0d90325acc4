import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from nosology.cli.corpus_commands import app
from nosology.core import Code, ConfigError, Note
from nosology.corpora import splits
from nosology.corpora.corpus import Corpus, write_corpus


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    notes = [
        Note(
            f"n{number:03d}",
            f"secret {' '.join(map(str, rng.integers(0, 5000, 50)))}",
            patient=f"p{number // 2}",
            codes=(Code("icd10cm", ("I10", "E11.9", "J18.9")[number % 3]),),
        )
        for number in range(200)
    ]
    write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    return tmp_path / "corpus"


def test_split_then_audit_finds_no_leak(folder, tmp_path):
    result = run("split", folder, "--out", tmp_path / "out", "--seed", 1)
    assert result.exit_code == 0
    assert "200 notes (train 140, dev 30, test 30)" in result.stdout
    checked = run("audit", tmp_path / "out")
    assert checked.exit_code == 0
    assert "leak" not in checked.stdout


def test_a_leak_exits_with_three_and_names_ids_only(folder, tmp_path):
    notes = [replace(note, split="train" if n % 2 else "test") for n, note in enumerate(Corpus.open(folder).notes())]
    notes[5] = replace(notes[5], text=notes[10].text)
    write_corpus(notes, tmp_path / "leaky", source={}, filters=[], counts={})
    result = run("audit", tmp_path / "leaky")
    assert result.exit_code == 3
    assert "leak     patients in two splits" in result.stdout
    assert "n010 ~ n005" in result.stdout
    assert "secret" not in result.stdout
    audit = run("audit", tmp_path / "leaky", "--json")
    assert audit.exit_code == 3
    assert json.loads(audit.stdout)["leak"] is True


def test_k_sites_and_official_files(folder, tmp_path):
    assert run("split", folder, "--k", 2, "--out", tmp_path / "many").exit_code == 0
    assert len(Corpus.open(tmp_path / "many" / "split-01")) == 200
    shown = run("split", folder, "--sites", 4, "--skew", "size", "--out", tmp_path / "sites").stdout
    assert "site-00        96 notes" in shown
    (tmp_path / "official.csv").write_text("id,split\nn000,train\nn001,validation\nelse,test\n")
    shown = run("split", folder, "--official", tmp_path / "official.csv", "--out", tmp_path / "official").stdout
    assert "2 notes (train 1, dev 1)" in shown
    assert "198 notes left out (splits)" in shown
    assert "1 ids of the split file without a note" in shown


@pytest.mark.parametrize("option", [["--sites", 101], ["--sites", 2, "--min-notes-per-site", 1000]])
def test_split_counts_patients_before_it_computes_fingerprints(folder, tmp_path, monkeypatch, option):
    monkeypatch.setattr(splits, "summarize_notes", lambda *_, **__: pytest.fail("texts were read"))
    with pytest.raises(ConfigError, match=r"has 100 patients .* fewer than the 101 sites|no note is left for 2 sites"):
        run("split", folder, "--out", tmp_path / "s", *option)


def test_unmet_ratios_print_a_warning(folder, tmp_path):
    notes = [
        replace(note, patient="one" if n < 180 else note.patient) for n, note in enumerate(Corpus.open(folder).notes())
    ]
    write_corpus(notes, tmp_path / "lopsided", source={}, filters=[], counts={})
    result = run("split", tmp_path / "lopsided", "--out", tmp_path / "out")
    assert "train got 90.0% of the notes instead of 70.0%" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ratios", "0.7;0.3"], "ratios must be numbers separated by commas"),
        (["--ratios", "0.7,0.7,0.1"], "sum to 1; got 0.7,0.7,0.1"),
        (["--sites", 3, "--skew", "zipf"], "skew must be one of iid, size, dirichlet, random; got 'zipf'"),
        (["--sites", 101], r"has 100 patients .*, fewer than the 101 sites"),
        (["--sites", 3, "--k", 2], "exclude each other"),
        (["--skew", "size"], "--skew has no effect without --sites"),
        (["--alpha", "0.1"], "--alpha has no effect without --sites"),
        (["--min-notes-per-site", 2], "--min-notes-per-site has no effect without --sites"),
        (["--sites", 3, "--alpha", "0.1"], "--alpha has no effect without --skew dirichlet"),
        (["--sites", 3, "--exponent", "2"], "--exponent has no effect without --skew size"),
        (["--sites", 3, "--ratios", "0.8,0.1,0.1"], "--ratios has no effect with --sites"),
        (["--official", "s.csv", "--seed", 3], "--seed has no effect with --official"),
        (["--no-keep-duplicates-together", "--similarity", "0.9"], "--similarity has no effect with --no-keep"),
        (["--similarity", "85"], "must lie in"),
    ],
)
def test_invalid_options_raise_config_error(folder, tmp_path, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run("split", folder, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()
