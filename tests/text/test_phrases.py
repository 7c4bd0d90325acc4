"""Phrase matching: phrases match in any word order, and never if a word is missing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.text.phrases import PhraseIndex, TokenizedNote, phrase_keys

WORDS = ["kidney", "stone", "acute", "chronic", "failure", "heart", "left", "knee", "pain", "fever"]
NOTE = st.lists(st.sampled_from([*WORDS, "of", "the", "and", "."]), max_size=30).map(" ".join)
PHRASE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True).map(" ".join)


def index_of(phrases):
    return PhraseIndex.build(sorted({phrase_keys(phrase) for phrase in phrases}))


@settings(max_examples=200, deadline=None)
@given(NOTE, st.lists(PHRASE, min_size=1, max_size=5), st.integers(0, 3))
def test_matches_have_all_keys_in_one_sentence_and_no_wider_gap(text, phrases, gap):
    index, note = index_of(phrases), TokenizedNote.from_text(text)
    for phrase, places, between in index.find(note, gap):
        keys = [key for place in places for key in phrase_keys(note.words[place])]
        assert sorted(keys) == sorted(index.phrase(phrase))
        assert len({note.sentence[place] for place in places}) == 1
        assert between <= gap and list(places) == sorted(set(places))


@settings(max_examples=200, deadline=None)
@given(NOTE, PHRASE, st.randoms(use_true_random=False), NOTE)
def test_a_phrase_matches_in_any_order_and_between_function_words(before, phrase, random, after):
    words = phrase.split()
    random.shuffle(words)
    mention = " of the ".join(words)
    text = f"{before}\n\n{mention}\n\n{after}"
    start = len(before) + 2
    index, note = index_of([phrase]), TokenizedNote.from_text(text)
    places = [note.starts[match.places[0]] for match in index.find(note, 0)]
    assert any(start <= place < start + len(mention) for place in places)


@settings(deadline=None)
@given(NOTE, st.lists(PHRASE, min_size=1, max_size=5))
def test_find_is_deterministic(text, phrases):
    index = index_of(phrases)
    assert index.find(TokenizedNote.from_text(text), 2) == index.find(TokenizedNote.from_text(text), 2)


def test_other_words_are_allowed_up_to_the_gap():
    index = index_of(["kidney stone"])
    note = TokenizedNote.from_text("A stone, large and smooth, in the left kidney.")
    assert index.find(note, 2) == []
    assert [match.gap for match in index.find(note, 3)] == [3]


def test_a_side_may_be_anywhere_in_the_sentence():
    index = index_of(["pain left knee", "pain knee"])
    matches = index.find(TokenizedNote.from_text("Left side examined with care today: knee pain."), 0)
    assert {len(match.places) for match in matches} == {2, 3}


def test_a_side_of_another_body_part_does_not_match():
    index = index_of(["pain left knee", "pain right hip", "pain left hip", "pain right knee"])

    def matching(text):
        return {index.phrase(match.phrase) for match in index.find(TokenizedNote.from_text(text), 2)}

    each = {phrase_keys("pain left knee"), phrase_keys("pain right hip")}
    assert matching("Pain in the left knee, and in the right hip.") == each
    assert matching("Pain in the left and right hip.") == {phrase_keys("pain left hip"), phrase_keys("pain right hip")}


def test_an_empty_note_has_no_matches():
    assert index_of(["fever"]).find(TokenizedNote.from_text(""), 2) == []


def test_a_word_with_one_wrong_letter_matches():
    index = index_of(["telangiectasia", "hypothyroidism severe"])
    for text in ("telangectasia", "severe hypothirodism"):
        note = TokenizedNote.from_text(text)
        assert len(index.find(note, 0)) == 1 and len(index.misspelled(note)) == 1
    assert index.misspelled(TokenizedNote.from_text("telangiectasia")) == []


@pytest.mark.parametrize("word", ["keratin", "eosinophil", "necropsy", "ileum", "ketosis"])
def test_another_ending_or_a_short_word_does_not_match(word):
    index = index_of(["keratitis", "eosinophilia", "necrosis", "ilium", "ptosis"])
    assert index.find(TokenizedNote.from_text(word), 0) == []


def test_numbers_of_list_items_are_part_of_no_phrase():
    index = index_of(["type 1 diabetes", "stage 2"])
    assert index.find(TokenizedNote.from_text("1. Diabetes, type not stated\n2) Ulcer, stage unknown"), 2) == []
    assert index.find(TokenizedNote.from_text("1. Diabetes type 1"), 2)


@pytest.mark.parametrize("text", ["chronic CHF", "chronic chf"])
def test_abbreviations_are_written_out_inside_longer_phrases(text):
    note = TokenizedNote.from_text(text)
    match = index_of(["chronic heart failure"]).find(note, 2)[0]
    assert [(int(note.starts[place]), int(note.ends[place])) for place in match.places] == [(0, 7), (8, 11), (8, 11)]


@pytest.mark.parametrize(
    ("phrase", "same"),
    [
        ("CHF", "heart failure"),
        ("chronic CHF of the kidney", "failure, heart, kidney: chronic"),
        ("A kidney stone", "kidney stone"),  # an article
        ("Neumonía", "pneumonia"),
        ("", "of the"),
    ],
)
def test_keys_are_of_the_words_written_out_without_function_words(phrase, same):
    assert phrase_keys(phrase) == phrase_keys(same)


def test_a_letter_of_a_type_is_a_key():
    assert set(phrase_keys("hepatitis A")) == {*phrase_keys("hepatitis"), "a"}
    assert phrase_keys("hepatitis a") == phrase_keys("hepatitis")
    assert phrase_keys(" ".join(f"word{number}" for number in range(11))) == ()
