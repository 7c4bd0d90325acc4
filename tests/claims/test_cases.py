"""Form of the encounter notes with gold code sets below tests/claims/cases."""

import json
from collections import Counter
from pathlib import Path

import pytest

from nosology.claims.checks import AssignedCode, AssignedCodes, check_codes
from nosology.codes import is_valid, table
from nosology.core import Code

CASES = Path(__file__).parent / "cases"
PREFIXES = {
    "dev": "d",
    "encounters_dev": "e",
    "encounters_dev_2": "f",
    "heldout": "h",
    "heldout_encounters_2": "i",
    "heldout_visits_2": "p",
    "visits_dev": "v",
    "visits_dev_2": "o",
}
REQUIRED = {"id", "setting", "kind", "text", "codes", "principal", "optional", "why"}
ALLOWED = REQUIRED | {"sex", "age", "date"}
RELEASE = "2026"


def read(name: str) -> list[dict]:
    lines = (CASES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def codes_of(case: dict, field: str) -> list[str]:
    return [item["code"] for item in case[field]]


def in_billing_order(case: dict) -> list[str]:
    codes = codes_of(case, "codes")
    return [case["principal"], *(code for code in codes if code != case["principal"])]


@pytest.fixture(scope="module", params=sorted(PREFIXES))
def cases(request) -> list[dict]:
    return read(request.param)


@pytest.mark.parametrize("name", sorted(PREFIXES))
def test_ids(name):
    assert [case["id"] for case in read(name)] == [f"{PREFIXES[name]}{i:02}" for i in range(1, len(read(name)) + 1)]


def test_texts_differ():
    texts = Counter(" ".join(case["text"].split()).lower() for name in PREFIXES for case in read(name))
    assert max(texts.values()) == 1


def test_fields(cases):
    for case in cases:
        assert set(case) >= REQUIRED and set(case) <= ALLOWED, case["id"]
        assert case["setting"] in ("inpatient", "outpatient", "emergency"), case["id"]
        assert case["kind"].strip() and case["text"].strip() and case["why"].strip(), case["id"]
        assert case.get("sex", "F") in ("F", "M"), case["id"]


def test_codes_are_billable(cases):
    for case in cases:
        for item in (*case["codes"], *case["optional"]):
            assert item["system"] == "icd10cm", case["id"]
            assert is_valid(Code("icd10cm", item["code"]), RELEASE), (case["id"], item["code"])
            assert table("icd10cm").billable(item["code"]), (case["id"], item["code"])


def test_code_sets(cases):
    for case in cases:
        gold, optional = codes_of(case, "codes"), codes_of(case, "optional")
        assert gold and len(set(gold)) == len(gold) and len(set(optional)) == len(optional), case["id"]
        assert not set(gold) & set(optional), case["id"]
        assert case["principal"] in gold, case["id"]


def test_gold_sets_pass_the_checks(cases):
    """No pair excluded by the tabular list, no code against sex or release; an exception is named in `why`."""
    for case in cases:
        assigned = AssignedCodes(tuple(AssignedCode(Code("icd10cm", code), "added") for code in in_billing_order(case)))
        encounter = {key: case[key] for key in ("sex", "age", "date") if key in case}
        for issue in check_codes(assigned, encounter):
            if issue.level == "error":
                exception = f"checker exception {issue.kind} {issue.code.code}"
                assert exception in case["why"], (case["id"], issue.message)
