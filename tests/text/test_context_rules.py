from nosology.text.context import CATEGORIES, find_triggers, phrase_variants
from nosology.text.data import rows
from nosology.text.tokens import words_of


def found(text):
    words = words_of(text)
    return [" ".join(words[m.first : m.last]) for m in find_triggers(words, 0, len(words))]


def test_alternatives_and_lost_accents():
    assert phrase_variants("|is|has_been seen") == {("seen",), ("is", "seen"), ("has", "been", "seen")}
    assert phrase_variants("se descartó") == {("se", "descartó"), ("se", "descarto")}
    assert phrase_variants("r/o") == {("r", "o")}


def test_the_first_and_longest_phrase_wins():
    assert found("no increase in pain, no evidence of stroke") == ["no increase", "no evidence of"]
    assert found("has not been ruled out by") == ["has not been ruled out"]


def test_matches_keep_to_their_stretch():
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


def test_no_row_stands_twice():
    keys = [(row["phrase"], row["category"], row["direction"], row["lang"]) for row in rows("context.tsv")]
    assert len(keys) == len(set(keys))
