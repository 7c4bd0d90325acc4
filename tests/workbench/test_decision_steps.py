"""Steps of several decisions: accept all above a threshold, present on admission for all; and the group panel."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nosology.workbench.app import create_app
from nosology.workbench.server_settings import ServerSettings
from tests.claims.test_drg_weights import TEXT
from tests.workbench.conftest import ApiClient, browser, csrf, fill_people, new_store

SUMMARY = (
    "Discharge summary\n68 yo female admitted with dyspnea.\n\nDischarge diagnoses:\n"
    "1. Acute on chronic systolic heart failure\n2. Hypertension\n3. CKD stage 3b\n4. Probable pneumonia\n"
    "5. Long term use of insulin\n"
)
STAY = {"setting": "inpatient", "date": "2025-11-03", "sex": "F", "age": 68}


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """A server with the day-one coder and the weights of FY 2026, and the API tokens of its people."""
    folder = tmp_path_factory.mktemp("steps")
    address = new_store(request, folder, "sqlite")
    tokens = fill_people(address)
    table = folder / "table5.txt"
    table.write_bytes(TEXT.encode("cp1252"))
    app = create_app(ServerSettings(bundle=Path("day-one"), store=address, drg_weights=(table,)))
    with TestClient(app, base_url="http://localhost") as client:
        yield client, tokens


@pytest.fixture
def ann(server):
    return ApiClient(server[0], server[1]["ann"])


def history(client, note: int) -> list[tuple[str, str]]:
    rows = client.get(f"/notes/{note}/decisions").json()
    return [(row["action"], row["details"].get("code", "").partition(":")[2]) for row in rows]


def chosen(client, note: int) -> list[str]:
    return [item["code"].partition(":")[2] for item in client.get(f"/notes/{note}").json()["codes"]]


def test_all_codes_above_a_threshold_are_accepted_and_undone_in_one_step(ann):
    note = ann.note("above", SUMMARY, **STAY)
    claim = ann.get(f"/notes/{note}/claim").json()["codes"]
    chances = sorted(round(100 * item["probability"]) for item in claim)
    middle = chances[len(chances) // 2] / 100
    wanted = [item["code"] for item in claim if round(item["probability"], 2) >= middle]
    assert 0 < len(wanted) < len(claim)
    after = ann.decide(note, "accept_all", 0, threshold=middle, key="first")
    assert after.json()["version"] == len(wanted) and chosen(ann, note) == wanted
    assert history(ann, note) == [("claim", code) for code in wanted]
    stored = ann.get(f"/notes/{note}/decisions").json()[0]["details"]
    assert stored["threshold"] == middle and stored["key"] == "first"
    again = ann.decide(note, "accept_all", 0, threshold=middle, key="first").json()  # its answer was lost
    assert again["version"] == len(wanted)
    none = ann.decide(note, "accept_all", len(wanted), threshold=middle)
    assert none.status_code == 422 and "no open code has a probability of" in none.json()["detail"]
    assert ann.decide(note, "accept_all", len(wanted), threshold=0).status_code == 200
    assert set(chosen(ann, note)) == {item["code"] for item in claim}
    assert ann.decide(note, "undo", len(claim)).json()["codes"] == [f"icd10cm:{code}" for code in wanted]
    assert ann.decide(note, "undo", len(claim) + 1).json()["codes"] == []


def test_the_history_names_the_threshold(server, ann):
    note = ann.note("history", SUMMARY, **STAY)
    assert ann.decide(note, "accept_all", 0, threshold=0.3).status_code == 200
    assert "accepted from 30 %" in browser(server, "ann").get(f"/notes/{note}/history").text


def test_codes_that_the_claim_leaves_out_are_not_accepted(ann):
    note = ann.note("left-out", SUMMARY, **STAY)
    left_out = {item["code"] for item in ann.get(f"/notes/{note}/claim").json()["left_out"]}
    assert "I10" in left_out
    ann.decide(note, "accept_all", 0, threshold=0)
    assert not left_out & set(chosen(ann, note))


def test_without_a_claim_the_suggestions_above_the_threshold_are_accepted(server, ann):
    note = ann.note("old", SUMMARY, date="2001-01-01")
    suggested = ann.get(f"/notes/{note}").json()["suggestions"]
    wanted = [item["code"] for item in suggested if round(100 * item["probability"]) >= 75]
    assert wanted and len(wanted) < len(suggested)
    page = browser(server, "ann").get(f"/notes/{note}").text
    assert f'data-chances="{round(100 * suggested[0]["probability"])} ' in page
    assert ann.decide(note, "accept_all", 0, threshold=0.75).status_code == 200
    assert history(ann, note) == [("accept", code) for code in wanted]
    assert ann.decide(note, "undo", len(wanted)).json()["codes"] == []


@pytest.mark.parametrize("threshold", [None, -0.1, 1.5, "high"])
def test_a_threshold_is_a_probability(ann, threshold):
    note = ann.note("threshold", SUMMARY, **STAY)
    assert ann.decide(note, "accept_all", 0, threshold=threshold).status_code == 422
    assert ann.decide(note, "accept_all", 9, threshold=0.5).status_code == 409  # an old version


def test_present_on_admission_is_set_where_nothing_is_set(ann):
    note = ann.note("poa", SUMMARY, **STAY)
    for version, code in enumerate(("I50.23", "Z79.4", "N18.32", "J18.9")):  # Z79.4 is exempt
        assert ann.decide(note, "add", version, code=f"icd10cm:{code}").status_code == 200
    assert ann.decide(note, "add", 4, code="icd10pcs:0DTJ4ZZ").status_code == 200
    assert ann.decide(note, "poa", 5, code="icd10cm:J18.9", poa="N").status_code == 200
    assert ann.decide(note, "poa_all", 6).json()["version"] == 8
    shown = {item["code"].partition(":")[2]: item["poa"] for item in ann.get(f"/notes/{note}").json()["codes"]}
    assert shown == {"I50.23": "Y", "Z79.4": "", "N18.32": "Y", "J18.9": "N", "0DTJ4ZZ": ""}
    again = ann.decide(note, "poa_all", 8)
    assert again.status_code == 422 and "has an indicator or is exempt" in again.json()["detail"]
    assert ann.decide(note, "undo", 8).status_code == 200
    poa = [item["poa"] for item in ann.get(f"/notes/{note}").json()["codes"]]
    assert poa == ["", "", "", "N", ""]


def test_the_proposed_claim_has_the_procedures(ann):
    text = Path("examples/notes/hip_fracture.txt").read_text(encoding="utf-8")
    note = ann.note("hip", text, **STAY | {"age": 83})
    claim = ann.get(f"/notes/{note}/claim").json()
    procedures = [item["code"] for item in claim["procedures"]]
    assert procedures
    assert ann.decide(note, "claim", 0).status_code == 200
    assert chosen(ann, note) == [item["code"] for item in claim["codes"]] + procedures
    assert all(item["evidence"] for item in ann.get(f"/notes/{note}").json()["codes"][-len(procedures) :])
    assert ann.get(f"/notes/{note}").json()["groups"]["drg"] == claim["groups"]["drg"]


def test_the_page_shows_groups_weight_and_what_open_codes_would_change(server, ann):
    note = ann.note("groups", SUMMARY, **STAY)
    client = browser(server, "ann")
    assert "proposed claim: DRG 291" in client.get(f"/notes/{note}").text

    def decide(version: int, **values: str) -> str:
        form = {"version": version, **values}
        return client.post(f"/notes/{note}/decide", data=form, headers={"x-csrf-token": csrf(client)}).text

    panel = decide(0, action="add", code="icd10cm:I13.0")
    assert "DRG 293" in panel and "CMS Table 5 of FY 2026 has none" in panel  # the table of this test has two DRGs
    assert "would become DRG 291" in panel  # I50.23 is an MCC
    panel = decide(1, action="accept", code="icd10cm:I50.23")
    assert "DRG 291" in panel and "weight 1.2838" in panel and "without it DRG 293" in panel
    assert "224 Acute on Chronic Heart Failure" in panel and "HCC 224 is above it" in panel
    order = [item["code"] for item in ann.get(f"/notes/{note}").json()["suggestions"]]
    shown = [
        panel.index(f'data-key="icd10cm:{code}" data-state="open"')
        for code in order
        if f'{code}" data-state="open"' in panel
    ]
    assert shown == sorted(shown)  # the order of suggestions does not depend on payment


def test_weights_of_another_year_are_not_used(server, ann):
    note = ann.note("year", SUMMARY, **STAY | {"date": "2024-11-03"})
    client = browser(server, "ann")
    assert ann.decide(note, "claim", 0).status_code == 200
    assert "give CMS Table 5 of FY 2025 with --drg-weights" in client.get(f"/notes/{note}").text


def test_excluded_codes_are_grey_in_the_group_panel(server, ann):
    note = ann.note("excluded", "Sepsis.", **STAY)
    for version, code in enumerate(("A41.9", "R65.20")):
        assert ann.decide(note, "add", version, code=f"icd10cm:{code}").status_code == 200
    page = browser(server, "ann").get(f"/notes/{note}").text
    assert '<li class="muted excluded"><span class="code">R65.20</span> <span>MCC excluded' in page
