"""Day one in every code system that has a table."""

import pytest

from nosology.core import ConfigError
from nosology.serving.coder import Coder

TEXT = (
    "Diagnosis: Acute cholecystitis. No pneumonia.\nPast surgical history: total hip replacement.\n"
    "Procedures: Laparoscopic cholecystectomy. Hemodialysis was performed."
)


def suggested(*systems: str) -> dict[str, set[str]]:
    """The accepted codes by system; the evidence of each is text of the note."""
    coder = Coder.load("day-one", systems=systems)
    result: dict[str, set[str]] = {}
    for item in coder.code(TEXT):
        assert item.evidence and all(TEXT[it.start : it.end] == it.text for it in item.evidence)
        assert item.description
        if item.accepted:
            result.setdefault(item.system, set()).add(item.code)
    return result


def test_each_system():
    assert "575.0" in suggested("icd9cm")["icd9cm"] and "486" not in suggested("icd9cm")["icd9cm"]
    assert suggested("icd10pcs") == {"icd10pcs": {"0FT44ZZ", "5A1D70Z"}}
    assert suggested("icd9proc") == {"icd9proc": {"51.23", "39.95"}}


def test_several_systems_at_once():
    both = suggested("icd10cm", "icd10pcs")
    assert "K81.0" in both["icd10cm"] and both["icd10pcs"] == {"0FT44ZZ", "5A1D70Z"}
    assert both["icd10cm"] == suggested("icd10cm")["icd10cm"]


def test_an_unknown_system_is_refused():
    with pytest.raises(ConfigError, match="system must be one of"):
        Coder.load("day-one", systems=["icd11"])


def test_it_cannot_be_saved(tmp_path):
    with pytest.raises(ConfigError, match="built in"):
        Coder.load("day-one", systems=["icd9proc"]).model.save(tmp_path)
