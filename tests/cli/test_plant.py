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
from nosology.corpora.corpus import Corpus, write_corpus
from tests.conftest import small_notes
from tests.models.plant.test_plant_trainer import SMALL

BEGIN = {"weights": "language_forward.safetensors", "words": "language_words.txt"}


def run(*words: str) -> Result:
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, found.output + repr(found.exception)
    return found


def refused(*words: str) -> str:
    found = CliRunner().invoke(app, list(words))
    assert isinstance(found.exception, ConfigError)
    return str(found.exception)


@pytest.fixture
def settings():
    return [part for setting in SMALL for part in ("--set", setting)]


def test_stages_are_made_and_taken(small_corpus, tmp_path, settings):
    asked = ["plant", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "bundle"), *settings]
    assert "language model, forward" in run("plant", "language", *asked).stdout
    assert "words for 6 codes" in run("plant", "relevance", *asked).stdout
    assert "ranker, forward, nDCG@10 0." in run("plant", "ranker", *asked).stdout
    made = {path.name for path in (tmp_path / "bundle.run").glob("*.safetensors")}
    assert made == {"language_forward.safetensors", "relevance.safetensors", "ranker_forward.safetensors"}
    assert "classifier, forward, epoch" in run("plant", "classifier", *asked).stdout
    said = run("train", *asked)
    assert "plant coder, 6 codes" in said.stdout
    assert "language model" not in said.stderr and "epoch 1/" not in said.stderr  # all was there
    assert not (tmp_path / "bundle.run").exists()
    words = run("explain", str(tmp_path / "bundle"), "--code", "j18.9", "--tokens", "3").stdout
    assert "Pneumonia" in words and "lobe" in words
    (tmp_path / "note.txt").write_text("Known congestive heart failure. Seen in clinic.")
    rows = run("explain", str(tmp_path / "bundle"), str(tmp_path / "note.txt"), "--code", "I50.9", "--json").stdout
    row = json.loads(rows.splitlines()[0])
    assert row["code"] == "I50.9" and row["note"] == "note.txt" and len(row["words"]) == 5


@pytest.mark.parametrize("split", [True, False])
def test_a_language_model_needs_no_codes(tmp_path, settings, split):
    notes = [replace(note, codes=(), split=note.split if split else None) for note in small_notes(40)]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    asked = ["plant", "--corpus", str(corpus.folder), "--out", str(tmp_path / "bundle"), *settings]
    assert "language model, forward" in run("plant", "language", *asked).stdout
    assert (tmp_path / "bundle.run" / "language_forward.safetensors").is_file()
    for stage in ("relevance", "ranker", "classifier"):
        found = CliRunner().invoke(app, ["plant", stage, *asked])
        assert isinstance(found.exception, DataError) and "have no codes" in str(found.exception)


def test_a_language_model_takes_notes_of_codes_that_are_not_to_be_learned(small_corpus, tmp_path, settings):
    asked = ["plant", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b"), *settings]
    other = ["--set", "labels.min_notes=1000"]
    assert "language model, forward" in run("plant", "language", *asked, *other).stdout
    plain = (tmp_path / "b.run" / "language_forward.safetensors").read_bytes()
    assert "epoch" not in run("plant", "language", *asked).stderr  # which codes there are is no matter to it
    assert (tmp_path / "b.run" / "language_forward.safetensors").read_bytes() == plain


def test_a_coder_begins_with_a_language_model_of_other_notes(small_corpus, tmp_path, settings):
    notes = [replace(note, codes=(), split=None) for note in small_notes(40)]
    other = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})

    def learned(name: str, corpus: Corpus, *changed: str) -> tuple[list[str], torch.Tensor]:
        asked = ["--corpus", str(corpus.folder), "--out", str(tmp_path / name), *settings]
        run("plant", "language", "plant", *asked, *(part for setting in changed for part in ("--set", setting)))
        words = (tmp_path / f"{name}.run" / "language_words.txt").read_text().splitlines()
        return words, load_file(tmp_path / f"{name}.run" / "language_forward.safetensors")["encoder.weight"]

    theirs, first = learned("a", other)
    begun = (f"language.{key}={tmp_path / 'a.run' / file}" for key, file in BEGIN.items())
    mine, second = learned("b", small_corpus, *begun, "language.training.learning_rate=1e-9")
    assert (len(theirs), len(mine)) == (len(first), len(second))
    shared = set(mine) & set(theirs) - {"xxpad"}
    assert "xxunk" in shared and len(shared) > 5
    for word in shared:
        assert torch.allclose(second[mine.index(word)], first[theirs.index(word)], atol=1e-5)


def test_wrong_input(small_bundle, small_corpus, tmp_path):
    asked = ["--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b")]
    assert "recipe must be of kind plant; got linear" in refused("plant", "language", "linear", *asked)
    assert "model.planted must be true" in refused("plant", "ranker", "plant", *asked, "--set", "model.planted=false")
    assert "needs a note" in refused("explain", str(small_bundle))
    assert "one that the coder knows" in refused("explain", str(small_bundle), "--code", "Z99")
    assert "stores no informative words" in refused("explain", str(small_bundle), "--code", "I50.9")


def test_a_folder_that_is_no_bundle_is_refused_before_anything_is_learned(small_corpus, tmp_path, settings):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    asked = ["--corpus", str(small_corpus.folder), "--out", str(tmp_path / "mine"), *settings]
    found = CliRunner().invoke(app, ["plant", "classifier", "plant", *asked])
    assert isinstance(found.exception, OutputError) and "mine" in str(found.exception)
    assert not (tmp_path / "mine.run").exists()


def test_a_coder_without_attention_shows_its_evidence(small_bundle, tmp_path):
    (tmp_path / "note.txt").write_text("Known congestive heart failure. Seen in clinic.")
    assert "heart failure" in run("explain", str(small_bundle), str(tmp_path / "note.txt")).stdout
