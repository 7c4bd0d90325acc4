import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.core import Span
from nosology.text import CATEGORIES, Context, context_of, contexts, mark_negated, tokenize
from nosology.text.context import TextContexts, find_triggers, phrase_variants
from nosology.text.tokens import rows, words_of
from tests.timing import assert_linear_time

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


def test_agreement_with_negspacy_on_shared_rules():
    shared = [row for row in NEGATION if row["shared_rule"] == "1"]
    agreed = sum(("negated" in flags(row["sentence"], row["mention"])) == (row["negspacy"] == "1") for row in shared)
    assert len(shared) >= 150
    assert agreed / len(shared) >= 0.95


@pytest.mark.parametrize("row", read("context_sentences.tsv"), ids=lambda row: f"{row['mention']} in {row['sentence']}")
def test_context(row):
    assert ",".join(flags(row["sentence"], row["mention"])) == row["contexts"]


def test_scope_and_trigger_point_into_the_text():
    text = "Admitted for sepsis.\nNo evidence of pneumonia or effusion, but cough."
    [context] = contexts(text)
    assert context.category == "negated"
    assert text[slice(*context.trigger)] == "No evidence of"
    assert text[slice(*context.scope)] == "pneumonia or effusion"


def test_scopes_end_with_the_sentence():
    assert contexts("Is it there? No. Evidence of pneumonia.") == []
    assert flags("Denies fever.\nCough.", "Cough") == []


def test_all_words_of_a_family_history_section_are_family():
    note = "Family History:\nDiabetes, stroke.\nNo cancer.\n\nSocial History:\nSmoker."
    assert flags(note, "stroke") == ["family"]
    assert flags(note, "cancer") == ["negated", "family"]
    assert flags(note, "Smoker") == []


def test_context_of_a_span_includes_each_of_its_words():
    text = "Cough without fever"
    assert context_of(text, [(0, 5), (0, len(text)), (5, 6), (3, 3)]) == [
        Context(False, False, False, False, False),
        Context(True, False, False, False, False),
        Context(False, False, False, False, False),
        Context(False, False, False, False, False),
    ]


def test_a_scope_has_at_most_forty_words():
    text = "no " + "word " * 60
    [context] = contexts(text)
    assert len(text[slice(*context.scope)].split()) == 40


@pytest.mark.parametrize("text", ["", " \n", "...", "no", "mother"])
def test_texts_without_context(text):
    assert contexts(text) == []
    assert context_of(text, []) == []
    assert context_of(text, [(0, len(text))]) == [Context(False, False, False, False, False)]


WORDS = st.sampled_from(
    ["no", "fever", "but", "was ruled out", "mother", ".", "\n", "history of", "pneumonia", "if", ",", "İ"]
)


@given(st.lists(WORDS).map(" ".join) | st.text())
def test_spans_are_inside_the_text_and_agree_with_flags(text):
    detected = contexts(text)
    assert detected == sorted(detected, key=lambda c: c.trigger)
    for category, scope, trigger in detected:
        assert 0 <= scope.start < scope.end <= len(text)
        assert 0 <= trigger.start < trigger.end <= len(text)
        assert getattr(context_of(text, [scope])[0], category)
    outside = context_of(text, [Span(i, i + 1) for i in range(len(text))])
    for i, context in enumerate(outside):
        for category in CATEGORIES:
            if getattr(context, category):
                assert any(c.category == category and c.scope.start <= i < c.scope.end for c in detected)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["no ", "but no ", "was ruled out ", "fever ", "_", ".", " ", "Family history: x\n"])
def test_time_is_linear(piece):
    assert_linear_time(lambda count: contexts(piece * count), 8_000)


def triggers(text):
    words = words_of(text)
    return [" ".join(words[m.first : m.last]) for m in find_triggers(words, 0, len(words))]


def test_phrase_variants_have_alternatives_and_no_accents():
    assert phrase_variants("|is|has_been seen") == {("seen",), ("is", "seen"), ("has", "been", "seen")}
    assert phrase_variants("se descartó") == {("se", "descartó"), ("se", "descarto")}
    assert phrase_variants("r/o") == {("r", "o")}


def test_the_first_and_longest_phrase_wins():
    assert triggers("no increase in pain, no evidence of stroke") == ["no increase", "no evidence of"]
    assert triggers("has not been ruled out by") == ["has not been ruled out"]


def test_triggers_are_inside_the_given_words():
    words = ["no", "evidence", "of", "no"]
    assert [(m.first, m.last) for m in find_triggers(words, 0, 2)] == [(0, 1)]
    assert [(m.first, m.last) for m in find_triggers(words, 1, 4)] == [(3, 4)]


def test_every_row_of_the_table_is_well_formed():
    for row in rows("context.tsv"):
        assert all(phrase_variants(row["phrase"])), row
        assert row["lang"] in ("en", "es"), row
        assert row["category"] in (*CATEGORIES, "pseudo", "termination"), row
        assert (row["direction"] in ("forward", "backward", "both")) == (row["category"] in CATEGORIES), row
        assert row["words"] == "" or int(row["words"]) > 0, row
        assert bool(row["ends"]) == (row["category"] == "termination"), row
        assert row["ends"] == "all" or set(filter(None, row["ends"].split(","))) <= set(CATEGORIES), row


def test_rows_are_unique():
    keys = [(row["phrase"], row["category"], row["direction"], row["lang"]) for row in rows("context.tsv")]
    assert len(keys) == len(set(keys))


def marked(text):
    return mark_negated(text, tokenize(text)).words


def test_mark_negated_marks_content_words_of_negated_scopes():
    assert marked("No evidence of pneumonia or the 2 effusions, but cough") == [
        *("no", "evidence", "of", "NOT_pneumonia", "or", "the", "2", "NOT_effusions", "but", "cough")
    ]
    assert marked("Paciente sin fiebre ni tos") == ["paciente", "sin", "NOT_fiebre", "ni", "NOT_tos"]


def test_mark_negated_keeps_offsets():
    text = "Denies chest pain."
    marked = mark_negated(text, tokenize(text))
    assert [text[a:b] for a, b in marked.spans()] == ["Denies", "chest", "pain"]


@given(st.text())
def test_mark_negated_adds_only_the_prefix(text):
    plain = tokenize(text)
    assert [word.removeprefix("NOT_") for word in mark_negated(text, plain).words] == plain.words


@pytest.mark.parametrize(
    ("sentence", "mention", "negated"),
    [
        ("CAD s/p CABG (no angina), AFib on rivaroxaban.", "AFib", False),
        ("CAD s/p CABG (no angina), AFib on rivaroxaban.", "angina", True),
        ("No fever; rash on the trunk.", "rash", False),
        ("Dry mucous membranes; low calcium was ruled out.", "membranes", False),
        ("Acute tubular necrosis was considered and excluded: bland sediment.", "necrosis", True),
        ("Sepsis was suspected but ruled out; pneumonia was confirmed.", "Sepsis", True),
        ("Sepsis was suspected but ruled out; pneumonia was confirmed.", "pneumonia", False),
        ("UTI, site not specified, weakness.", "weakness", False),
        ("Cystitis without hematuria, E. coli grew.", "coli", False),
        ("Alert without fever, chills or cough.", "cough", True),
        ("Chest pain, infarction ruled out by troponin.", "Chest pain", False),
        ("Infarction, embolism and dissection were ruled out.", "Infarction", True),
        ("No angina, on aspirin.", "aspirin", False),
        ("The embolism (ruled out by CT) was feared.", "embolism", True),
    ],
)
def test_scopes_end_at_brackets_and_semicolons(sentence, mention, negated):
    assert ("negated" in flags(sentence, mention)) == negated


@pytest.mark.parametrize(
    ("sentence", "mention", "category"),
    [
        ("Chest pain denied; troponin flat.", "Chest pain", "negated"),
        ("Sepsis evaluation: ruled out.", "Sepsis", "negated"),
        ("? DKA -> ruled out, gap normal.", "DKA", "negated"),
        ("HIV Ag/Ab nonreactive.", "HIV", "negated"),
        ("Flu/COVID/RSV PCR neg.", "COVID", "negated"),
        ("Rubella immune.", "Rubella", "negated"),
        ("Pressure ulcer: [ ] yes [x] no.", "Pressure ulcer", "negated"),
        ("[ ] asthma [x] gout", "asthma", "negated"),
        ("CKD? Labs pending.", "CKD", "uncertain"),
        ("Pt with ?CHF.", "CHF", "uncertain"),
    ],
)
def test_neighbours_of_a_mention(sentence, mention, category):
    start = sentence.index(mention)
    assert getattr(TextContexts(sentence).of_mention(start, start + len(mention)), category)
    other = TextContexts("Known gout.").of_mention(6, 10)
    assert not any(other)
