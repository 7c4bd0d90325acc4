"""Tests of `nosology federate simulate`, from a corpus to a bundle that codes notes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nosology.cli import app, federate
from nosology.core import ConfigError, DataError, FederationError, OutputError
from nosology.core.files import exclusive_output
from nosology.corpora.corpus import write_corpus
from nosology.federated.federation_settings import FEDERATED_KINDS
from nosology.models.bundle import Bundle
from tests.conftest import as_notes, small_notes

SMALL = ["federation.rounds=2", "federation.min_site_notes=1", "federation.min_notes=2", "model.widths=[16]"]


def simulate(corpus, out, *options: str, settings=()):
    sets = [part for setting in (*SMALL, *settings) for part in ("--set", setting)]
    command = ["federate", "simulate", "heads-mlp", "--corpus", str(corpus.folder), "--out", str(out), *options, *sets]
    return CliRunner().invoke(app, command, catch_exceptions=True)


def test_help_names_the_recipes_of_all_kinds():
    assert tuple(FEDERATED_KINDS) == federate._KINDS
    shown = " ".join(CliRunner().invoke(app, ["federate", "run", "--help"]).output.split())
    assert all(name in shown for name in ("hmhan", "linear", "lexicon"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return f"vectors.cache={tmp_path_factory.mktemp('vectors')}"


@pytest.mark.parametrize("engine", [[], ["--engine", "vectorized"], ["--skew", "dirichlet", "--alpha", "0.1"]])
def test_simulated_federation_writes_a_usable_bundle(small_corpus, tmp_path, monkeypatch, cache, engine):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = simulate(small_corpus, tmp_path / "bundle", "--sites", "4", *engine, settings=[cache])
    assert result.exit_code == 0, result.output
    assert "4 sites, 6 codes" in result.output and "round 2/2  loss " in result.output
    assert "micro_f1 (test)" in result.output
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.recipe["federation"]["min_sites"] == 4  # limited to the number of sites
    assert bundle.provenance["corpora"][0]["hash"] == small_corpus.hash
    assert bundle.model.probabilities(as_notes(["congestive heart failure", ""])).shape == (2, 6)
    note = tmp_path / "note.txt"
    note.write_text("The weather was fine. Known congestive heart failure. Seen in clinic.")
    coded = CliRunner().invoke(app, ["code", str(tmp_path / "bundle"), str(note), "--top", "1", "--json"])
    assert coded.exit_code == 0, coded.output
    best = json.loads(coded.stdout.splitlines()[0])["codes"][0]
    assert best["evidence"] and all(span["text"] in note.read_text() for span in best["evidence"])
    assert not (tmp_path / "bundle.run").exists()


@pytest.mark.parametrize("kind", ["caml", "dual_laat"])
def test_simulated_federation_of_a_word_net(small_corpus, tmp_path, kind):
    numbers = {"rounds": 2, "vector_rounds": 1, "min_site_notes": 2, "min_notes": 2}
    changes = [*(f"federation.{name}={value}" for name, value in numbers.items()), "vectors.size=8"]
    sets = [part for change in changes for part in ("--set", change)]
    words = ["--corpus", str(small_corpus.folder), "--out", str(tmp_path / "bundle"), "--sites", "3", "--skew", "size"]
    result = CliRunner().invoke(app, ["federate", "simulate", kind, *words, *sets])
    assert result.exit_code == 0, result.output
    assert "3 sites, 6 codes" in result.output and f"{kind} coder" in result.output
    coded = CliRunner().invoke(app, ["code", str(tmp_path / "bundle"), "-", "--json"], input="Type 2 diabetes, stable.")
    assert coded.exit_code == 0 and json.loads(coded.stdout.splitlines()[0])["codes"], coded.output
    report = ["evaluate", str(tmp_path / "bundle"), "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "r")]
    assert CliRunner().invoke(app, report).exit_code == 0


@pytest.mark.parametrize("kind", ["linear", "lexicon"])
def test_simulated_federation_by_secure_sums(small_corpus, tmp_path, kind):
    changes = ["federation.min_site_notes=2", "federation.min_notes=2", "statistics.buckets=4096"]
    changes += ["learn.terms=false", "learn.rounds=10", "learn.forest=6"] if kind == "lexicon" else []
    sets = [part for change in changes for part in ("--set", change)]
    words = ["--corpus", str(small_corpus.folder), "--out", str(tmp_path / "bundle"), "--sites", "3"]
    result = CliRunner().invoke(app, ["federate", "simulate", kind, *words, *sets])
    assert result.exit_code == 0, result.output
    assert "3 sites, secure sums need all of them; none may be lost" in result.output
    assert "3 sites, 6 codes" in result.output and f"{kind} coder" in result.output
    coded = CliRunner().invoke(app, ["code", str(tmp_path / "bundle"), "-", "--json"], input="Type 2 diabetes, stable.")
    assert coded.exit_code == 0 and json.loads(coded.stdout.splitlines()[0])["codes"], coded.output
    report = ["evaluate", str(tmp_path / "bundle"), "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "r")]
    assert CliRunner().invoke(app, report).exit_code == 0


def test_impossible_simulations_raise(small_corpus, tmp_path, cache):
    no_sites = simulate(small_corpus, tmp_path / "a", settings=[cache])
    assert isinstance(no_sites.exception, DataError)
    assert "160 notes have no site: use `nosology corpus split --sites`" in str(no_sites.exception)
    wrong = CliRunner().invoke(
        app, ["federate", "simulate", "stacked", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b")]
    )
    assert isinstance(wrong.exception, ConfigError)
    assert str(wrong.exception).startswith("recipe must be of kind heads, caml, laat, dual_laat, ")
    assert str(wrong.exception).endswith("; got stacked")
    few = simulate(small_corpus, tmp_path / "c", "--sites", "4", settings=[cache, "federation.min_site_notes=1000"])
    assert isinstance(few.exception, FederationError) and "1000 are needed" in str(few.exception)


def test_old_option_stacked_is_the_vectorized_engine(small_corpus, tmp_path, cache):
    result = simulate(small_corpus, tmp_path / "a", "--sites", "4", "--stacked", settings=[cache])
    assert result.exit_code == 0 and "is now named --engine vectorized" in result.output


@pytest.mark.parametrize("setting", ["record_noise=1.0", "site_clip=1.0", "secure=true"])
def test_vectorized_engine_refuses_privacy(small_corpus, tmp_path, cache, setting):
    settings = [cache, f"federation.privacy.{setting}"]
    result = simulate(small_corpus, tmp_path / "a", "--sites", "4", "--engine", "vectorized", settings=settings)
    name = setting.partition("=")[0]
    assert isinstance(result.exception, ConfigError)
    assert f"federation.privacy.{name} must not be set with the vectorized engine" in str(result.exception)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("options", [["--skew", "size"], ["--alpha", "0.1"]])
def test_skew_and_alpha_need_sites(small_corpus, tmp_path, cache, options):
    result = simulate(small_corpus, tmp_path / "a", *options, settings=[cache])
    assert isinstance(result.exception, ConfigError) and str(result.exception) == "--skew and --alpha need --sites"


@pytest.mark.parametrize("options", [[], ["--skew", "size"]])
def test_alpha_needs_dirichlet(small_corpus, tmp_path, cache, options):
    result = simulate(small_corpus, tmp_path / "a", "--sites", "4", "--alpha", "0.1", *options, settings=[cache])
    assert isinstance(result.exception, ConfigError) and "--alpha needs --skew dirichlet" in str(result.exception)


@pytest.mark.parametrize("options", [[], ["--sites", "4"]])
def test_note_ids_in_two_corpora_are_refused(small_corpus, tmp_path, cache, options):
    notes = [replace(note, site="b", text=f"{note.text} More.") for note in small_corpus.notes()]
    other = write_corpus(notes, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    result = simulate(small_corpus, tmp_path / "a", "--corpus", str(other.folder), *options, settings=[cache])
    assert isinstance(result.exception, DataError) and "160 occur in two of them" in str(result.exception)


def test_vectorized_engine_refuses_fraction_evaluate(small_corpus, tmp_path, cache):
    settings = [cache, "federation.fraction_evaluate=0.1"]
    result = simulate(small_corpus, tmp_path / "a", "--sites", "4", "--engine", "vectorized", settings=settings)
    assert isinstance(result.exception, ConfigError) and "federation.fraction_evaluate" in str(result.exception)


@pytest.mark.parametrize("engine", [[], ["--engine", "vectorized"]])
def test_run_with_other_sites_is_not_resumed(small_corpus, tmp_path, monkeypatch, cache, engine):
    def stop(line="", **more):
        if line.startswith("round 1/"):
            raise RuntimeError("stopped")

    options = ["--sites", "4", *engine]
    with monkeypatch.context() as patched:
        patched.setattr("typer.echo", stop)
        assert str(simulate(small_corpus, tmp_path / "a", *options, settings=[cache]).exception) == "stopped"
    other = simulate(small_corpus, tmp_path / "a", *options, "--skew", "size", settings=[cache])
    assert isinstance(other.exception, ConfigError) and "holds a run with other notes" in str(other.exception)
    same = simulate(small_corpus, tmp_path / "a", *options, "--skew", "iid", settings=[cache])
    assert same.exit_code == 0 and "continues after round 1" in same.output


@pytest.mark.parametrize("engine", [[], ["--engine", "vectorized"]])
def test_small_site_is_excluded_from_a_simulation(tmp_path, cache, engine):
    notes = [replace(note, site="tiny" if i < 4 else f"site-{i % 2}") for i, note in enumerate(small_notes(160))]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    result = simulate(corpus, tmp_path / "a", *engine, settings=[cache, "federation.min_site_notes=3"])
    assert result.exit_code == 0, result.exception
    assert "caution: tiny was excluded: it has 2 train notes; 3 are needed" in result.output
    assert list(Bundle.load(tmp_path / "a").provenance["federation"]["sites"]) == ["site-0", "site-1"]


def test_keys_with_an_invalid_name_write_no_file(run, tmp_path):
    code, _, err = run(
        "federate", "keys", "--out", tmp_path / "k", "--host", "localhost", "--site", "a", "--site", "b/c"
    )
    assert code == 1 and "the name of a site must be" in err and not (tmp_path / "k").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.json", "{}", "it is a corpus"),
        ("b.key", "junk", "is not a private key of"),
        ("server.key", "junk", "is not a private key; it is not replaced"),
        ("root.key", "junk", "is not a private key; it is not replaced"),
        ("root.pem", "junk", "root.key must be there"),
    ],
)
def test_keys_check_everything_before_they_write(run, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    words = ["federate", "keys", "--out", tmp_path, "--host", "localhost", "--site", "a", "--site", "b"]
    code, out, err = run(*words)
    assert (code, out) == (1, "") and message in err
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == content


def test_keys_of_a_site_do_not_take_the_place_of_the_servers(run, tmp_path):
    code, _, err = run("federate", "keys", "--out", tmp_path / "k", "--host", "localhost", "--site", "server")
    assert code == 1 and "must not be root or server" in err and not (tmp_path / "k").exists()


def test_keys_with_another_authority_are_refused(run, tmp_path):
    for folder in ("a", "b"):
        assert run("federate", "keys", "--out", tmp_path / folder, "--host", "localhost")[0] == 0
    (tmp_path / "a" / "root.pem").write_bytes((tmp_path / "b" / "root.pem").read_bytes())
    before = (tmp_path / "a" / "server.pem").read_bytes()
    code, _, err = run("federate", "keys", "--out", tmp_path / "a", "--host", "localhost")
    assert code == 1 and "root.pem is not the certificate of" in err
    assert (tmp_path / "a" / "server.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["corpus.json", "thesis.txt"])
def test_server_refuses_a_folder_of_another_output(run, tmp_path, name):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).write_text("{}")
    assert run("federate", "keys", "--out", tmp_path / "k", "--host", "localhost", "--site", "anna")[0] == 0
    words = ["federate", "server", "--certificates", tmp_path / "k", "--sites", tmp_path / "k"]
    code, _, err = run(*words, "--out", tmp_path / "state")
    assert code == 1 and "will not write to" in err
    assert [path.name for path in (tmp_path / "state").iterdir()] == [name]


def test_simulation_checks_its_output_before_notes_are_embedded(small_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("nosology.encoders.embedder.Embedder.load", lambda *_: pytest.fail("notes are embedded"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("")
    kept = simulate(small_corpus, tmp_path / "a", "--sites", "4")
    assert isinstance(kept.exception, OutputError) and "will not overwrite" in str(kept.exception)
    with exclusive_output(tmp_path / "b"):
        busy = simulate(small_corpus, tmp_path / "b", "--sites", "4")
    assert isinstance(busy.exception, OutputError) and "another federation is running" in str(busy.exception)
    private = ["federation.privacy.site_clip=1.0"]
    wrong = simulate(small_corpus, tmp_path / "c", "--sites", "4", "--engine", "vectorized", settings=private)
    assert isinstance(wrong.exception, ConfigError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_simulation_keeps_a_foreign_run_folder(small_corpus, tmp_path, cache):
    kept = tmp_path / "a.run" / "embeddings" / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    result = simulate(small_corpus, tmp_path / "a", "--sites", "4", settings=[cache])
    assert result.exit_code == 0, result.exception
    assert [path for path in (tmp_path / "a.run").rglob("*") if path.is_file()] == [kept]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cache", "{folder}"], "it has other files"),
        (["--record-noise", "nan"], "record-noise of a site must be a finite number"),
        (["--record-noise", "inf"], "record-noise of a site must be a finite number"),
        (["--peers", "{folder}/none"], "no folder with the public keys of sites"),
        (["--peers", "{folder}/empty"], "no public key"),
    ],
)
def test_site_checks_its_policy_and_peers_at_the_start(run, small_corpus, tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    assert run("federate", "keys", "--out", tmp_path, "--host", "localhost", "--site", "anna")[0] == 0
    files = ["--root", tmp_path / "root.pem", "--key", tmp_path / "anna.key", "--cache", tmp_path / "cache"]
    words = ["federate", "site", "anna", "--server", "localhost:1", "--corpus", small_corpus.folder, *files]
    code, _, err = run(*words, *(option.format(folder=tmp_path) for option in options))
    assert code == 1 and message in err
    words[2] = "an/na"
    code, _, err = run(*words)
    assert code == 1 and "the name of a site must be" in err
