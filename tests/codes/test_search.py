import time

import pytest

from nosology.codes import table


def top(query: str, n: int, system: str = "icd10cm", release: str | None = None) -> list[str]:
    return [hit.code for hit in table(system, release).search(query, n)]


@pytest.mark.parametrize(
    "query, code",
    [
        ("heart failure", "I50.9"),
        ("congestive heart failure", "I50.9"),
        ("hypertension", "I10"),
        ("pneumonia", "J18.9"),
        ("sepsis", "A41.9"),
        ("low back pain", "M54.50"),
        ("urinary tract infection", "N39.0"),
        ("acute kidney injury", "N17.9"),
        ("chronic obstructive pulmonary disease", "J44.9"),
        ("Diabetes type 2", "E11"),
    ],
)
def test_the_expected_code_is_among_the_first_three(query, code):
    assert code in top(query, 3)


def test_other_systems_and_releases():
    assert "428.0" in top("congestive heart failure", 3, "icd9cm")
    assert "02HV33Z" in top("insertion infusion device superior vena cava percutaneous", 5, "icd10pcs")
    assert top("headache", 1, release="2019") == ["R51"]


def test_limits_and_billable_only():
    hits = table("icd10cm").search("fracture of radius", 7, billable=True)
    assert len(hits) == 7 and all(hit.billable for hit in hits)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_matched_is_the_inclusion_term():
    (hit,) = table("icd10cm").search("congestive heart failure", 1)
    assert hit.matched == "Congestive heart failure NOS"


@pytest.mark.parametrize("query", ["", "   ", "xyzzy", "%_\\"])
def test_queries_without_hits(query):
    assert table("icd10cm").search(query) == []


def test_a_single_letter_matches_as_a_word_and_broad_queries_are_fast():
    codes = table("icd10cm")
    assert codes.search("vitamin d deficiency", 1)[0].code.startswith("E55")
    assert any(hit.code.startswith("B16") for hit in codes.search("acute hepatitis b", 3))
    start = time.process_time()
    assert len(codes.search("unspecified", 12)) == len(codes.search("e", 12)) == 12
    assert time.process_time() - start < 1.5
