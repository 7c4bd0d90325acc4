"""The API of encounters and documents: import into one encounter, correction, withdrawal, new data."""

from __future__ import annotations

import time

from sqlalchemy import select

from nosology.workbench.database import read_transaction
from nosology.workbench.store_tables import audit
from tests.workbench.conftest import NOTE, ApiClient

CT = "CT CHEST\nImpression: pneumonia of the right lower lobe."


def wait_until_coded(client: ApiClient, note: int) -> dict:
    patience = time.monotonic() + 100
    while time.monotonic() < patience:
        found = client.get(f"/notes/{note}").json()
        if found["coding"] == "done":
            return found
        time.sleep(0.05)
    raise AssertionError("the encounter was not coded")


def test_an_encounter_from_first_document_to_withdrawal(server, ann):
    note = ann.note("stay", NOTE, document="h&p", sex="F")
    alone = wait_until_coded(ann, note)
    body = {"notes": [{"id": "report", "text": CT, "encounter": "stay", "document": "radiology"}]}
    counts = ann.post("/notes", body).json()
    assert (counts["added"], counts["encounters"], counts["corrected"]) == (1, 0, 0)
    both = wait_until_coded(ann, note)
    assert [(it["ref"], it["kind"], it["state"]) for it in both["documents"]] == [
        ("stay", "h&p", "current"),
        ("report", "radiology", "current"),
    ]
    start = both["documents"][1]["start"]
    assert both["text"][start:] == CT
    spans = [span for it in both["suggestions"] if it["code"] == "J18.9" for span in it["evidence"]]
    assert any(span["start"] >= start for span in spans), "evidence in the report"
    body["notes"][0]["text"] = CT.replace("right", "left")
    assert ann.post("/notes", body).json()["corrected"] == 1
    assert ann.post("/notes", body).json()["known"] == 1
    found = ann.post("/documents/find", {"ref": "report"}).json()
    assert (found["note_id"], found["version"], found["state"]) == (note, 2, "current")
    with read_transaction(server[0].app.state.services.engine) as connection:
        logged = connection.execute(select(audit.c.note_id, audit.c.object).where(audit.c.what == "find document"))
        assert logged.all() == [(note, f"document {found['id']}")]
    changed = ann.client.delete(f"/api/v1/documents/{found['id']}", headers=ann.headers)
    assert changed.status_code == 200
    assert [it["state"] for it in changed.json()["documents"]] == ["current", "corrected", "withdrawn"]
    again = ann.client.delete(f"/api/v1/documents/{found['id']}", headers=ann.headers)
    assert again.status_code == 422 and "already" in again.json()["detail"]
    after = wait_until_coded(ann, note)
    assert after["suggestions"] == alone["suggestions"]
    assert after["text"].rstrip() == NOTE.rstrip()


def test_data_of_an_encounter_by_api(server, ann):
    note = ann.note("data", NOTE, age=70, setting="inpatient", date="2025-11-03")
    path = f"/api/v1/notes/{note}/encounter"
    response = ann.client.patch(path, headers=ann.headers, json={"sex": "F", "born": "1950-01-02", "disposition": "03"})
    assert response.status_code == 200, response.text
    assert response.json()["encounter"].items() >= {"sex": "F", "age": 75, "disposition": "03"}.items()
    for wrong in ({"sex": "X"}, {"admitted": "2026-01-01", "discharged": "2025-01-01"}, {"color": "red"}, {}):
        assert ann.client.patch(path, headers=ann.headers, json=wrong).status_code == 422
    history = ann.get(f"/notes/{note}/decisions").json()
    assert history[-1]["action"] == "encounter" and history[-1]["details"]["before"]["sex"] is None
    decided = ann.decide(note, "encounter", 1, encounter={"payer": "Medicare"})
    assert decided.status_code == 200, decided.text
    assert ann.get(f"/notes/{note}").json()["encounter"]["payer"] == "Medicare"
    assert ann.client.patch("/api/v1/notes/99999/encounter", headers=ann.headers, json={"sex": "F"}).status_code == 404


def test_documents_are_withdrawn_by_reviewers_and_added_by_imports(server, ann):
    note = ann.note("roles", NOTE)
    document = ann.get(f"/notes/{note}").json()["documents"][0]["id"]
    assert ann.decide(note, "withdraw", 0, document=document).status_code == 403
    assert ann.decide(note, "document", 0).status_code == 403
    rita = ApiClient(server[0], server[1]["rita"])
    assert rita.decide(note, "withdraw", 0, document=document + 999).status_code == 422
    assert rita.decide(note, "withdraw", 0, document=document).status_code == 200
    assert wait_until_coded(ann, note)["suggestions"] == []
