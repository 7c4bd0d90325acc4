import json

import pytest

from nosology.core import Code, ConfigError, DataError
from nosology.corpora.corpus import Corpus
from nosology.corpora.prepare import (
    KINDS,
    CorpusRecipe,
    ExpectedCounts,
    built_in_recipes,
    compare_with_expected,
    load_corpus_recipe,
    override_recipe,
    prepare,
)


def code(value, system="icd10cm"):
    return {"system": system, "code": value}


@pytest.fixture
def notes(tmp_path):
    records = [
        {"id": "a", "text": "one", "split": "train", "codes": [code("I10"), code("E11.9"), code("401.9", "icd9cm")]},
        {"id": "b", "text": "two", "split": "dev", "codes": [code("I10"), code("02HV33Z", "icd10pcs")]},
        {"id": "c", "text": "three", "split": "dev", "codes": [code("401.9", "icd9cm")]},
        {"id": "d", "text": "four"},
        {"id": "e", "text": "five", "split": "train", "codes": [code("E11.9")]},
        {"id": "a", "text": "again"},
        {"id": "f", "text": ""},
    ]
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_without_a_recipe_all_notes_are_kept_and_issues_counted(notes, tmp_path):
    corpus = prepare("table", [notes], tmp_path / "c")
    assert [note.id for note in corpus.notes()] == ["a", "b", "c", "d", "e"]
    counts = corpus.manifest["counts"]
    assert counts["splits"] == {"train": 2, "dev": 2, "none": 1}
    assert counts["troubles"] == {
        "duplicate_id": {"count": 1, "first": ["notes.jsonl row 6"]},
        "empty_note": {"count": 1, "first": ["notes.jsonl row 7"]},
    }
    assert corpus.manifest["filters"] == []
    assert Corpus.open(tmp_path / "c").hash == prepare("table", [notes], tmp_path / "d").hash


def test_recipe_counts_codes_over_all_notes_before_filtering(notes, tmp_path):
    rules = CorpusRecipe(
        kind="table",
        systems=("icd10cm", "icd10pcs"),
        min_count=2,
        drop_uncoded=True,
        expected=ExpectedCounts(notes=3, train=2, test=7, codes=3),
    )
    splits = tmp_path / "splits.csv"
    splits.write_text("id,split\na,test\nb,train\n")
    corpus = prepare("table", [notes], tmp_path / "c", recipe=rules, splits=[splits])
    assert [(note.id, note.split, note.codes) for note in corpus.notes()] == [
        ("a", "test", (Code("icd10cm", "I10"), Code("icd10cm", "E11.9"))),
        ("b", "train", (Code("icd10cm", "I10"),)),
    ]
    assert corpus.manifest["filters"] == [
        {"filter": "systems", "keep": ["icd10cm", "icd10pcs"], "code_occurrences_left_out": 2, "notes_left_out": 1},
        {"filter": "min_count", "min_count": 2, "code_occurrences_left_out": 1, "notes_left_out": 0},
        {"filter": "drop_uncoded", "notes_left_out": 1},
        {"filter": "splits", "files": ["splits.csv"], "notes_left_out": 1, "entries_without_note": 0},
    ]
    assert compare_with_expected(corpus) == [("notes", 3, 2), ("train", 2, 1), ("test", 7, 1), ("codes", 3, 2)]


def test_strict_raises_for_a_value_that_would_be_dropped(notes, tmp_path):
    with pytest.raises(DataError, match=r"notes\.jsonl row 6: found notes with the id of an earlier note"):
        prepare("table", [notes], tmp_path / "c", strict=True)
    assert not (tmp_path / "c").exists()


def test_a_corpus_without_notes_is_refused(notes, tmp_path):
    with pytest.raises(DataError, match="no note is left after reading and filtering"):
        prepare("table", [notes], tmp_path / "c", recipe=CorpusRecipe(kind="table", min_count=99, drop_uncoded=True))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "mimic5",
            {},
            "KIND must be one of mimic4, .*, table or reviews; got 'mimic5'",
        ),
        ("mimic4", {"lang": "en"}, "--lang applies to codiesp and table; got kind mimic4"),
        ("mimic4", {"system": "icd9cm"}, "--system applies to table; got kind mimic4"),
        ("table", {"system": "icd11"}, "--system must be one of"),
        ("table", {"recipe": "mimic4-icd10"}, "the recipe is for kind mimic4; got kind table"),
    ],
)
def test_invalid_arguments_raise_config_error(notes, tmp_path, kind, options, message):
    with pytest.raises(ConfigError, match=message):
        prepare(kind, [notes], tmp_path / "c", **options)


def test_unreadable_path_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"cannot read x+\.jsonl: File name too long"):
        prepare("table", [f"{'x' * 300}.jsonl"], tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_built_in_recipes_are_valid_and_their_splits_add_up():
    assert {
        "mimic4-icd10",
        "mimic4-icd9",
        "mimic3-clean",
        "mimic3-full",
        "mimic4-radiology",
    } <= built_in_recipes().keys()
    for name in built_in_recipes():
        recipe = load_corpus_recipe(name)
        assert recipe.kind in KINDS
        expected = recipe.expected
        if expected.train:
            assert expected.train + expected.dev + expected.test == expected.notes


def test_settings_override_the_recipe_and_drop_its_expected_counts():
    recipe = override_recipe("mimic4-icd10", "mimic4", min_count=5)
    assert (recipe.min_count, recipe.systems, recipe.drop_uncoded) == (5, ("icd10cm", "icd10pcs"), True)
    assert recipe.expected.notes is None
    assert override_recipe("mimic4-icd10", "mimic4").expected.notes == 122279
    with pytest.raises(ConfigError, match=r"--systems: must be some of icd9cm, .*; got icd11"):
        override_recipe(None, "table", systems=["icd11"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("kind = ", "not a TOML file"),
        ("min_count = 3", "kind: Field required"),
        ('kind = "table"\nmincount = 3', "mincount is not a key; allowed are kind, name, about, systems, min_count"),
        ('kind = "table"\n[expected]\nnote = 3', "expected.note is not a key; allowed are notes, train"),
        ('kind = "table"\nmin_count = 0', "min_count: Input should be greater than or equal to 1"),
    ],
)
def test_invalid_recipes_raise_config_error(tmp_path, content, message):
    (tmp_path / "r.toml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_corpus_recipe(tmp_path / "r.toml")


def test_unknown_recipe_lists_the_built_in_recipes():
    with pytest.raises(ConfigError, match=r"recipe must be a file or one of .*mimic4-icd10.*; got 'mimic5'"):
        load_corpus_recipe("mimic5")
