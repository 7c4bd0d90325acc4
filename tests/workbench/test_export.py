"""Exports of a coded encounter: FHIR, CSV, JSON."""

import csv
import io
import json

import pytest
from fhir.resources.R4B.bundle import Bundle

from nosology.core import Note
from nosology.workbench.cases import decision_history, load_case, record_decision
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.export import to_csv, to_fhir, to_json


@pytest.fixture
def coded(engine, people, note_id):
    """A finished note with a diagnosis present on admission, another, and a procedure."""
    acts = [
        ("add", {"code": "icd10cm:I50.9"}),
        ("add", {"code": "icd10cm:E11.9", "start": 3, "end": 9}),
        ("add", {"code": "icd10pcs:0DTJ4ZZ"}),
        ("poa", {"code": "icd10cm:I50.9", "poa": "Y"}),
        ("finish", {}),
    ]
    for version, (action, details) in enumerate(acts):
        record_decision(engine, note_id, action, details, user=people["ann"], version=version)
    with read_transaction(engine) as connection:
        return load_case(connection, note_id), decision_history(connection, note_id)


def test_fhir_export_is_a_valid_bundle(coded):
    value = to_fhir(*coded)
    Bundle.model_validate(value)
    kinds = [entry["resource"]["resourceType"] for entry in value["entry"]]
    assert kinds == ["Patient", "Encounter", "Condition", "Condition", "Procedure", "Claim", "Provenance"]
    claim, provenance = (entry["resource"] for entry in value["entry"][5:])
    assert claim["status"] == "active"
    assert claim["diagnosis"][0]["type"][0]["coding"][0]["code"] == "principal"
    assert claim["diagnosis"][0]["onAdmission"]["coding"][0]["code"] == "Y"
    assert "type" not in claim["diagnosis"][1], "the value set has no word for a secondary diagnosis"
    assert claim["diagnosis"][0]["diagnosisReference"]["reference"] == value["entry"][2]["fullUrl"]
    assert provenance["agent"][0]["who"]["display"] == "ann"
    assert "heart failure and type 2" not in json.dumps(value)  # no text of the note


def test_fhir_export_has_the_encounter_its_code_set_and_no_invented_patient(engine, people):
    about = {"kind": "inpatient", "date": "2019-11-05"}
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("old", "x", extra=about)], None)
    record_decision(engine, 1, "add", {"code": "icd10cm:N18.3"}, user=people["ann"], version=0)
    with read_transaction(engine) as connection:
        value = to_fhir(load_case(connection, 1), decision_history(connection, 1))
    encounter, condition, claim, _ = (entry["resource"] for entry in value["entry"])
    assert encounter["class"]["code"] == "IMP" and encounter["period"] == {"end": "2019-11-05"}
    assert encounter["diagnosis"] == [{"condition": {"reference": value["entry"][1]["fullUrl"]}, "rank": 1}]
    assert condition["encounter"] == {"reference": value["entry"][0]["fullUrl"]}
    assert condition["code"]["coding"][0]["version"] == "2020", "the release of the day"
    assert condition["subject"] == claim["patient"] == {"display": "unknown"}


def test_json_export_has_the_history_and_no_text(coded):
    value = to_json(*coded)
    assert [item["code"] for item in value["codes"]] == ["I50.9", "E11.9", "0DTJ4ZZ"]
    assert value["codes"][1]["evidence"] == [{"start": 3, "end": 9, "document": "n1"}]
    assert [row["action"] for row in value["history"]] == ["add", "add", "add", "poa", "finish"]
    assert "Known congestive" not in json.dumps(value)


def test_csv_has_one_row_per_code_and_no_formula(engine, people):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("=cmd()", "x")], None)
    record_decision(engine, 1, "add", {"code": "icd10cm:I10"}, user=people["ann"], version=0)
    with read_transaction(engine) as connection:
        rows = list(csv.DictReader(io.StringIO(to_csv(load_case(connection, 1)))))
    assert [(row["note"], row["code"], row["principal"]) for row in rows] == [("'=cmd()", "I10", "True")]
