"""A wrong recipe is answered with its place and what is allowed."""

import pytest

from nosology.config import built_in, load_recipe
from nosology.core import ConfigError
from nosology.models.registry import REGISTRY, load_class


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_are_valid(name):
    assert load_recipe(name).kind in REGISTRY


def test_the_linear_recipe_states_the_defaults():
    assert load_recipe("linear") == load_class("linear", "recipe")()


def test_overrides():
    recipe = load_recipe("linear", ["decision.threshold=0.3", "fit.c=[2.0]", "labels.systems=['icd9cm']"])
    assert recipe.decision.threshold == 0.3
    assert recipe.fit.c == [2.0]
    assert recipe.labels.systems == ["icd9cm"]
    assert load_recipe("linear", ["decision.threshold=per_code"]).decision.threshold == "per_code"


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("fit.cc=1", r"\[fit\] has no key 'cc'; allowed: c, max_features"),
        ("fitt.c=1", r"a recipe has no key 'fitt'; allowed: kind, seed"),
        ("fit.negatives=0", r"fit.negatives .*greater than or equal to 1.*got 0"),
        ("decision.threshold=1.3", r"decision.threshold should be .*1, or .*'global' or 'per_code'; got 1.3"),
        ("fit.c=[-1]", r"fit.c.0 should be greater than 0; got -1"),
        ("fit.c=[nan]", r"fit.c.0 should be a finite number"),
        ("fit.max_features=[0]", r"fit.max_features.0 should be greater than 0; got 0"),
        ("kind=['linear']", r"kind must be one of linear.*got \['linear'\]"),
        ("labels.systems=['icd11']", r"labels.systems.0.*icd10cm.*got 'icd11'"),
        ("kind=quadratic", r"kind must be one of linear.*got 'quadratic'"),
        ("fit.c", r"--set takes section.key=value; got 'fit.c'"),
        ("seed.x=1", r"seed is a value, not a section"),
    ],
)
def test_wrong_settings(setting, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_recipe("linear", [setting])


def test_unknown_recipe_and_broken_file(tmp_path):
    with pytest.raises(ConfigError, match=r"recipe must be a file or one of .*linear.*; got 'liner'"):
        load_recipe("liner")
    path = tmp_path / "mine.toml"
    path.write_text("kind = ")
    with pytest.raises(ConfigError, match=r"mine\.toml is not TOML"):
        load_recipe(str(path))
    path.write_text('kind = "linear"\n[fit]\nc = [0.5]\n')
    assert load_recipe(str(path)).fit.c == [0.5]


@pytest.mark.parametrize(
    ("recipe", "old", "read"),
    [
        ("hmhan", "model.members=2", lambda recipe: recipe.model.ensemble_size == 2),
        ("linear", "labels.most=7", lambda recipe: recipe.labels.top_k == 7),
        ("laat", "training.choose_by=micro_f1", lambda recipe: recipe.training.monitor == "micro_f1"),
        ("dual_laat", "model.alike=false", lambda recipe: recipe.model.tie_initialization is False),
        ("plant", "language.training.choose_by=map", lambda recipe: recipe.language.training.monitor == "map"),
    ],
)
def test_old_setting_names_are_read_with_one_line(recipe, old, read):
    with pytest.warns(FutureWarning, match="is now named") as lines:
        assert read(load_recipe(recipe, [old]))
    assert len(lines) == 1


def test_an_old_name_in_a_recipe_file_and_a_new_one_in_set(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text('kind = "linear"\n[labels]\nmost = 5\n')
    with pytest.warns(FutureWarning, match="the setting most is now named top_k"):
        assert load_recipe(str(path)).labels.top_k == 5
    with pytest.warns(FutureWarning, match="the setting most is now named top_k"):
        assert load_recipe(str(path), ["labels.top_k=3"]).labels.top_k == 3
