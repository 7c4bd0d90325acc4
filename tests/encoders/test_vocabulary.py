from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.encoders.tokenizers import PAD, UNKNOWN, Vocabulary, WordTokenizer
from nosology.text.tokens import lower


def test_specials_come_first_and_words_follow_in_their_order():
    vocabulary = Vocabulary(["heart", "failure"])
    assert (PAD, UNKNOWN) == (0, 1)
    assert len(vocabulary) == 4
    assert vocabulary.ids(["failure", "heart", "lung"]).tolist() == [3, 2, 1]
    assert vocabulary.ids([]).dtype == np.int32


def test_a_word_is_counted_once_a_note():
    vocabulary = Vocabulary.build(["fever fever fever", "cough", "cough", "Cough, type 2"], min_notes=3)
    assert vocabulary.words == ("cough",)


def test_words_of_most_notes_come_first_and_order_of_notes_does_not_matter():
    texts = ["a b c", "b c", "c", "d"]
    built = Vocabulary.build(iter(texts), min_notes=1)
    assert built.words == ("c", "b", "a", "d")
    assert built == Vocabulary.build(reversed(texts), min_notes=1)


def test_further_words_are_kept_however_rare():
    vocabulary = Vocabulary.build(["a a", "a b", "a"], min_notes=3, extra_words=iter(["diabetes", "b", "a", "b"]))
    assert set(vocabulary.words) == {"a", "b", "diabetes"}


def test_numbers_survive():
    vocabulary = Vocabulary.build(["type 1 diabetes", "type 2 diabetes"], min_notes=1)
    assert vocabulary.tokenize("type 1 diabetes").ids.tolist() != vocabulary.tokenize("type 2 diabetes").ids.tolist()


def test_a_word_given_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        Vocabulary(["a", "a"])


@given(st.text(max_size=80), st.integers(0, 12))
def test_a_token_stands_where_it_says(text, limit):
    vocabulary = Vocabulary.build([text], min_notes=1)
    whole, cut = vocabulary.tokenize(text), vocabulary.tokenize(text, limit)
    assert (whole.ids > UNKNOWN).all()
    for number, start, end in zip(whole.ids, whole.starts, whole.ends):
        assert lower(text[start:end]) == vocabulary.words[number - 2]
    assert len(cut) == min(limit, len(whole))
    for part in ("ids", "starts", "ends"):
        np.testing.assert_array_equal(getattr(cut, part), getattr(whole, part)[:limit])


@given(st.lists(st.text(max_size=30), max_size=5), st.text(max_size=30), st.booleans())
def test_saved_and_loaded_reads_the_same(texts, text, literal):
    reader = WordTokenizer(Vocabulary.build(texts, min_notes=1), 5, literal)
    again = WordTokenizer.from_json(json.loads(json.dumps(reader.to_json())))
    assert again == reader
    assert again.tokenize(text).ids.tolist() == reader.tokenize(text).ids.tolist()


@given(st.text(alphabet="ab12 .,-_éK\n", max_size=40))
def test_literal_words_are_those_of_the_authors(text):
    # Their preparation, step by step: lower case, one blank for every run of others, lone numbers out.
    plain = re.sub(r"[^A-Za-z0-9]+", " ", text.lower())
    words = re.sub(r"(\s\d+)+\s", " ", plain).split()
    vocabulary = Vocabulary(sorted(set(words)))
    read = WordTokenizer(vocabulary, 60, reference_padding=True).tokenize(text)
    assert len(read) == (60 if words else 0)
    assert read.ids[: len(words)].tolist() == vocabulary.ids(words).tolist()
    assert (read.ids[len(words) :] == PAD).all()
    assert [text[a:b].lower() for a, b in zip(read.starts, read.ends)][: len(words)] == words
    assert (read.starts[len(words) :] == read.ends[len(words) :]).all()


def test_descriptions_keep_their_numbers():
    words = ["type", "1", "2", "diabetes,", "diabetes"]
    reader = WordTokenizer(Vocabulary(words), 10)
    assert reader.description_ids("Type 2 diabetes, mild").tolist() == [2, 4, 6, 1]
    assert reader.description_ids("Type 2 diabetes, mild", 2).tolist() == [2, 4]
    literal = WordTokenizer(Vocabulary(words), 10, reference_padding=True)
    assert literal.description_ids("Type 2 diabetes, mild").tolist() == [2, 4, 5, 1]


def test_texts_are_streamed():
    held = 0

    class Text(str):
        __slots__ = ("__weakref__",)

        def __del__(self):
            nonlocal held
            held -= 1

    def texts():
        nonlocal held
        for i in range(50):
            held += 1
            assert held <= 2
            yield Text(f"word{i} same")

    assert len(Vocabulary.build(texts(), min_notes=2)) == 3


def test_a_long_note_is_read_at_once():
    words = [f"word{i % 400}" for i in range(1500)]
    text = " ".join(words)
    vocabulary = Vocabulary.build([text], min_notes=1)
    best = np.inf
    for _ in range(20):
        started = time.perf_counter()
        assert len(vocabulary.tokenize(text)) == 1500
        best = min(best, time.perf_counter() - started)
    assert best < 2e-3  # a third of it on an idle machine


def test_no_torch_is_needed():
    program = "import sys, nosology.encoders.tokenizers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unknown_numbers_of_descriptions_stay_apart():
    reader = WordTokenizer(Vocabulary(["type", *"0123456789", "12"]), 100)
    first, second = reader.description_ids("Type 2031"), reader.description_ids("type 2047")
    assert first.tolist() != second.tolist()
    assert reader.description_ids("type 12").tolist() == reader.vocabulary.ids(["type", "12"]).tolist()
    assert reader.description_ids("h5n1").tolist() == reader.vocabulary.ids(["h", "5", "n", "1"]).tolist()
    assert len(reader.description_ids("type 2031", 3)) == 3
