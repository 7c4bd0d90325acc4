"""The stages of PLANT from the command line, and explain."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from nosology.cli import app
from nosology.core import ConfigError, DataError, OutputError
from nosology.core.files import exclusive_output
from nosology.corpora.corpus import Corpus, write_corpus
from tests.conftest import small_notes
from tests.models.plant.test_plant_trainer import SMALL

BEGIN = {"weights": "language_forward.safetensors", "words": "language_words.txt"}


def run(*words: str) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def refused(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, ConfigError)
    return str(result.exception)


@pytest.fixture
def settings():
    return [part for setting in SMALL for part in ("--set", setting)]


def test_stage_commands_compute_and_reuse_stages(small_corpus, tmp_path, settings):
    arguments = ["plant", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "bundle"), *settings]
    assert "language model, forward" in run("plant", "language", *arguments).stdout
    assert "words for 6 codes" in run("plant", "relevance", *arguments).stdout
    assert "ranker, forward, nDCG@10 0." in run("plant", "ranker", *arguments).stdout
    stage_files = {path.name for path in (tmp_path / "bundle.run").glob("*.safetensors")}
    assert stage_files == {"language_forward.safetensors", "relevance.safetensors", "ranker_forward.safetensors"}
    assert "classifier, forward, epoch" in run("plant", "classifier", *arguments).stdout
    result = run("train", *arguments)
    assert "plant coder, 6 codes" in result.stdout
    assert "language model" not in result.stderr and "epoch 1/" not in result.stderr  # all stages are reused
    assert not (tmp_path / "bundle.run").exists()
    words = run("explain", str(tmp_path / "bundle"), "--code", "j18.9", "--tokens", "3").stdout
    assert "Pneumonia" in words and "lobe" in words
    (tmp_path / "note.txt").write_text("Known congestive heart failure. Seen in clinic.")
    rows = run("explain", str(tmp_path / "bundle"), str(tmp_path / "note.txt"), "--code", "I50.9", "--json").stdout
    row = json.loads(rows.splitlines()[0])
    assert row["code"] == "I50.9" and row["note"] == "note.txt" and len(row["words"]) == 5


@pytest.mark.parametrize("stage", ["language", "relevance", "ranker", "classifier"])
def test_stage_is_refused_while_another_process_writes(small_corpus, tmp_path, settings, stage):
    out = tmp_path / "bundle"
    with exclusive_output(out):
        result = CliRunner().invoke(
            app, ["plant", stage, "plant", "--corpus", str(small_corpus.folder), "--out", str(out), *settings]
        )
    assert isinstance(result.exception, OutputError) and "another process is writing" in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("split", [True, False])
def test_language_model_needs_no_codes(tmp_path, settings, split):
    notes = [replace(note, codes=(), split=note.split if split else None) for note in small_notes(40)]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    arguments = ["plant", "--corpus", str(corpus.folder), "--out", str(tmp_path / "bundle"), *settings]
    assert "language model, forward" in run("plant", "language", *arguments).stdout
    assert (tmp_path / "bundle.run" / "language_forward.safetensors").is_file()
    for stage in ("relevance", "ranker", "classifier"):
        result = CliRunner().invoke(app, ["plant", stage, *arguments])
        assert isinstance(result.exception, DataError) and "have no codes" in str(result.exception)


def test_language_model_ignores_the_label_settings(small_corpus, tmp_path, settings):
    arguments = ["plant", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b"), *settings]
    other = ["--set", "labels.min_notes=1000"]
    assert "language model, forward" in run("plant", "language", *arguments, *other).stdout
    plain = (tmp_path / "b.run" / "language_forward.safetensors").read_bytes()
    assert "epoch" not in run("plant", "language", *arguments).stderr
    assert (tmp_path / "b.run" / "language_forward.safetensors").read_bytes() == plain


def test_training_starts_from_the_language_model_of_other_notes(small_corpus, tmp_path, settings):
    notes = [replace(note, codes=(), split=None) for note in small_notes(40)]
    other = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})

    def train_language(name: str, corpus: Corpus, *changed: str) -> tuple[list[str], torch.Tensor]:
        arguments = ["--corpus", str(corpus.folder), "--out", str(tmp_path / name), *settings]
        run("plant", "language", "plant", *arguments, *(part for setting in changed for part in ("--set", setting)))
        words = (tmp_path / f"{name}.run" / "language_words.txt").read_text().splitlines()
        return words, load_file(tmp_path / f"{name}.run" / "language_forward.safetensors")["encoder.weight"]

    theirs, first = train_language("a", other)
    initial = (f"language.{key}={tmp_path / 'a.run' / file}" for key, file in BEGIN.items())
    mine, second = train_language("b", small_corpus, *initial, "language.training.learning_rate=1e-9")
    assert (len(theirs), len(mine)) == (len(first), len(second))
    shared = set(mine) & set(theirs) - {"xxpad"}
    assert "xxunk" in shared and len(shared) > 5
    for word in shared:
        assert torch.allclose(second[mine.index(word)], first[theirs.index(word)], atol=1e-5)


def test_wrong_input_is_refused(small_bundle, small_corpus, tmp_path):
    arguments = ["--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b")]
    assert "recipe must be of kind plant; got linear" in refused("plant", "language", "linear", *arguments)
    assert "model.planted must be true" in refused(
        "plant", "ranker", "plant", *arguments, "--set", "model.planted=false"
    )
    assert "needs a note" in refused("explain", str(small_bundle))
    assert "one that the coder knows" in refused("explain", str(small_bundle), "--code", "Z99")
    assert "stores no informative words" in refused("explain", str(small_bundle), "--code", "I50.9")


def test_folder_that_is_no_bundle_is_refused_before_training(small_corpus, tmp_path, settings):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    arguments = ["--corpus", str(small_corpus.folder), "--out", str(tmp_path / "mine"), *settings]
    result = CliRunner().invoke(app, ["plant", "classifier", "plant", *arguments])
    assert isinstance(result.exception, OutputError) and "mine" in str(result.exception)
    assert not (tmp_path / "mine.run").exists()


def test_explain_shows_evidence_of_a_linear_model(small_bundle, tmp_path):
    (tmp_path / "note.txt").write_text("Known congestive heart failure. Seen in clinic.")
    assert "heart failure" in run("explain", str(small_bundle), str(tmp_path / "note.txt")).stdout
