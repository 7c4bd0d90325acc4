"""The written sentences and look-ups of tests/claims/cases have a valid form; nothing here measures a coder."""

import json
from pathlib import Path

import pytest

from nosology.codes import table

CASES = Path(__file__).parent / "cases"
SENTENCES = {"sentences_dev.jsonl": "s", "heldout_sentences.jsonl": "t"}
SEARCHES = {"searches.tsv": "dev", "heldout_searches.tsv": "heldout"}
FIELDS = {"id", "setting", "text", "codes", "optional", "why", "topic"}
SETTINGS = {"inpatient", "outpatient", "emergency"}
TOPICS = {
    "final-set",
    "combination",
    "companion",
    "setting",
    "composition",
    "order",
    "context",
    "query",
    "negative",
}


@pytest.fixture(scope="module")
def billable() -> set[str]:
    return {entry.code for entry in table("icd10cm", "2026") if entry.billable}


def sentences(name: str) -> list[dict]:
    return [json.loads(line) for line in (CASES / name).read_text().splitlines()]


def searches(name: str) -> list[list[str]]:
    lines = (CASES / name).read_text().splitlines()
    assert lines[0].split("\t") == ["set", "query", "codes"]
    return [line.split("\t") for line in lines[1:]]


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_have_the_fields(name):
    for case in sentences(name):
        assert set(case) == FIELDS, case["id"]
        assert case["setting"] in SETTINGS and case["topic"] in TOPICS, case["id"]
        assert case["text"].strip() and case["why"].strip() and case["text"].count("\n") < 4, case["id"]
        assert case["codes"] or case["topic"] in {"negative", "query", "context", "setting"}, case["id"]


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_are_numbered(name):
    cases = sentences(name)
    assert [case["id"] for case in cases] == [f"{SENTENCES[name]}{n:03}" for n in range(1, len(cases) + 1)]


def test_sentences_are_unique():
    texts = [case["text"] for name in SENTENCES for case in sentences(name)]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("name", SENTENCES)
def test_codes_are_billable_and_listed_once(name, billable):
    for case in sentences(name):
        listed = case["codes"] + case["optional"]
        codes = [code["code"] for code in listed]
        assert {code["system"] for code in listed} <= {"icd10cm"}, case["id"]
        assert set(codes) <= billable, case["id"]
        assert len(codes) == len(set(codes)), case["id"]


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_name_billable_codes_or_prefixes(name, billable):
    """A prefix ends with "-"; one of the codes, or one below the prefix, belongs among the first five hits."""
    for part, query, codes in searches(name):
        assert part == SEARCHES[name] and query.strip() == query and query, query
        for code in codes.split():
            prefix = code.removesuffix("-")
            assert code in billable or (prefix != code and any(each.startswith(prefix) for each in billable)), query
        assert codes.split(), query


def test_searches_are_unique():
    queries = [query.lower() for name in SEARCHES for _, query, _ in searches(name)]
    assert len(queries) == len(set(queries)) == 130
