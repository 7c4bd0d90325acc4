"""`nosology federate simulate` from a corpus to a bundle that codes notes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import ConfigError, DataError, FederationError
from nosology.corpora.corpus import write_corpus
from nosology.models.bundle import Bundle
from tests.conftest import as_notes, small_notes

SMALL = ["federation.rounds=2", "federation.min_site_notes=1", "federation.min_notes=2", "model.widths=[16]"]


def simulate(corpus, out, *words: str, settings=()):
    sets = [part for setting in (*SMALL, *settings) for part in ("--set", setting)]
    command = ["federate", "simulate", "heads-mlp", "--corpus", str(corpus.folder), "--out", str(out), *words, *sets]
    return CliRunner().invoke(app, command, catch_exceptions=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return f"vectors.cache={tmp_path_factory.mktemp('vectors')}"


@pytest.mark.parametrize("way", [[], ["--stacked"], ["--skew", "dirichlet", "--alpha", "0.1"]])
def test_a_federation_is_simulated_and_its_bundle_can_be_used(small_corpus, tmp_path, monkeypatch, cache, way):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = simulate(small_corpus, tmp_path / "bundle", "--sites", "4", *way, settings=[cache])
    assert found.exit_code == 0, found.output
    assert "4 sites, 6 codes" in found.output and "round 2/2  loss " in found.output
    assert "micro_f1 (test)" in found.output
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.recipe["federation"]["min_sites"] == 4  # never more than there are
    assert bundle.provenance["corpora"][0]["hash"] == small_corpus.hash
    assert bundle.model.probabilities(as_notes(["congestive heart failure", ""])).shape == (2, 6)
    note = tmp_path / "note.txt"
    note.write_text("The weather was fine. Known congestive heart failure. Seen in clinic.")
    coded = CliRunner().invoke(app, ["code", str(tmp_path / "bundle"), str(note), "--top", "1", "--json"])
    assert coded.exit_code == 0, coded.output
    best = json.loads(coded.stdout.splitlines()[0])["codes"][0]
    assert best["evidence"] and all(span["text"] in note.read_text() for span in best["evidence"])
    assert not (tmp_path / "bundle.run").exists()


def test_what_cannot_be_simulated_is_said(small_corpus, tmp_path, cache):
    no_sites = simulate(small_corpus, tmp_path / "a", settings=[cache])
    assert isinstance(no_sites.exception, DataError)
    assert "160 notes are at no site: `nosology corpus split --sites`" in str(no_sites.exception)
    wrong = CliRunner().invoke(
        app, ["federate", "simulate", "linear", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b")]
    )
    assert isinstance(wrong.exception, ConfigError) and "kind heads" in str(wrong.exception)
    few = simulate(small_corpus, tmp_path / "c", "--sites", "4", settings=[cache, "federation.min_site_notes=1000"])
    assert isinstance(few.exception, FederationError) and "1000 are needed" in str(few.exception)


@pytest.mark.parametrize("words", [["--skew", "size"], ["--alpha", "0.1"]])
def test_how_notes_are_dealt_needs_sites_to_deal_them_to(small_corpus, tmp_path, cache, words):
    found = simulate(small_corpus, tmp_path / "a", *words, settings=[cache])
    assert isinstance(found.exception, ConfigError) and str(found.exception) == "--skew and --alpha need --sites"


@pytest.mark.parametrize("words", [[], ["--skew", "size"]])
def test_alpha_is_of_dirichlet_alone(small_corpus, tmp_path, cache, words):
    found = simulate(small_corpus, tmp_path / "a", "--sites", "4", "--alpha", "0.1", *words, settings=[cache])
    assert isinstance(found.exception, ConfigError) and "--alpha needs --skew dirichlet" in str(found.exception)


@pytest.mark.parametrize("words", [[], ["--sites", "4"]])
def test_hospitals_whose_notes_have_the_same_ids_are_not_made_one(small_corpus, tmp_path, cache, words):
    notes = [replace(note, site="b", text=f"{note.text} More.") for note in small_corpus.notes()]
    other = write_corpus(notes, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    found = simulate(small_corpus, tmp_path / "a", "--corpus", str(other.folder), *words, settings=[cache])
    assert isinstance(found.exception, DataError) and "160 are in two of them" in str(found.exception)


def test_a_share_of_evaluated_sites_needs_flower(small_corpus, tmp_path, cache):
    settings = [cache, "federation.fraction_evaluate=0.1"]
    found = simulate(small_corpus, tmp_path / "a", "--sites", "4", "--stacked", settings=settings)
    assert isinstance(found.exception, ConfigError) and "federation.fraction_evaluate" in str(found.exception)


@pytest.mark.parametrize("way", [[], ["--stacked"]])
def test_a_run_with_other_sites_is_not_gone_on_with(small_corpus, tmp_path, monkeypatch, cache, way):
    def stop(line="", **more):
        if line.startswith("round 1/"):
            raise RuntimeError("stopped")

    words = ["--sites", "4", *way]
    with monkeypatch.context() as patched:
        patched.setattr("typer.echo", stop)
        assert str(simulate(small_corpus, tmp_path / "a", *words, settings=[cache]).exception) == "stopped"
    other = simulate(small_corpus, tmp_path / "a", *words, "--skew", "size", settings=[cache])
    assert isinstance(other.exception, ConfigError) and "holds a run with other notes" in str(other.exception)
    same = simulate(small_corpus, tmp_path / "a", *words, "--skew", "iid", settings=[cache])
    assert same.exit_code == 0 and "goes on after round 1" in same.output


@pytest.mark.parametrize("way", [[], ["--stacked"]])
def test_a_site_that_is_too_small_does_not_end_a_simulation(tmp_path, cache, way):
    notes = [replace(note, site="tiny" if i < 4 else f"site-{i % 2}") for i, note in enumerate(small_notes(160))]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    found = simulate(corpus, tmp_path / "a", *way, settings=[cache, "federation.min_site_notes=3"])
    assert found.exit_code == 0, found.exception
    assert "caution: tiny was left out: it has 2 train notes; 3 are needed" in found.output
    assert list(Bundle.load(tmp_path / "a").provenance["federation"]["sites"]) == ["site-0", "site-1"]
