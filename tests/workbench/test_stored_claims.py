"""Proposed claims that are stored with the suggestions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import select

from nosology.claims.claim import build_claim
from nosology.codes.installed import InstalledFile
from nosology.core import EvidenceSpan, Suggestion
from nosology.workbench import stored_claims
from nosology.workbench.database import read_transaction
from nosology.workbench.proposals import _build, propose_claim
from nosology.workbench.store_tables import codings
from nosology.workbench.stored_claims import ClaimInput
from tests.workbench.test_proposals import STAY, SUMMARY, ann, codes, server  # noqa: F401

FIELDS = tuple(STAY.items())


def suggestion(words: str, code: str) -> Suggestion:
    start = SUMMARY.index(words)
    evidence = (EvidenceSpan(start, start + len(words), words, 1.0),)
    return Suggestion("icd10cm", code, words, 0.9, True, evidence)


@pytest.fixture
def made_of() -> ClaimInput:
    found = [("Acute on chronic systolic heart failure", "I50.23"), ("Hypertension", "I10"), ("CKD stage 3b", "N18.32")]
    return ClaimInput(SUMMARY, FIELDS, (), tuple(suggestion(*it) for it in found))


def test_a_stored_claim_is_the_claim(made_of):
    built = build_claim("", SUMMARY, made_of.suggestions, STAY)
    assert built.codes and built.left_out
    stored = made_of.to_json()
    assert made_of.from_json(stored) == made_of.build() == built
    assert SUMMARY[:40] not in stored


def test_a_claim_of_other_words_fields_reports_or_another_program_is_not_used(made_of, monkeypatch):
    stored = made_of.to_json()
    others = {"text": SUMMARY + " ", "fields": (("setting", "outpatient"),), "reports": ((0, 9),)}
    for name, value in others.items():
        assert replace(made_of, **{name: value}).from_json(stored) is None
    monkeypatch.setattr(stored_claims, "_program", lambda: "another")
    assert made_of.from_json(stored) is None


def test_the_program_is_that_of_its_version_files_and_installed_code_sets(monkeypatch, tmp_path):
    program = stored_claims._program.__wrapped__
    before = program()
    assert before == program()
    with monkeypatch.context() as patch:
        patch.setattr(stored_claims, "__version__", "0")
        assert before != program()
    (tmp_path / "claims").mkdir()
    rules = tmp_path / "claims" / "rules.toml"
    rules.write_text("one")
    monkeypatch.setattr(stored_claims.nosology, "__file__", str(tmp_path / "__init__.py"))
    before = program()
    (tmp_path / "claims" / "__pycache__").mkdir()
    (tmp_path / "claims" / "__pycache__" / "rules.pyc.123").touch()
    assert before == program()
    rules.write_text("three")
    assert before != program()
    before = program()
    monkeypatch.setattr(stored_claims, "installed_files", lambda: [InstalledFile("icd10cm", "2026", "tabular", rules)])
    assert before != program()


def test_the_background_coder_stores_the_claim_that_pages_show(ann):  # noqa: F811
    note = ann.note("stored", SUMMARY, **STAY)
    services = ann.client.app.state.services
    with read_transaction(services.engine) as connection:
        (stored,) = connection.scalars(select(codings.c.claim).where(codings.c.note_id == note))
    assert [item["code"] for item in stored["claim"]["codes"]] == codes(ann.get(f"/notes/{note}/claim").json())
    user = type("Somebody", (), {"id": 1})()
    case = services.read_case(user, note, "")
    _build.cache_clear()
    marked = {**stored, "claim": {**stored["claim"], "codes": stored["claim"]["codes"][:1]}}
    shown = propose_claim(replace(case, coder={**case.coder, "claim": json.dumps(marked)}))
    assert len(shown.codes) == 1 and shown.id == "stored" and shown.text == case.note["text"]
    changed = replace(case, note={**case.note, "encounter": {**case.note["encounter"], "setting": "outpatient"}})
    assert len(propose_claim(changed).codes) > 1 and not propose_claim(changed).encounter.is_inpatient
