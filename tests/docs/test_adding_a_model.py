"""The toy model of docs/adding_a_model.md is registered, trained, saved and loaded as the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import nosology.models
from nosology.config import load_recipe
from nosology.core import Code
from nosology.core.model import AttentionWeights
from nosology.models.bundle import Bundle
from nosology.models.registry import REGISTRY, ModelEntry
from nosology.models.train import train
from nosology.text.tokens import words_of
from tests.conftest import PHRASES, small_notes

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_model.md"
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REGISTRY_FILE = "nosology/models/registry.py"


@pytest.fixture
def recipe_path(tmp_path, monkeypatch) -> Path:
    """The recipe of the page; its package is importable and its kind is registered."""
    blocks = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    entry = blocks.pop(REGISTRY_FILE)
    for name, text in blocks.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "nosology/models/toy/__init__.py").touch()
    monkeypatch.setattr(nosology.models, "__path__", [*nosology.models.__path__, str(tmp_path / "nosology/models")])
    [(kind, parts)] = eval(f"{{{entry}}}", {"ModelEntry": ModelEntry}).items()
    assert kind not in REGISTRY
    monkeypatch.setitem(REGISTRY, kind, parts)
    yield tmp_path / "toy.toml"
    for module in [name for name in sys.modules if name.startswith("nosology.models.toy")]:
        del sys.modules[module]
    vars(nosology.models).pop("toy", None)


def test_toy_model_trains_saves_loads_and_codes_a_note(recipe_path, small_corpus, tmp_path):
    bundle = train(load_recipe(str(recipe_path)), [small_corpus], tmp_path / "bundle")
    loaded = Bundle.load(tmp_path / "bundle")
    model = loaded.model
    assert model.kind == "toy" and set(model.labels.codes) == set(PHRASES)
    assert isinstance(model, AttentionWeights)

    notes = small_notes(24, seed=1)  # not in the corpus
    probabilities = model.probabilities(notes)
    assert probabilities == pytest.approx(bundle.model.probabilities(notes), abs=1e-6)
    gold = model.labels.encode([note.codes for note in notes]).toarray() > 0
    icd10 = [code.system != "icd9cm" for code in model.labels.codes]  # models choose among the codes of one version
    assert ((probabilities > 0.5) == gold)[:, icd10].mean() > 0.95

    code = Code("icd10cm", "J18.9")
    note = next(note for note in notes if code in note.codes)
    (spans,) = model.evidence(note, [model.labels.codes.index(code)])
    assert spans and any(word in spans[0].text.lower() for word in words_of(PHRASES[code]))
    assert all(note.text[span.start : span.end] == span.text for span in spans)
