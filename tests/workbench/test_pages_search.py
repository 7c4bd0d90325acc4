"""The search for codes in API and pages: the date of the encounter, diagnoses and procedures, choices."""

import re

from tests.workbench.conftest import browser, csrf


def lines(ann, query: str, **body) -> list[dict]:
    response = ann.post("/codes/search", {"query": query, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_api_searches_diagnoses_and_procedures_of_a_date(ann):
    assert lines(ann, "ckd stage 3", date="2019-11-01")[0]["code"] == "N18.3"
    assert lines(ann, "ckd stage 3")[0]["code"] == "N18.30"
    found = lines(ann, "left total hip replacement", date="2025-11-03")
    assert (found[0]["system"], found[0]["code"], found[0]["billable"]) == ("icd10pcs", "0SRB0JZ", True)
    choice = next(line for line in found if line["next"])
    assert choice["step"] == "device" and not choice["billable"]
    assert all(line["billable"] for line in lines(ann, choice["next"], system="icd10pcs"))
    assert {line["system"] for line in lines(ann, "CHF", date="2013-01-01")} <= {"icd9cm", "icd9proc"}


def test_the_api_refuses_other_systems_and_dates(ann):
    for body in ({"system": "icd11"}, {"date": "2025-02-30"}, {"date": "soon"}, {"note": 1}):
        assert ann.post("/codes/search", {"query": "heart", **body}).status_code == 422


def test_the_page_searches_on_the_date_of_the_encounter(server, ann):
    client = browser(server, "ann")
    token = {"x-csrf-token": csrf(client)}
    for date, code in (("2019-11-01", "N18.3"), ("2025-11-03", "N18.30")):
        note = ann.note(f"search {date}", "Known chronic kidney disease.", date=date)
        page = client.post("/codes/search", data={"query": "ckd stage 3", "note": note}, headers=token).text
        assert re.search(r'data-code="([^"]+)"', page)[1] == f"icd10cm:{code}"
        assert f"on {date}" in page
    page = client.post("/codes/search", data={"query": "heart failure", "note": 0}, headers=token).text
    assert 'data-next="I50"' in page and 'data-code="icd10cm:I50"' in page  # opened or shown in the book, not added
    assert not re.search(r'data-act="add" data-code="icd10cm:I50"', page)
    assert "No code" in client.post("/codes/search", data={"query": "qqqqzz"}, headers=token).text
