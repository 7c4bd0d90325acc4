"""Who may take part, and which codes are learned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nosology.core import Code, DataError, __version__
from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.agreement import PREPROCESSING, Facts, agreed_labels, key_of, refusals

A, B = Code("icd10cm", "I10"), Code("icd10cm", "E11.9")
IDENTITY = {"model": "minilm", "weights": "aa", "dim": 384}
FACTS = Facts(__version__, key_of(IDENTITY), IDENTITY, 384, PREPROCESSING, 50, {A: 20, B: 12})


def test_equal_sites_all_take_part():
    assert refusals({"a": FACTS, "b": FACTS, "c": FACTS}) == {}


def test_a_site_that_differs_is_refused_with_the_difference_named():
    facts = {
        "a": FACTS,
        "b": FACTS,
        "other model": replace(FACTS, embedder="k2", identity={"model": "nomic-v1.5", "weights": "bb"}),
        "old": replace(FACTS, package="0.0.1"),
        "reads otherwise": replace(FACTS, preprocessing="lower case"),
        "empty": replace(FACTS, notes=0),
    }
    found = refusals(facts)
    assert set(found) == {"other model", "old", "reads otherwise", "empty"}
    assert "model must be 'minilm'; got 'nomic-v1.5'" in found["other model"]
    assert f"package must be nosology {__version__}; got 0.0.1" in found["old"]
    assert "preprocessing must be" in found["reads otherwise"] and "'lower case'" in found["reads otherwise"]
    assert "no training notes" in found["empty"]


def test_of_two_equally_frequent_embedders_the_first_sites_counts():
    other = replace(FACTS, embedder="k2", identity={"model": "x", "weights": "bb"})
    assert set(refusals({"b": other, "a": FACTS})) == {"b"}
    assert set(refusals({"a": other, "b": FACTS})) == {"b"}


def test_facts_travel_as_plain_values():
    assert Facts.from_json(FACTS.to_json()) == FACTS


@pytest.mark.parametrize(
    "wrong",
    [
        {"notes": "many"},
        {"notes": None},
        {"dim": 0},
        {"identity": []},
        {"package": "1\nround 1/100"},
        {"embedder": 7},
        {"codes": [[None, "I10", 3]]},
        {"codes": [["icd10cm", "I10", -3]]},
        {"codes": 5},
        {"more": 1},
        {"embedder": "k1"},
        {"identity": IDENTITY | {"model": "nomic-v1.5"}},
        {"identity": IDENTITY | {"dim": 768}, "embedder": key_of(IDENTITY | {"dim": 768})},
        {"dim": 768},
        {"codes": [["icd10", "I10", 3]]},
        {"codes": [["icd10cm", "I10", 51]]},
    ],
)
def test_facts_that_are_none_are_noticed(wrong):
    with pytest.raises((ValueError, TypeError)):
        Facts.from_json(FACTS.to_json() | wrong)


def test_codes_need_enough_notes_in_all():
    settings = FederationSettings(min_site_notes=10, min_notes=30)
    facts = {"a": FACTS, "b": replace(FACTS, codes={A: 15})}
    assert agreed_labels(facts, settings).codes == (A,)
    with pytest.raises(DataError, match=r"federation\.min_notes = 99"):
        agreed_labels(facts, settings.model_copy(update={"min_notes": 99}))
