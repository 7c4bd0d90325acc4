"""nosology embed, as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import ConfigError, DataError, Note
from nosology.corpora.corpus import write_corpus
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.encoders.embedding_cache import EmbeddingCache
from tests.conftest import small_notes
from tests.encoders.tiny_embedders import tiny_embedder


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["embed", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.load(EmbedderSettings(), "cpu")


def test_notes_are_embedded_once_and_reported(small_corpus, tmp_path, embedder):
    out = tmp_path / "cache"
    output = run("--corpus", small_corpus.folder, "--out", out, "--device", "cpu", "--split", "dev")
    assert "40 notes, 40 new, 384 dimensions, minilm on cpu" in output and "tokens/s" in output
    assert "160 notes, 120 new" in run("--corpus", small_corpus.folder, "--out", out, "--device", "cpu")
    assert "160 notes, 0 new" in run("--corpus", small_corpus.folder, "--out", out, "--device", "cpu")
    texts = [note.text for note in small_corpus.notes()]
    vectors = EmbeddingCache.for_embedder(out, embedder).vectors(texts)
    assert np.allclose(vectors, embedder.embed(texts), atol=1e-5)
    report = json.loads((out / embedder.key / "report.json").read_text())
    lengths = [len(embedder._tokenizer.token_ids([text])[0]) + 2 for text in texts]
    assert report["notes"] == 160 and report["over_limit"] == report["in_windows"] == 0
    assert report["tokens_max"] == max(lengths) and np.isclose(report["tokens_mean"], np.mean(lengths))
    assert report["tokens_median"] == np.median(lengths)


def test_report_has_one_row_per_embedder(small_corpus, tmp_path):
    out = tmp_path / "cache"
    common = ("--corpus", small_corpus.folder, "--out", out, "--split", "test", "--device", "cpu")
    run(*common)
    run(*common, "--max-tokens", 20, "--window", 12)
    page = (out / "report.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| minilm |")]
    assert len(rows) == 2 and len(list(out.glob("*/report.json"))) == 2
    for name, content in (("a", "{}"), ("b", "[1]"), ("c", "no JSON")):  # reports of other programs
        (out / name).mkdir()
        (out / name / "report.json").write_text(content)
    run(*common)
    assert (out / "report.md").read_text() == page
    cut = next(json.loads(path.read_text()) for path in out.glob("*/report.json") if '"limit": 20' in path.read_text())
    assert 0 < cut["over_limit"] <= 40 and 0 < cut["in_windows"] <= 40
    assert (out / "time_against_length.png").read_bytes().startswith(b"\x89PNG")
    assert "personal data" in page and "anonym" not in page


def test_several_corpora_are_embedded_in_one_run(small_corpus, tmp_path):
    other = write_corpus(small_notes(8, seed=5), tmp_path / "other", source={}, filters=[], counts={})
    output = run(
        *("--corpus", small_corpus.folder, "--corpus", other.folder, "--split", "test"),
        *("--out", tmp_path / "cache", "--device", "cpu"),
    )
    assert "42 notes, 42 new" in output


def test_wrong_options_raise_a_clear_error(small_corpus, tmp_path):
    common = ("--corpus", small_corpus.folder, "--out", tmp_path / "cache")
    with pytest.raises(DataError, match="split must be one of train, dev, test or all; got 'some'"):
        run(*common, "--split", "some")
    with pytest.raises(ConfigError, match=r"--precision: .*'fp32'.*; got 'int3'"):
        run(*common, "--precision", "int3")
    with pytest.raises(ConfigError, match="--revision has no effect on a model that is not fetched"):
        run(*common, "--revision", "main")
    unsplit = write_corpus([Note("n", "cough")], tmp_path / "unsplit", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="unsplit: no dev notes to embed"):
        run("--corpus", unsplit.folder, "--out", tmp_path / "cache", "--split", "dev")
    with pytest.raises(DataError, match="is no corpus"):
        run("--corpus", tmp_path, "--out", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_killed_run_resumes(tmp_path):
    model = tiny_embedder(tmp_path / "model", "bert")
    embedder = Embedder.load(EmbedderSettings(model=str(model)), "cpu")
    notes = [Note(id=f"n{i}", text=f"{i} {note.text * 12}", split="train") for i, note in enumerate(small_notes(150))]
    corpus = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    out = tmp_path / "cache"
    options = ("--corpus", corpus.folder, "--out", out, "--device", "cpu", "--model", model)
    command = [sys.executable, "-m", "nosology", "embed", *map(str, options)]
    running = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    index = out / embedder.key / "index.bin"
    while not (index.exists() and index.stat().st_size) and running.poll() is None:
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    cached = len(EmbeddingCache.for_embedder(out, embedder))
    assert 0 < cached < 150
    assert f"150 notes, {150 - cached} new" in run(*options)
    sample = [note.text for note in notes[::40]]
    assert np.allclose(EmbeddingCache.for_embedder(out, embedder).vectors(sample), embedder.embed(sample), atol=1e-5)
