"""Stems: inflected words, British, American and Spanish spelling, and groups of the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.text.stems import stem, word_keys
from nosology.text.tokens import rows

EQUAL = [
    "haemorrhages hemorrhage hemorragia hemorragias",
    "pneumonia neumonía pneumonias",
    "infection infección infections infecciones",
    "sclerosis esclerosis",
    "lymphoma linfoma lymphomas",
    "insufficiency insuficiencia",
    "obesity obesidad",
    "metastasis metastases metástasis",
    "oedema edema",
    "leukaemia leukemia leucemia",
    "fracture fractures fractured fractura",
    "bronchospasm broncoespasmo",
    "incontinence incontinencia",
    "retinopathy retinopatía retinopathies",
    "vasectomy vasectomía",
]
DIFFERENT = [
    "año ano",
    "test testis",
    "ileum ileus",
    "neutrophils neutrophilia",
    "sangre sangrado",
    "mania man",
    "eosinófilo eosinofilia",
    "weeks wheeze",
]


@pytest.mark.parametrize("words", EQUAL)
def test_spellings_of_a_word_have_one_key(words):
    assert len({word_keys(word) for word in words.split()}) == 1


@pytest.mark.parametrize("words", DIFFERENT)
def test_different_words_have_different_stems(words):
    assert len({stem(word) for word in words.split()}) == 2


@given(st.text(max_size=20))
def test_any_word_has_a_stem_and_a_key(word):
    lowered = word.lower()
    assert stem(lowered) or not any(c.isalnum() for c in lowered)
    assert stem(lowered) in word_keys(lowered) or len(word_keys(lowered)) > 0


def test_words_of_a_group_have_the_key_of_its_first_word():
    assert word_keys("renal") == word_keys("kidney") == word_keys("riñones")
    assert word_keys("hepatic") != word_keys("kidney")


def test_first_words_of_the_table_have_their_own_key():
    firsts = [row["word"] for row in rows("words.tsv")]
    assert len(set(firsts)) == len(firsts)
    wrong = [word for word in firsts if stem(word) not in word_keys(word)]
    assert wrong == []
