"""Blocks of tokenized notes, in this process and ahead in others."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from nosology.encoders.tokenizers import Vocabulary, WordTokenizer
from nosology.models.note_blocks import tokenized_blocks, tokenized_blocks_ahead
from tests.conftest import as_notes
from tests.core.process_family import end_of, family

TOKENIZER = WordTokenizer(Vocabulary(["heart", "failure", "pain"]), 50)
TEXTS = [f"{'heart failure ' * (i % 7)}pain {i}" for i in range(150)]


def test_notes_read_ahead_equal_notes_read_here_and_are_read_lazily():
    taken = []

    def notes():
        for note in as_notes(TEXTS):
            taken.append(note.id)
            yield note

    expected = list(tokenized_blocks(as_notes(TEXTS), 10, lambda note: TOKENIZER.tokenize(note.text)))
    ahead = tokenized_blocks_ahead(notes(), 10, TOKENIZER, workers=2)
    actual = [next(ahead), next(ahead)]
    assert len(taken) < len(TEXTS), "only a few blocks are read ahead"
    actual += ahead
    assert [len(block) for block, _ in actual] == [10] * 15
    for (block, encodings), (other, others) in zip(actual, expected, strict=True):
        assert [note.text for note in block] == [note.text for note in other]
        for encoding, same in zip(encodings, others, strict=True):
            assert all(
                np.array_equal(getattr(encoding, name), getattr(same, name)) for name in ("ids", "starts", "ends")
            )


def test_one_block_starts_no_process(monkeypatch):
    monkeypatch.setattr("joblib.externals.loky.ProcessPoolExecutor", None)
    assert [len(block) for block, _ in tokenized_blocks_ahead(as_notes(TEXTS[:9]), 10, TOKENIZER, 2)] == [9]
    with pytest.raises(TypeError):
        list(tokenized_blocks_ahead(as_notes(TEXTS), 10, TOKENIZER, 2))


def test_no_notes_have_no_block():
    assert list(tokenized_blocks(iter(()), 10, lambda note: note)) == []
    assert list(tokenized_blocks_ahead(iter(()), 10, TOKENIZER, 2)) == []


ENDLESS = """
import os, time
from nosology.core import Note
from nosology.models.note_blocks import tokenized_blocks_ahead

class Tokenizer:
    def tokenize(self, text):
        if os.getpid() != first:
            print(text, flush=True)
            time.sleep(600)

first = os.getpid()
for _ in tokenized_blocks_ahead([Note(id="", text="heart failure")] * 300, 10, Tokenizer(), 2):
    pass
"""


def test_processes_end_when_the_first_one_is_killed():
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for _ in range(2):
            first.stdout.readline()  # both processes tokenize
        processes = family(first.pid)
        assert len(processes) >= 3
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert end_of(processes) == []
