"""The hand-written concepts."""

import pytest

from nosology.codes import table
from nosology.corpora.simulate.clinic import VISIBILITY, Clinic
from nosology.corpora.simulate.concepts import LongTail, Wording, concepts


def test_every_code_exists_and_can_be_billed():
    systems = {"icd10cm": table("icd10cm", "2019"), "newest": table("icd10cm"), "icd10pcs": table("icd10pcs", "2024")}
    wrong = []
    for concept in concepts().values():
        known = ["icd10pcs"] if concept.kind == "procedure" else ["icd10cm", "newest"]
        wrong += [c.code for c in concept.codings if not any(systems[s].billable(c.code) for s in known)]
    assert wrong == []


def test_every_icd9_code_exists_and_can_be_billed():
    tables = {True: table("icd9proc"), False: table("icd9cm")}
    for concept in concepts().values():
        for coding in concept.codings:
            if coding.icd9:
                assert tables[concept.kind == "procedure"].billable(coding.icd9), coding.icd9
    assert all(coding.icd9 for c in concepts().values() if c.kind == "procedure" for coding in c.codings)


def test_nearly_every_diagnosis_has_an_icd9_code():
    tail = LongTail()
    diagnoses = [c for concept in concepts().values() if concept.kind != "procedure" for c in concept.codings]
    without = [c.code for c in diagnoses if not c.icd9 and not tail.icd9(c.code)]
    assert len(without) < 0.02 * len(diagnoses)


def test_concepts_have_many_wordings_and_signals():
    known = concepts()
    assert len(known) > 250
    assert all(concept.generic or concept.codings[0].wording for concept in known.values())
    assert sum(len(c.generic.long) + len(c.generic.short) for c in known.values()) > 1000
    assert sum(bool(concept.signals) for concept in known.values()) > 120


def test_concepts_refer_to_known_concepts():
    known = concepts().keys()
    for concept in concepts().values():
        required = {key for coding in concept.codings for key in coding.requires}
        assert known >= required | concept.links.keys() | set(concept.excludes), concept.key
        assert concept.kind in VISIBILITY and concept.codings


def test_clusters_are_known():
    clusters = set(Clinic((2016, 2016)).clusters)
    assert {name for concept in concepts().values() for name in concept.clusters} == clusters


@pytest.mark.parametrize(
    ("name", "short"), [("CHF", True), ("heart failure", False), ("s/p PCI", True), ("R hip fx", True)]
)
def test_wording_separates_abbreviations(name, short):
    assert bool(Wording.of([name]).short) == short
