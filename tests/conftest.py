"""A small world that many tests share: coded notes, their corpus, and a coder trained on it."""

from __future__ import annotations

import csv
import gc
import os
from collections.abc import Generator, Iterable, Iterator
from functools import cache

os.environ["NOSOLOGY_DATA"] = os.devnull  # releases that the developer has installed must not change results
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: two test processes with two threads each would wait

import numpy as np
import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.models.train import train

# A property does not fail because the machine is busy.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

PHRASES = {
    Code("icd10cm", "I50.9"): "congestive heart failure",
    Code("icd10cm", "J18.9"): "pneumonia of the right lower lobe",
    Code("icd10cm", "M54.5"): "chronic low back pain",
    Code("icd10cm", "E11.9"): "type 2 diabetes",
    Code("icd10pcs", "0DTJ4ZZ"): "laparoscopic appendectomy",
    Code("icd9cm", "428.0"): "decompensated cardiac failure",
}
FILLER = ["patient", "seen", "today", "feels", "well", "plan", "continue", "home", "follow", "up", "clinic", "stable"]


def small_notes(n: int, seed: int = 0) -> list[Note]:
    """Notes whose codes can be learned from their phrases; every third is dev, every fourth test."""
    rng = np.random.default_rng(seed)
    notes = []
    for i in range(n):
        codes = tuple(code for code in PHRASES if rng.random() < 0.35)
        words = [*(PHRASES[code] for code in codes), *rng.choice(FILLER, 8)]
        text = ". ".join(rng.permutation(words)).capitalize() + "."
        split = ("train", "train", "dev", "test")[i % 4]
        notes.append(Note(id=f"n{i}", text=text, patient=f"p{i}", split=split, codes=codes))
    return notes


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports without garbage collection, a quarter of their time; later collections leave out what was imported."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests with the longest time limits first, so that no process is left with one at the end."""
    usual = 300  # as in pyproject.toml
    items.sort(key=lambda item: -max([usual, *(mark.args[0] for mark in item.iter_markers("timeout"))]))


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """The commands are read from their functions once, not in each of a thousand calls of the command line."""
    build = cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", build)
        patch.setattr(typer.testing, "_get_command", build)
        yield


@pytest.fixture
def default_field_limit() -> Iterator[None]:
    """The limit of a CSV field with which Python starts; readers of notes raise it for the whole process."""
    before = csv.field_size_limit(131_072)
    yield
    csv.field_size_limit(before)


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("small") / "corpus"
    return write_corpus(small_notes(160), folder, source={"kind": "test"}, filters=[], counts={})


@pytest.fixture(scope="session")
def small_bundle(small_corpus, tmp_path_factory):
    """The folder of a linear coder trained on the small corpus."""
    folder = tmp_path_factory.mktemp("small") / "bundle"
    train(load_recipe("linear"), [small_corpus], folder)
    return folder


def as_notes(texts: Iterable[str]) -> list[Note]:
    """Notes of these texts, without ids."""
    return [Note("", text) for text in texts]
