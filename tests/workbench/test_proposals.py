"""The proposed claim of a note: API, acceptance of the whole set, uncertain diagnoses, fields of the encounter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from nosology.cli import app as command_line
from nosology.core import Note
from nosology.workbench.app import create_app
from nosology.workbench.server_settings import ServerSettings
from nosology.workbench.uploads import claim_fields, normalize_encounter
from tests.workbench.conftest import fill_people, new_store
from tests.workbench.test_app import ApiClient, browser, csrf

SUMMARY = (
    "Discharge summary\n68 yo female admitted with dyspnea.\n\nDischarge diagnoses:\n"
    "1. Acute on chronic systolic heart failure\n2. Hypertension\n3. CKD stage 3b\n4. Probable pneumonia\n"
)
STAY = {"setting": "inpatient", "date": "2025-11-03", "sex": "F", "age": 68}
SET = ["I13.0", "I50.23", "J18.9", "N18.32"]


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """A server with the day-one coder, and the API tokens of its people."""
    address = new_store(request, tmp_path_factory.mktemp("claims"), "sqlite")
    tokens = fill_people(address)
    app = create_app(ServerSettings(bundle=Path("day-one"), store=address))
    with TestClient(app, base_url="http://localhost") as client:
        yield client, tokens


@pytest.fixture
def ann(server):
    return ApiClient(server[0], server[1]["ann"])


def codes(claim) -> list[str]:
    return [item["code"] for item in claim["codes"]]


def test_the_claim_of_a_note_is_that_of_the_command_line(ann, tmp_path):
    note = ann.note("summary", SUMMARY, **STAY)
    claim = ann.get(f"/notes/{note}/claim").json()
    assert codes(claim) == SET and claim["id"] == "summary"
    first = claim["codes"][0]
    assert (first["role"], first["poa"], first["basis"]) == ("principal", "Y", "rule") and first["evidence"]
    assert "I10" in [item["code"] for item in claim["left_out"]]
    assert claim["groups"]["drg"] and not claim["conflicts"]
    path = tmp_path / "notes.jsonl"
    path.write_text(json.dumps({"id": "summary", "text": SUMMARY, **STAY}))
    printed = CliRunner().invoke(command_line, ["claim", str(path), "--json"])
    assert json.loads(printed.stdout) == claim
    assert "claim" in [row["what"] for row in audit(ann, note)]


def audit(client, note: int) -> list[dict]:
    from sqlalchemy import select

    from nosology.workbench.database import read_transaction
    from nosology.workbench.store_tables import audit

    with read_transaction(client.client.app.state.services.engine) as connection:
        return [dict(row) for row in connection.execute(select(audit).where(audit.c.note_id == note)).mappings()]


def test_the_change_dialog_has_the_siblings_that_fit_the_note_first(server, ann):
    note = ann.note("siblings", SUMMARY.replace("Acute on chronic systolic", "Chronic systolic"), **STAY)
    client = browser(server, "ann")
    address = "/codes/icd10cm/I50.20?instead_of=icd10cm:I50.22"
    plain, ranked = (client.get(address + also).text for also in ("", f"&note={note}"))

    def siblings(page):
        return re.findall(r'<a href="/codes/icd10cm/(I50[.]2\d)"', page[page.index("<h3>Siblings") :])

    assert siblings(plain) == ["I50.20", "I50.21", "I50.22", "I50.23"] and "best fit first" not in plain
    assert siblings(ranked)[0] == "I50.22" and sorted(siblings(ranked)) == siblings(plain)
    assert "best fit first" in ranked and "siblings" in [row["what"] for row in audit(ann, note)]
    assert "best fit first" not in client.get(f"/codes/icd10cm/J18.9?instead_of=icd10cm:I50.22&note={note}").text
    assert client.get(f"{address}&note=999999").status_code == 404


def test_the_claim_of_a_text(ann):
    claim = ann.post("/claim", {"text": SUMMARY, **STAY}).json()
    assert codes(claim) == SET and claim["id"] == ""
    outpatient = ann.post("/claim", {"text": "Assessment: probable pneumonia. Cough.", "setting": "outpatient"}).json()
    assert "J18.9" not in codes(outpatient) and "groups" not in outpatient
    assert next(item for item in outpatient["left_out"] if item["code"] == "J18.9")["rule"] == "uncertain"


def test_the_claim_of_a_text_uses_the_verifier_as_that_of_the_command_line(ann, tmp_path):
    given = {"id": "n", "text": "Assessment: patient with sepsis; MRSA.", "setting": "outpatient"}
    claim = ann.post("/claim", given).json()
    assert [(item["code"], item["rule"]) for item in claim["codes"]] == [("A41.02", "sibling-verifier")]
    path = tmp_path / "notes.jsonl"
    path.write_text(json.dumps(given))
    assert json.loads(CliRunner().invoke(command_line, ["claim", str(path), "--json"]).stdout) == claim


@pytest.mark.parametrize("wrong", [{"setting": "home"}, {"date": "2001-01-01"}, {"age": 200}, {"surprise": 1}])
def test_a_claim_with_a_wrong_field_is_refused(ann, wrong):
    response = ann.post("/claim", {"text": "secret", **wrong})
    assert response.status_code == 422 and "secret" not in response.text


def test_a_note_of_a_day_without_code_set_has_no_claim(server, ann):
    note = ann.note("old", SUMMARY, date="2001-01-01")
    assert "no icd10cm release is known for 2001-01-01" in ann.get(f"/notes/{note}/claim").json()["detail"]
    assert browser(server, "ann").get(f"/notes/{note}").status_code == 200


def test_uncertain_diagnoses_wait_for_the_claim(ann):
    note = ann.note("uncertain", "Assessment: probable pneumonia. Cough.", setting="outpatient")
    pneumonia = next(item for item in ann.get(f"/notes/{note}").json()["suggestions"] if item["code"] == "J18.9")
    assert not pneumonia["accepted"] and pneumonia["evidence"][0]["context"] == ["uncertain"]
    (coded,) = [
        item
        for item in ann.post("/code", {"text": "Assessment: probable pneumonia."}).json()["suggestions"]
        if item["code"] == "J18.9"
    ]
    assert not coded["accepted"]


def test_one_action_accepts_the_proposed_set(ann):
    note = ann.note("accept", SUMMARY, **STAY)
    after = ann.decide(note, "claim", 0).json()
    assert after == {"version": 4, "status": "open", "codes": [f"icd10cm:{code}" for code in SET]}
    history = ann.get(f"/notes/{note}/decisions").json()
    assert [(row["action"], row["details"]["code"]) for row in history] == [("claim", f"icd10cm:{c}") for c in SET]
    assert history[0]["details"]["rule"] == "hypertension-heart-failure-kidney-disease"
    assert "rule" not in history[1]["details"]
    chosen = ann.get(f"/notes/{note}").json()["codes"]
    assert [item["origin"] for item in chosen] == ["rule", "suggested", "suggested", "suggested"]
    assert {item["poa"] for item in chosen} == {"Y"} and chosen[0]["evidence"]
    again = ann.decide(note, "claim", 4)
    assert again.status_code == 422 and "no code that is still to be decided" in again.json()["detail"]
    assert ann.decide(note, "change", 4, code="icd10cm:I13.0", to="icd10cm:I13.2").status_code == 200
    assert ann.get(f"/notes/{note}").json()["codes"][0]["origin"] == "changed"


def test_a_claim_that_is_accepted_again_with_its_key_is_recorded_once(ann):
    note = ann.note("again", SUMMARY, **STAY)
    first, second = (ann.decide(note, "claim", 0, key="k-claim") for _ in range(2))
    assert second.status_code == 200 and second.json() == first.json()
    assert len(ann.get(f"/notes/{note}/decisions").json()) == 4


def test_accepting_the_claim_overwrites_no_decision(ann):
    note = ann.note("partly", SUMMARY, **STAY)
    assert ann.decide(note, "reject", 0, code="icd10cm:J18.9", reason="negated").status_code == 200
    assert ann.decide(note, "add", 1, code="icd10cm:I50.23").status_code == 200
    assert ann.decide(note, "claim", 0).status_code == 409
    assert ann.decide(note, "claim", 2).json()["codes"] == [f"icd10cm:{c}" for c in ("I50.23", "I13.0", "N18.32")]
    shown = ann.get(f"/notes/{note}").json()
    assert shown["rejected"] == {"icd10cm:J18.9": "negated"} and shown["codes"][0]["origin"] == "added"
    assert ann.decide(note, "finish", 4).status_code == 200
    assert ann.decide(note, "claim", 5).status_code == 422


def test_fields_of_the_encounter():
    def of(**extra):
        return normalize_encounter(Note("n", "x", extra=extra)).extra

    assert of(setting="Inpatient")["kind"] == "inpatient" and of(setting="emergency")["kind"] == "outpatient"
    assert of(kind="inpatient", setting="emergency")["kind"] == "inpatient" and "kind" not in of(setting="home")
    assert of(age="0.5")["age"] == 0.5 and of(age="70")["age"] == 70 and "age" not in of(age="1e3")
    fields = claim_fields(of(setting="EMERGENCY", role="nurse", discharged="2025-11-03 10:00", age=3))
    assert fields == {"age": 3, "setting": "emergency", "discharged": "2025-11-03"}
    assert claim_fields(of(kind="outpatient", sex="female")) == {"sex": "F", "setting": "outpatient"}


def test_the_page_shows_the_proposed_claim(server, ann):
    note = ann.note("page", SUMMARY, **STAY)
    client = browser(server, "ann")
    page = client.get(f"/notes/{note}").text
    assert "Proposed claim" in page and 'data-act="claim"' in page and "combination code" in page
    data = {"action": "claim", "version": 0}
    after = client.post(f"/notes/{note}/decide", data=data, headers={"x-csrf-token": csrf(client)})
    assert after.status_code == 200 and 'data-act="claim"' not in after.text
    assert "hypertension-heart-failure-kidney-disease" in client.get(f"/notes/{note}/history").text
