"""The release and seventh characters of a corpus, inferred from its codes."""

import pytest

from nosology.config import load_recipe
from nosology.core import Code, ConfigError, Note
from nosology.models.lexicon.lexicon_model import day_one
from nosology.models.lexicon.lexicon_settings import CodeSetSettings
from nosology.models.lexicon.lexicon_trainer import LexiconTrainer, resolve_code_set

CORPUS = CodeSetSettings(release="corpus", seventh="corpus")


def notes(*codes):
    return [Note(f"n{i}", "", codes=(Code("icd10cm", code),)) for i, code in enumerate(codes)]


@pytest.mark.parametrize(
    ("codes", "release", "seventh"),
    [
        (["M54.5", "R51", "S72.001"], "2020", False),  # R51 was divided in 2021
        (["M54.50", "R51.9", "S72.001A"], "2026", True),
        (["S72.001A", "W19.XXX", "W19.XXX", "T14.8"], "2026", False),
        ([], "2026", True),
    ],
)
def test_infers_release_and_seventh_character(codes, release, seventh):
    resolved = resolve_code_set(CORPUS, notes(*codes))
    assert (resolved.release, resolved.seventh) == (release, seventh)


def test_explicit_settings_stay():
    assert resolve_code_set(CodeSetSettings(release="2024", seventh=True), notes("R51", "S72.001")).release == "2024"
    assert resolve_code_set(CodeSetSettings(release="2024", seventh=True), notes("R51", "S72.001")).seventh is True


def test_release_can_be_a_number():
    assert load_recipe("day-one", ["codes.release=2019"]).codes.release == "2019"


def test_day_one_refuses_corpus_settings():
    with pytest.raises(ConfigError, match="only in training"):
        day_one(load_recipe("day-one", ["codes.release=corpus"]))


@pytest.mark.parametrize("setting", ["labels.min_notes=2", "decision.threshold=per_code", "decision.at_least_one=true"])
def test_unused_settings_are_refused(setting, tmp_path):
    with pytest.raises(ConfigError, match="lexicon"):
        LexiconTrainer(load_recipe("lexicon", [setting]), tmp_path).train(None, None, False)
