"""Recipes: built-in, overridden, renamed and wrong ones."""

import pytest

from nosology.config import built_in, load_federated_recipe, load_recipe
from nosology.core import ConfigError
from nosology.models.registry import REGISTRY, load_class


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_are_valid(name):
    assert load_recipe(name).kind in REGISTRY


def test_linear_recipe_has_the_default_settings():
    assert load_recipe("linear") == load_class("linear", "recipe")()


def test_overrides_replace_settings():
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
        (f"seed={10**30}", r"seed should be at most 2147483647; got 1000"),
        (f"fit.max_features=[{10**30}]", r"fit.max_features should be at most 2147483647; got \[1000"),
        ("seed.x=1", r"seed is a value, not a section"),
    ],
)
def test_wrong_settings_raise(setting, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_recipe("linear", [setting])


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("federation.privacy.noise=1", r"\[federation\.privacy\] has no key 'noise'; allowed: record_noise, "),
        ("federation.privacy.delta=2", r": federation\.privacy\.delta should be less than 1; got 2"),
        (
            "federation.privacy.record_noise=1e-300",
            r"\.record_noise should be 0 or at least 1e-09; got 1e-300",
        ),
        ("federation.privacy=1", r": federation\.privacy .*; got 1"),
    ],
)
def test_wrong_nested_settings_are_named_in_full(setting, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_recipe("heads-mlp", [setting])


@pytest.mark.parametrize("kind", ["[1]", "{a = 1}", "[['linear']]", "1", "nan", "true", "''"])
def test_kind_of_another_type_in_a_file_raises(tmp_path, kind):
    path = tmp_path / "mine.toml"
    path.write_text(f"kind = {kind}\n")
    for load in (load_recipe, load_federated_recipe):
        with pytest.raises(ConfigError, match=r"kind must be one of linear"):
            load(str(path))
        with pytest.raises(ConfigError, match=r"kind must be one of linear"):
            load(str(path), ["seed=1"])


def test_unknown_recipe_and_invalid_file_raise(tmp_path):
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
def test_old_setting_names_give_one_warning(recipe, old, read):
    with pytest.warns(FutureWarning, match="is now named") as lines:
        assert read(load_recipe(recipe, [old]))
    assert len(lines) == 1


def test_old_name_in_a_file_and_new_name_in_an_override(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text('kind = "linear"\n[labels]\nmost = 5\n')
    with pytest.warns(FutureWarning, match="the setting most is now named top_k"):
        assert load_recipe(str(path)).labels.top_k == 5
    with pytest.warns(FutureWarning, match="the setting most is now named top_k"):
        assert load_recipe(str(path), ["labels.top_k=3"]).labels.top_k == 3
