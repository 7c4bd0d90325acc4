import pytest

from nosology.core import ConfigError
from nosology.corpora.prepare import KINDS
from nosology.corpora.recipe import adjusted, built_in, load_recipe


def test_built_in_recipes_are_sound_and_their_splits_add_up():
    assert {"mimic4-icd10", "mimic4-icd9", "mimic3-clean", "mimic3-full", "mimic4-radiology"} <= built_in().keys()
    for name in built_in():
        recipe = load_recipe(name)
        assert recipe.kind in KINDS
        expected = recipe.expected
        if expected.train:
            assert expected.train + expected.dev + expected.test == expected.notes


def test_settings_replace_those_of_the_recipe_and_its_expected_counts():
    recipe = adjusted("mimic4-icd10", "mimic4", min_count=5)
    assert (recipe.min_count, recipe.systems, recipe.drop_uncoded) == (5, ("icd10cm", "icd10pcs"), True)
    assert recipe.expected.notes is None
    assert adjusted("mimic4-icd10", "mimic4").expected.notes == 122279
    with pytest.raises(ConfigError, match=r"--systems: must be some of icd9cm, .*; got icd11"):
        adjusted(None, "table", systems=["icd11"])


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
def test_bad_recipes_are_answered_by_a_sentence(tmp_path, content, message):
    (tmp_path / "r.toml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_recipe(tmp_path / "r.toml")


def test_an_unknown_recipe_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"recipe must be a file or one of .*mimic4-icd10.*; got 'mimic5'"):
        load_recipe("mimic5")
