"""Tokenizers: vocabulary and words, subwords of a transformer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.encoders import tokenizers as module
from nosology.encoders.tokenizers import (
    ID_SHIFT,
    PAD,
    UNKNOWN,
    SubwordTokenizer,
    Vocabulary,
    WordTokenizer,
)
from nosology.encoders.transformer import load_pretrained, minilm_folder
from nosology.models.evidence_spans import by_word
from nosology.text.tokens import benchmark_words, lower
from tests.encoders.counts import note_counts
from tests.encoders.tiny import tiny_bert, tiny_roberta
from tests.timing import assert_cpu_seconds


def test_special_ids_come_first():
    vocabulary = Vocabulary(["heart", "failure"])
    assert (PAD, UNKNOWN) == (0, 1)
    assert len(vocabulary) == 4
    assert vocabulary.ids(["failure", "heart", "lung"]).tolist() == [3, 2, 1]
    assert vocabulary.ids([]).dtype == np.int32


def test_a_word_counts_once_per_note():
    vocabulary = Vocabulary.build(note_counts(["fever fever fever", "cough", "cough", "Cough, type 2"]), min_notes=3)
    assert vocabulary.words == ("cough",)


def test_words_are_sorted_by_notes_independent_of_their_order():
    texts = ["a b c", "b c", "c", "d"]
    built = Vocabulary.build(note_counts(iter(texts)), min_notes=1)
    assert built.words == ("c", "b", "a", "d")
    assert built == Vocabulary.build(note_counts(reversed(texts)), min_notes=1)


def test_extra_words_are_included():
    vocabulary = Vocabulary.build(
        note_counts(["a a", "a b", "a"]), min_notes=3, extra_words=iter(["diabetes", "b", "a", "b"])
    )
    assert set(vocabulary.words) == {"a", "b", "diabetes"}


def test_numbers_are_words():
    vocabulary = Vocabulary.build(note_counts(["type 1 diabetes", "type 2 diabetes"]), min_notes=1)
    assert vocabulary.tokenize("type 1 diabetes").ids.tolist() != vocabulary.tokenize("type 2 diabetes").ids.tolist()


def test_duplicate_word_raises():
    with pytest.raises(ValueError, match="twice"):
        Vocabulary(["a", "a"])


@given(st.text(max_size=80), st.integers(0, 12))
def test_offsets_point_to_the_words(text, limit):
    vocabulary = Vocabulary.build(note_counts([text]), min_notes=1)
    full, cut = vocabulary.tokenize(text), vocabulary.tokenize(text, limit)
    assert (full.ids > UNKNOWN).all()
    for number, start, end in zip(full.ids, full.starts, full.ends):
        assert lower(text[start:end]) == vocabulary.words[number - 2]
    assert len(cut) == min(limit, len(full))
    for part in ("ids", "starts", "ends"):
        np.testing.assert_array_equal(getattr(cut, part), getattr(full, part)[:limit])


def test_alphabetic_tokenizer_drops_words_without_a_letter():
    text = "BP 120/80, fio2 40, 20mg of B12"
    vocabulary = Vocabulary.build(note_counts([text]), min_notes=1, alphabetic=True)
    assert set(vocabulary.words) == {"bp", "fio2", "20mg", "of", "b12"}
    encoding = WordTokenizer(vocabulary, 3, alphabetic=True).tokenize(text)
    assert [text[a:b] for a, b in zip(encoding.starts, encoding.ends)] == ["BP", "fio2", "20mg"]
    assert (encoding.ids > UNKNOWN).all()
    assert not len(WordTokenizer(vocabulary, 3, alphabetic=True).tokenize("120 80"))


@given(st.lists(st.text(max_size=30), max_size=5), st.text(max_size=30), *[st.booleans()] * 3)
def test_word_tokenizer_round_trips_through_json(texts, text, literal, alphabetic, benchmark):
    tokenizer = WordTokenizer(Vocabulary.build(note_counts(texts), min_notes=1), 5, literal, alphabetic, benchmark)
    again = WordTokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again == tokenizer
    assert again.tokenize(text).ids.tolist() == tokenizer.tokenize(text).ids.tolist()


@given(st.text(alphabet="ab12 .,-_éK\n", max_size=40))
def test_reference_padding_equals_the_authors_preparation(text):
    # Their preparation, step by step: lower case, one blank for every run of others, lone numbers out.
    plain = re.sub(r"[^A-Za-z0-9]+", " ", text.lower())
    words = re.sub(r"(\s\d+)+\s", " ", plain).split()
    vocabulary = Vocabulary(sorted(set(words)))
    tokenized = WordTokenizer(vocabulary, 60, reference_padding=True).tokenize(text)
    assert len(tokenized) == (60 if words else 0)
    assert tokenized.ids[: len(words)].tolist() == vocabulary.ids(words).tolist()
    assert (tokenized.ids[len(words) :] == PAD).all()
    assert [text[a:b].lower() for a, b in zip(tokenized.starts, tokenized.ends)][: len(words)] == words
    assert (tokenized.starts[len(words) :] == tokenized.ends[len(words) :]).all()
    assert benchmark_words(text) == words
    cleaned = WordTokenizer(vocabulary, 60, benchmark=True).tokenize(text)
    assert cleaned.ids.tolist() == vocabulary.ids(words).tolist()
    assert [text[a:b].lower() for a, b in zip(cleaned.starts, cleaned.ends)] == words


def test_benchmark_cleaning_applies_to_notes_and_not_to_descriptions():
    text = "Type 2 diabetes; HbA1c 7.2 today"
    vocabulary = Vocabulary.build(note_counts([text], benchmark_words), min_notes=1, extra_words=["2"])
    assert set(vocabulary.words) == {"type", "diabetes", "hba1c", "today", "2"}
    tokenizer = WordTokenizer(vocabulary, 3, benchmark=True)
    encoding = tokenizer.tokenize(text)
    assert [text[a:b] for a, b in zip(encoding.starts, encoding.ends)] == ["Type", "diabetes", "HbA1c"]
    assert tokenizer.description_ids("Type 2 diabetes").tolist() == vocabulary.ids(["type", "2", "diabetes"]).tolist()


def test_description_ids_keep_numbers():
    words = ["type", "1", "2", "diabetes,", "diabetes"]
    tokenizer = WordTokenizer(Vocabulary(words), 10)
    assert tokenizer.description_ids("Type 2 diabetes, mild").tolist() == [2, 4, 6, 1]
    assert tokenizer.description_ids("Type 2 diabetes, mild", 2).tolist() == [2, 4]
    literal = WordTokenizer(Vocabulary(words), 10, reference_padding=True)
    assert literal.description_ids("Type 2 diabetes, mild").tolist() == [2, 4, 5, 1]


def test_long_note_is_tokenized_in_two_milliseconds():
    words = [f"word{i % 400}" for i in range(1500)]
    text = " ".join(words)
    vocabulary = Vocabulary.build(note_counts([text]), min_notes=1)
    assert len(vocabulary.tokenize(text)) == 1500
    assert_cpu_seconds(lambda: vocabulary.tokenize(text), 2e-3)  # a third of it on an idle machine


def test_import_does_not_load_torch():
    program = "import sys, nosology.encoders.tokenizers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unknown_numbers_of_descriptions_differ():
    tokenizer = WordTokenizer(Vocabulary(["type", *"0123456789", "12"]), 100)
    first, second = tokenizer.description_ids("Type 2031"), tokenizer.description_ids("type 2047")
    assert first.tolist() != second.tolist()
    assert tokenizer.description_ids("type 12").tolist() == tokenizer.vocabulary.ids(["type", "12"]).tolist()
    assert tokenizer.description_ids("h5n1").tolist() == tokenizer.vocabulary.ids(["h", "5", "n", "1"]).tolist()
    assert len(tokenizer.description_ids("type 2031", 3)) == 3


@pytest.mark.parametrize("changes", [{}, {"alphabetic": True}, {"benchmark": True}, {"reference_padding": True}])
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60) | st.text(alphabet="aB 1.7\n\u0301é_İ", max_size=60), limit=st.integers(1, 9))
def test_words_without_offsets_are_those_of_tokenize(changes, text, limit):
    tokenizer = WordTokenizer(Vocabulary(["a", "b", "17", "é", "ab", "1"]), limit, **changes)
    (read,) = tokenizer.token_ids([text])
    expected = tokenizer.tokenize(text)
    assert read.ids.dtype == expected.ids.dtype == np.int32
    assert read.ids.tolist() == expected.ids.tolist()


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, SubwordTokenizer]:
    folder = tmp_path_factory.mktemp("tiny")
    folders = {name: make(folder / name) for name, make in (("bert", tiny_bert), ("roberta", tiny_roberta))}
    return {name: load_pretrained(str(path), 20, 50)[0] for name, path in folders.items()}


def test_subwords_equal_the_tokenizer_and_have_word_offsets():
    from pathlib import Path

    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(Path(minilm_folder()) / "tokenizer.json"))
    backend.no_padding()
    backend.no_truncation()
    tokenizer = SubwordTokenizer(backend.to_str(), 1000)
    text = "Hyperkalaemia (5.9) in a patient\nwith pneumococcal pneumonia; Sjögren's."
    tokenized = tokenizer.tokenize(text)
    assert (tokenized.ids - ID_SHIFT).tolist() == backend.encode(text, add_special_tokens=False).ids
    words = [text[start:end] for start, end in zip(tokenized.starts, tokenized.ends)]
    distinct = [word for word, before in zip(words, [None, *words]) if word != before]
    assert distinct == [
        *("Hyperkalaemia", "(", "5", ".", "9", ")", "in", "a", "patient"),
        *("with", "pneumococcal", "pneumonia", ";", "Sjögren", "'", "s", "."),
    ]
    assert words.count("Hyperkalaemia") > 1, "a long word is split into subwords"


@pytest.mark.parametrize("changes", [{}, {"lower_case": True}, {"benchmark": True}, {"limit": 3}])
def test_ids_of_many_notes_are_those_of_each(tokenizers, changes, monkeypatch):
    monkeypatch.setattr(module, "_TEXTS", 2)
    texts = ["Chest PAIN, 5 days", "", "Fever\ud83d 39 and a cough", "no", "x 7"]
    for tokenizer in tokenizers.values():
        tokenizer = replace(tokenizer, **changes)
        expected = [tokenizer.tokenize(text).ids.tolist() for text in texts]
        assert [read.ids.tolist() for read in tokenizer.token_ids(iter(texts))] == expected
        assert any(expected) and not expected[1]


@pytest.mark.parametrize("name", ["bert", "roberta"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.characters(), max_size=80) | st.text(alphabet="ab 1.\n\tÄé漢😀\ud800", max_size=80))
def test_any_text_can_be_tokenized_with_valid_offsets(tokenizers, name, text):
    tokenized = tokenizers[name].tokenize(text)
    assert len(tokenized) == len(tokenized.starts) == len(tokenized.ends) <= 50
    assert (tokenized.ids.dtype, tokenized.starts.dtype, tokenized.ends.dtype) == (np.int32, np.int64, np.int64)
    assert (tokenized.ids >= ID_SHIFT).all(), "0 is padding"
    assert (
        (tokenized.starts >= 0).all()
        and (tokenized.starts <= tokenized.ends).all()
        and (tokenized.ends <= len(text)).all()
    )
    assert (np.diff(tokenized.starts) >= 0).all()
    same = np.diff(tokenized.starts) == 0
    assert (np.diff(tokenized.ends)[same] == 0).all() or (tokenized.starts == tokenized.ends).any(), (
        "pieces of one word agree"
    )


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_word_offsets_with_wordpiece_and_bpe(tokenizers, name):
    text = "chronic pain,  heart failure"
    tokenized = tokenizers[name].tokenize(text)
    words = dict.fromkeys(text[start:end] for start, end in zip(tokenized.starts, tokenized.ends))
    assert [word for word in words if word] == ["chronic", "pain", ",", "heart", "failure"]


@pytest.fixture(scope="module")
def sentencepiece() -> SubwordTokenizer:
    """A tokenizer like those of XLM-RoBERTa and Llama: the space before a word may be a token of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = [("<unk>", 0.0), ("\u2581", -1.0), ("a", -2.0), ("b", -2.0), ("c", -2.0), (",", -2.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return SubwordTokenizer(backend.to_str(), 50)


@pytest.mark.parametrize("benchmark", [False, True])
def test_a_space_that_is_a_token_belongs_to_the_word_after_it(sentencepiece, benchmark):
    text = "ab, c  ba"
    encoding = replace(sentencepiece, benchmark=benchmark).tokenize(text)
    weights = by_word(encoding, np.ones((1, len(encoding)), np.float32))
    words = [text[start:end] for start, end in zip(weights.starts, weights.ends)]
    assert words == ["ab", "c", "ba"] if benchmark else ["ab", ",", "c", "ba"]
    assert weights.weights.sum() == len(encoding)


def test_spaces_at_the_end_belong_to_no_word(sentencepiece):
    encoding = sentencepiece.tokenize("ab ")
    assert (encoding.starts.tolist(), encoding.ends.tolist()) == ([0, 0, 0, 3], [2, 2, 2, 3])


def test_note_is_truncated_at_the_limit(tokenizers):
    assert len(tokenizers["bert"].tokenize("pain " * 200)) == 50


def test_lower_case_lowers_capitals(tokenizers):
    cased = tokenizers["roberta"]
    lowered = SubwordTokenizer(cased.tokenizer_json, 50, lower_case=True)
    assert lowered.tokenize("PAIN İ").ids.tolist() == lowered.tokenize("pain i").ids.tolist()
    assert cased.tokenize("PAIN").ids.tolist() != cased.tokenize("pain").ids.tolist()


def test_subword_tokenizer_round_trips_through_json(tokenizers):
    for tokenizer in tokenizers.values():
        again = SubwordTokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
        assert (
            again.tokenize("heart failure, type 2").ids.tolist()
            == tokenizer.tokenize("heart failure, type 2").ids.tolist()
        )
        assert again.limit == tokenizer.limit


def test_benchmark_cleaning_of_subwords_keeps_offsets(tokenizers):
    cleaned = replace(tokenizers["bert"], benchmark=True)
    text = "Heart -- Failure 2019,\n PAIN."
    tokenized = cleaned.tokenize(text)
    assert tokenized.ids.tolist() == tokenizers["bert"].tokenize("heart failure pain").ids.tolist()
    words = dict.fromkeys(text[start:end] for start, end in zip(tokenized.starts, tokenized.ends))
    assert list(words) == ["Heart", "Failure", "PAIN"]
    assert not len(cleaned.tokenize(" 12 .."))
    assert SubwordTokenizer.from_json(json.loads(json.dumps(cleaned.to_json()))).benchmark
