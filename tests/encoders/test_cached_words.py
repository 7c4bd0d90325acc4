"""Notes from word caches: the ids that the tokenizer gives for their texts."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from nosology.corpora.corpus import write_corpus
from nosology.encoders.tokenizers import UNKNOWN, Vocabulary, WordTokenizer
from nosology.text.tokens import benchmark_words, words_of
from nosology.training.examples import Examples
from tests.conftest import small_notes
from tests.encoders.counts import note_counts

TAILS = ["", " 7", " HbA1c 7.2, 20 mg", " Niño con tos. Niño!", " 12 / 80 ___"]


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Examples:
    """The train notes of two corpora, some without a word; words of other notes are in the caches too."""
    corpora = []
    for number in range(2):
        notes = [
            replace(note, text="..." if i % 9 == 0 else note.text * (1 + i % 3) + TAILS[i % 5])
            for i, note in enumerate(small_notes(40, seed=number))
        ]
        notes.append(replace(notes[0], id="other", split="test", text="zebrafish"))
        folder = tmp_path_factory.mktemp("words") / "corpus"
        corpora.append(write_corpus(notes, folder, source={}, filters=[], counts={}))
    return Examples(corpora, lambda note: note.split == "train")


@pytest.mark.parametrize("limit", [1, 25, 4000])
@pytest.mark.parametrize("flags", [{}, {"alphabetic": True}, {"benchmark": True}])
def test_notes_are_encoded_as_by_the_tokenizer(examples, flags, limit):
    split = benchmark_words if "benchmark" in flags else words_of
    vocabulary = Vocabulary.build(note_counts(examples.texts(), split), 16, ["appendectomy"])
    tokenizer = WordTokenizer(vocabulary, limit, **flags)
    expected = [tokenizer.tokenize(text).ids.tolist() for text in examples.texts()]
    encoded = examples.words(tokenizer.cleaning).encoded(tokenizer)
    assert [note.ids.tolist() for note in encoded] == expected
    assert [] in expected and (limit == 1 or any(UNKNOWN in ids for ids in expected))
    assert len(encoded) == len(examples) and encoded[-1].ids.dtype == np.int32
    assert [len(note) for note in encoded] == list(map(len, expected))
    assert [note.ids.tolist() for note in encoded[1::3]] == expected[1::3]
    rows = np.array([20, 3, 39])
    assert [note.ids.tolist() for note in pickle.loads(pickle.dumps(encoded[rows]))] == [expected[i] for i in rows]
    with pytest.raises(IndexError):
        encoded[len(encoded)]


@pytest.mark.parametrize(("cleaning", "split"), [("none", words_of), ("benchmark", benchmark_words)])
def test_note_counts_are_those_of_the_selected_notes(examples, cleaning, split):
    counts = examples.words(cleaning).note_counts()
    assert counts == note_counts(examples.texts(), split)
    assert "zebrafish" not in counts
    more = examples.words(cleaning)
    assert (more + more).note_counts() == {word: 2 * count for word, count in counts.items()}


def test_padded_notes_are_not_read_from_a_cache(examples):
    with pytest.raises(ValueError, match="padded"):
        examples.words("benchmark").encoded(WordTokenizer(Vocabulary([]), 5, reference_padding=True))


def test_worker_processes_import_no_torch():
    program = (
        "import sys, nosology.encoders.word_vectors, nosology.encoders.cached_words\nprint('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
