"""Patients, their codes and their notes."""

from collections import Counter
from datetime import date
from itertools import pairwise
from statistics import fmean, pstdev, quantiles

import pytest

from nosology.codes import table
from nosology.core import ConfigError
from nosology.corpora.simulate.hospital import Hospital, simulate_notes


@pytest.fixture(scope="module")
def hospital():
    return Hospital()


@pytest.fixture(scope="module")
def people(hospital):
    return [hospital.patient(4, index) for index in range(500)]


@pytest.fixture(scope="module")
def stays(people):
    return [stay for _, stays in people for stay in stays]


def written(stays):
    return [(stay.codes, stay.text, stay.evidence, stay.reports) for stay in stays]


def test_patient_depends_only_on_seed_and_number(hospital, people):
    last_first = Hospital()
    for index in reversed(range(len(people))):
        assert written(last_first.patient(4, index)[1]) == written(people[index][1])
    other = hospital.patient(5, 137)
    assert [stay.text for stay in other[1]] != [stay.text for stay in people[137][1]]


def test_evidence_is_of_the_notes_codes_and_within_the_text(stays):
    spans = 0
    for stay in stays:
        for item in stay.evidence:
            assert item.code in stay.codes
            words = stay.text[item.start : item.end]
            assert words.strip() == words != ""
            spans += 1
    assert spans > 15 * len(stays)


def test_evidence_spans_cover_the_wording_of_the_condition(hospital, people):
    """Each span of a hand-written condition is one of its wordings or signals, except for typing errors."""
    exact = total = 0
    for _, stays in people:
        for stay in stays:
            known = {}
            for condition in stay.admission.conditions:
                concept = condition.concept
                names = [
                    n for w in (concept.generic, *(c.wording for c in concept.codings)) for n in (*w.long, *w.short)
                ]
                words = [*names, *(line for lines in concept.signals.values() for line in lines)]
                for code in condition.codes:
                    known[code] = (
                        concept.key in hospital.clinic.concepts and all(c.wording for c in concept.codings),
                        words,
                    )
            for item in stay.evidence:
                complete, words = known[item.code]
                if complete:
                    total += 1
                    exact += stay.text[item.start : item.end].lower() in {word.lower() for word in words}
    assert total > 500
    assert exact / total > 0.93


def test_codes_exist_in_the_release_of_their_time(stays):
    tables = {"icd9cm": table("icd9cm"), "icd9proc": table("icd9proc"), "icd10pcs": table("icd10pcs", "2024")}
    tables["icd10cm"] = table("icd10cm", "2019")
    newest = table("icd10cm")
    for stay in stays:
        systems = {"icd10cm", "icd10pcs"} if stay.admission.icd10 else {"icd9cm", "icd9proc"}
        for system, code in stay.codes:
            assert system in systems
            assert tables[system].billable(code) or (system == "icd10cm" and newest.billable(code)), code


def test_early_admissions_have_icd9_and_late_ones_icd10(stays):
    switch = date(2015, 10, 1).toordinal()
    assert {stay.admission.icd10 for stay in stays if stay.admission.day < switch} == {False}
    assert 0.3 < fmean(stay.admission.icd10 for stay in stays) < 0.45


@pytest.fixture(scope="module")
def icd10_notes():
    return list(simulate_notes(700, 8, years=(2016, 2019)))


def test_lengths_and_code_counts_match_mimic4(icd10_notes):
    codes = [len(note.codes) for note in icd10_notes]
    first, median, third = quantiles([len(note.text.split()) for note in icd10_notes], n=4)
    assert fmean(codes) == pytest.approx(15.7, abs=1.0)
    assert pstdev(codes) == pytest.approx(8.7, abs=0.8)
    assert first == pytest.approx(1147, rel=0.08)
    assert median == pytest.approx(1492, rel=0.06)
    assert third == pytest.approx(1931, rel=0.08)


def test_most_codes_are_rare(icd10_notes):
    counts = Counter(code for note in icd10_notes for code in note.codes)
    assert sum(count < 10 for count in counts.values()) > 0.7 * len(counts)
    assert counts.most_common(1)[0][1] > 200


def test_sex_and_age_are_respected(people):
    for patient, stays in people:
        for stay in stays:
            for condition in stay.admission.conditions:
                assert condition.concept.sex in ("", patient.sex)
                low, high = condition.concept.ages
                assert low <= patient.age(stay.admission.day) <= high
            if patient.sex == "M" and stay.admission.icd10:
                assert not any(code.code.startswith("O") and code.system == "icd10cm" for code in stay.codes)


def test_linked_diseases_occur_together(stays):
    """End stage renal disease comes with dialysis, and heart failure with hypertension gets the combined code."""
    late = [{code.code for code in stay.codes} for stay in stays if stay.admission.icd10]
    dialysed = [bool(codes & {"Z99.2"}) for codes in late if "N18.6" in codes]
    assert fmean(dialysed) > 5 * fmean("Z99.2" in codes for codes in late)
    failing = [codes for codes in late if any(code.startswith("I50") for code in codes)]
    combined = fmean(bool(codes & {"I11.0", "I13.0"}) for codes in failing)
    assert combined > 3 * fmean("I10" in codes for codes in failing)


def test_chronic_conditions_repeat_in_later_admissions(people):
    repeated = total = 0
    for _, stays in people:
        for before, after in pairwise(stays):
            chronic = {f.concept.key for f in before.admission.conditions if f.concept.kind == "chronic"}
            later = {f.concept.key for f in after.admission.conditions}
            repeated += len(chronic & later)
            total += len(chronic)
    assert 0.5 < repeated / total < 0.9


def test_some_codes_have_no_evidence_and_some_mentions_no_code(stays):
    named = [bool(stay.evidence and {e.code for e in stay.evidence} >= set(stay.codes)) for stay in stays]
    assert fmean(named) < 0.6
    missed = [f for stay in stays for f in stay.admission.conditions if not f.codes and f.visibility == "named"]
    assert len(missed) > len(stays)


def test_sites_differ_in_headings(stays):
    by_site = {}
    for stay in stays:
        by_site.setdefault(stay.admission.site.name, []).append(stay)
    assert len(by_site) == 4
    heads = {name: some[0].admission.site.headings["hpi"] for name, some in by_site.items()}
    assert len(set(heads.values())) == 4
    assert all(heads[name] in (stay.text or heads[name]) for name, some in by_site.items() for stay in some)


def test_years_are_checked():
    with pytest.raises(ConfigError, match="years must be"):
        Hospital((2019, 2016))


def test_radiology_reports_show_the_conditions_of_the_patient(hospital):
    seen = Counter()
    for index in range(800):
        for stay in hospital.patient(2, index)[1]:
            ill = any(condition.concept.key == "pneumonia" for condition in stay.admission.conditions)
            for exam, text in stay.reports:
                if exam.key == "CHEST":
                    body = text.partition("IMPRESSION")[2].lower()
                    seen[ill, "consolidation" in body or "opacit" in body] += 1
    assert seen[True, True] / (seen[True, True] + seen[True, False]) > 0.4
    assert seen[False, True] / (seen[False, True] + seen[False, False]) < 0.15
