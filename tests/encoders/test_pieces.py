"""Notes as pieces of words."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.encoders.tokenizers import ID_SHIFT, SubwordTokenizer
from nosology.encoders.transformer import load_pretrained, minilm_folder
from tests.encoders.tiny import tiny_bert, tiny_roberta


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> dict[str, SubwordTokenizer]:
    folder = tmp_path_factory.mktemp("tiny")
    made = {name: make(folder / name) for name, make in (("bert", tiny_bert), ("roberta", tiny_roberta))}
    return {name: load_pretrained(str(path), 20, 50)[0] for name, path in made.items()}


def test_pieces_are_those_of_the_tokenizer_and_stand_at_their_words():
    from pathlib import Path

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(minilm_folder()) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    reader = SubwordTokenizer(tokenizer.to_str(), 1000)
    text = "Hyperkalaemia (5.9) in a patient\nwith pneumococcal pneumonia; Sjögren's."
    read = reader.tokenize(text)
    assert (read.ids - ID_SHIFT).tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    words = [text[start:end] for start, end in zip(read.starts, read.ends)]
    distinct = [word for word, before in zip(words, [None, *words]) if word != before]
    assert distinct == [
        *("Hyperkalaemia", "(", "5", ".", "9", ")", "in", "a", "patient"),
        *("with", "pneumococcal", "pneumonia", ";", "Sjögren", "'", "s", "."),
    ]
    assert words.count("Hyperkalaemia") > 1, "a long word is cut in pieces"


@pytest.mark.parametrize("name", ["bert", "roberta"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.characters(), max_size=80) | st.text(alphabet="ab 1.\n\tÄé漢😀\ud800", max_size=80))
def test_any_text_can_be_read_and_every_place_lies_in_it(readers, name, text):
    read = readers[name].tokenize(text)
    assert len(read) == len(read.starts) == len(read.ends) <= 50
    assert (read.ids.dtype, read.starts.dtype, read.ends.dtype) == (np.int32, np.int64, np.int64)
    assert (read.ids >= ID_SHIFT).all(), "0 is the pad's"
    assert (read.starts >= 0).all() and (read.starts <= read.ends).all() and (read.ends <= len(text)).all()
    assert (np.diff(read.starts) >= 0).all()
    same = np.diff(read.starts) == 0
    assert (np.diff(read.ends)[same] == 0).all() or (read.starts == read.ends).any(), "pieces of one word agree"


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_words_are_found_with_either_tokenizer(readers, name):
    text = "chronic pain,  heart failure"
    read = readers[name].tokenize(text)
    words = dict.fromkeys(text[start:end] for start, end in zip(read.starts, read.ends))
    assert [word for word in words if word] == ["chronic", "pain", ",", "heart", "failure"]


def test_a_note_is_cut_at_the_limit(readers):
    assert len(readers["bert"].tokenize("pain " * 200)) == 50


def test_capitals_are_lowered_where_asked(readers):
    kept = readers["roberta"]
    lowered = SubwordTokenizer(kept.tokenizer_json, 50, lower_case=True)
    assert lowered.tokenize("PAIN İ").ids.tolist() == lowered.tokenize("pain i").ids.tolist()
    assert kept.tokenize("PAIN").ids.tolist() != kept.tokenize("pain").ids.tolist()


def test_a_reader_survives_json(readers):
    for reader in readers.values():
        again = SubwordTokenizer.from_json(json.loads(json.dumps(reader.to_json())))
        assert (
            again.tokenize("heart failure, type 2").ids.tolist()
            == reader.tokenize("heart failure, type 2").ids.tolist()
        )
        assert again.limit == reader.limit
