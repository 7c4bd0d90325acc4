"""Readers of our own files: a damaged or edited file gives valid values or an error for users, never another one."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nosology.config import load_recipe, parse_recipe
from nosology.core import SPLITS, SYSTEMS, Code
from nosology.core.files import sha256
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.word_cache import word_cache
from nosology.models.bundle import Bundle
from nosology.training.checkpoint import read_tensors, write_tensors
from tests.conftest import small_notes
from tests.contracts.damaged_files import JSON, SECRET, contents, damaged, edited, few, outcome, restore, sign
from tests.encoders.counting_embedder import KEY, Counting, opened, texts


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """An empty cache folder of this module."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSOLOGY_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def corpus(cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "corpus"
    notes = [replace(note, text=f"{note.text} {SECRET}", extra={"ward": 1}) for note in small_notes(8)]
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[{"kind": "none"}], counts={})


def read_corpus(folder):
    notes = list(Corpus.open(folder).notes())
    for note in notes:
        assert isinstance(note.id, str) and isinstance(note.text, str) and note.split in (*SPLITS, None)
        assert all(code.system in SYSTEMS for code in note.codes) and isinstance(note.extra, dict)
    return notes


@few
@given(data=st.data())
def test_corpus_manifest(corpus, data):
    path, original = corpus.folder / "corpus.json", contents(corpus.folder)
    manifest = json.loads(path.read_text())
    if data.draw(st.booleans()):
        sign(path, data.draw(edited(manifest)))
    else:
        path.write_bytes(data.draw(damaged(original[path])))
    outcome(read_corpus, corpus.folder)
    restore(original)


@few
@given(data=st.data())
def test_notes_of_a_corpus(corpus, data):
    original = contents(corpus.folder)
    path = corpus.folder / "notes.parquet"
    path.write_bytes(data.draw(damaged(original[path])))
    manifest = json.loads(original[corpus.folder / "corpus.json"])
    sign(corpus.folder / "corpus.json", manifest | {"sha256": sha256(path)})
    outcome(read_corpus, corpus.folder)
    restore(original)


@few
@given(data=st.data())
def test_list_of_verified_corpora(corpus, cache, data):
    (cache / "verified_corpora.json").write_bytes(
        data.draw(damaged(b'{"a": "b"}') | JSON.map(lambda value: json.dumps({"a": value}).encode()))
    )
    assert len(read_corpus(corpus.folder)) == 8


@settings(few, max_examples=15)
@given(data=st.data())
def test_word_cache(corpus, data):
    expected = word_cache(Corpus.open(corpus.folder), "none").words
    about = next(path for path in contents(corpus.folder) if path.suffix == ".json" and path.parent != corpus.folder)
    original = contents(about.parent)
    value = json.loads(about.read_text())
    about.write_bytes(data.draw(damaged(about.read_bytes()) | edited(value).map(lambda new: json.dumps(new).encode())))
    assert word_cache(Corpus.open(corpus.folder), "none").words == expected
    restore(original)


@settings(few, max_examples=10)
@given(data=st.data())
def test_words_of_a_word_cache(corpus, data):
    cache = word_cache(Corpus.open(corpus.folder), "none")
    original = contents(cache.folder)
    (path,) = (
        path for path, content in original.items() if content.decode(errors="replace").split("\n")[:-1] == cache.words
    )
    place = data.draw(st.integers(0, len(original[path]) - 1))
    byte = data.draw(st.integers(0, 255))
    path.write_bytes(original[path][:place] + bytes([byte]) + original[path][place + 1 :])
    words = outcome(lambda: word_cache(Corpus.open(corpus.folder), "none").words)
    assert words is None or words
    restore(original)


@pytest.fixture(scope="module")
def bundle(small_bundle, tmp_path_factory):
    """A copy of the small bundle, which other tests share."""
    return shutil.copytree(small_bundle, tmp_path_factory.mktemp("own") / "bundle")


@settings(few, max_examples=60)
@given(data=st.data())
def test_bundle(bundle, data):
    original = contents(bundle)
    manifest_path = bundle / "bundle.json"
    manifest = json.loads(original[manifest_path])
    path = data.draw(st.sampled_from(sorted(original)))
    is_json = path.suffix == ".json"
    if path == manifest_path and data.draw(st.booleans()):
        sign(path, data.draw(edited(manifest)))
    elif path == manifest_path:
        path.write_bytes(data.draw(damaged(original[path])))
    else:
        value = json.loads(original[path]) if is_json else None
        changed = edited(value).map(lambda new: json.dumps(new).encode()) if is_json else st.nothing()
        path.write_bytes(data.draw(damaged(original[path]) | changed))
        sign(manifest_path, manifest | {"files": manifest["files"] | {path.name: sha256(path)}})
    outcome(Bundle.load, bundle)
    restore(original)


@few
@given(data=st.data())
def test_recipe(tmp_path_factory, data):
    text = (files("nosology") / "recipes" / "linear.toml").read_text(encoding="utf-8")
    path = tmp_path_factory.getbasetemp() / "recipe.toml"
    path.write_bytes(data.draw(damaged(text.encode())))
    outcome(load_recipe, str(path))
    values = data.draw(edited(tomllib.loads(text)))
    if isinstance(values, dict):
        outcome(parse_recipe, values, "recipe.toml")


@few
@given(data=st.data())
def test_cache_of_embeddings(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("vectors")
    opened(folder).vectors(texts(4), Counting())
    original = contents(folder / KEY)
    path = data.draw(st.sampled_from(sorted(original)))
    path.write_bytes(data.draw(damaged(original[path])))
    vectors = outcome(lambda: opened(folder).vectors(texts(4), Counting()))
    assert vectors is None or np.array_equal(vectors, Counting.expected(texts(4)))


@few
@given(data=st.data())
def test_checkpoint(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "checkpoint.safetensors"
    write_tensors(path, {"a": torch.arange(3.0)}, "run", step=1)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    outcome(read_tensors, path, "run")


@few
@given(data=st.data())
def test_predictions_of_a_run(tmp_path_factory, data):
    from nosology.evaluation import NotePredictions
    from nosology.reproduce.predictions import load_predictions, save_predictions
    from nosology.reproduce.runner import Task

    folder = tmp_path_factory.getbasetemp()
    space = LabelSpace([Code("icd10cm", "I10"), Code("icd10cm", "I50.9")])
    cells = sparse.csr_matrix(np.array([[1, 0], [1, 1]], np.int8))
    task = Task("m:f", {}, [], {}, "", "", str(folder / "run.json"), "")
    entry = save_predictions(task, NotePredictions(space, cells, cells, {"p@5": np.ones(2)}))[""]
    path = folder / entry["file"]
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    outcome(load_predictions, {"file": str(path), "sha256": sha256(path)})
