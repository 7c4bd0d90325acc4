import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.core import Span
from nosology.text import CATEGORIES, Context, context_of, contexts

DATA = Path(__file__).parent / "data"


def read(name):
    with (DATA / name).open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))


def flags(sentence, mention):
    start = sentence.index(mention)
    [context] = context_of(sentence, [(start, start + len(mention))])
    return [category for category in CATEGORIES if getattr(context, category)]


NEGATION = read("negation_sentences.tsv")


@pytest.mark.parametrize("row", NEGATION, ids=lambda row: f"{row['mention']} in {row['sentence']}")
def test_negation(row):
    assert ("negated" in flags(row["sentence"], row["mention"])) == (row["negated"] == "1")


def test_agreement_with_negspacy_where_both_have_the_rule():
    shared = [row for row in NEGATION if row["shared_rule"] == "1"]
    agreed = sum(("negated" in flags(row["sentence"], row["mention"])) == (row["negspacy"] == "1") for row in shared)
    assert len(shared) >= 150
    assert agreed / len(shared) >= 0.95


@pytest.mark.parametrize("row", read("context_sentences.tsv"), ids=lambda row: f"{row['mention']} in {row['sentence']}")
def test_context(row):
    assert ",".join(flags(row["sentence"], row["mention"])) == row["contexts"]


def test_scope_and_trigger_point_into_the_text():
    text = "Admitted for sepsis.\nNo evidence of pneumonia or effusion, but cough."
    [found] = contexts(text)
    assert found.category == "negated"
    assert text[slice(*found.trigger)] == "No evidence of"
    assert text[slice(*found.scope)] == "pneumonia or effusion"


def test_a_phrase_does_not_reach_over_a_sentence_end():
    assert contexts("Is it there? No. Evidence of pneumonia.") == []
    assert flags("Denies fever.\nCough.", "Cough") == []


def test_a_family_history_section_is_about_the_family():
    note = "Family History:\nDiabetes, stroke.\nNo cancer.\n\nSocial History:\nSmoker."
    assert flags(note, "stroke") == ["family"]
    assert flags(note, "cancer") == ["negated", "family"]
    assert flags(note, "Smoker") == []


def test_a_mention_counts_if_any_of_its_words_does():
    text = "Cough without fever"
    assert context_of(text, [(0, 5), (0, len(text)), (5, 6), (3, 3)]) == [
        Context(False, False, False, False, False),
        Context(True, False, False, False, False),
        Context(False, False, False, False, False),
        Context(False, False, False, False, False),
    ]


def test_no_phrase_reaches_further_than_forty_words():
    text = "no " + "word " * 60
    [found] = contexts(text)
    assert len(text[slice(*found.scope)].split()) == 40


@pytest.mark.parametrize("text", ["", " \n", "...", "no", "mother"])
def test_texts_without_context(text):
    assert contexts(text) == []
    assert context_of(text, []) == []
    assert context_of(text, [(0, len(text))]) == [Context(False, False, False, False, False)]


WORDS = st.sampled_from(
    ["no", "fever", "but", "was ruled out", "mother", ".", "\n", "history of", "pneumonia", "if", ",", "İ"]
)


@given(st.lists(WORDS).map(" ".join) | st.text())
def test_spans_lie_in_the_text_and_flags_follow_scopes(text):
    found = contexts(text)
    assert found == sorted(found, key=lambda c: c.trigger)
    for category, scope, trigger in found:
        assert 0 <= scope.start < scope.end <= len(text)
        assert 0 <= trigger.start < trigger.end <= len(text)
        assert getattr(context_of(text, [scope])[0], category)
    outside = context_of(text, [Span(i, i + 1) for i in range(len(text))])
    for i, context in enumerate(outside):
        for category in CATEGORIES:
            if getattr(context, category):
                assert any(c.category == category and c.scope.start <= i < c.scope.end for c in found)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["no ", "but no ", "was ruled out ", "fever ", "_", ".", " ", "Family history: x\n"])
def test_time_is_linear(piece):
    contexts(piece * 100_000)
