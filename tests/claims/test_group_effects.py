"""On which codes the DRG depends, what a further code changes, and the HCCs of a code set."""

import pytest

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.group_effects import drg_changed, drg_drivers, group_change
from nosology.claims.grouping import group_drg, score_hcc
from nosology.core import Code

STAY = {"sex": "F", "age": 70, "date": "2025-11-01", "kind": "inpatient"}


def code(name: str) -> Code:
    return Code("icd10pcs" if len(name) == 7 and "." not in name else "icd10cm", name)


def assigned(*names: str) -> AssignedCodes:
    return AssignedCodes(tuple(AssignedCode(code(name), "added") for name in names))


def drivers(*names: str) -> list[tuple[list[str], str, int | None]]:
    found = drg_drivers(assigned(*names), STAY)
    return [([it.code for it in item.codes], item.role, item.without and item.without.drg) for item in found]


def test_the_drg_depends_on_the_principal_diagnosis_and_on_codes_without_which_it_differs():
    assert group_drg(assigned("I50.23", "J96.01", "N17.9", "I10"), STAY).drg == 291
    assert drivers("I50.23", "J96.01", "N17.9", "I10") == [
        (["I50.23"], "principal diagnosis", None),
        (["J96.01"], "MCC", 292),
    ]
    assert drivers("I50.23", "N17.9")[1:] == [(["N17.9"], "CC", 293)]
    assert drivers("I50.23", "I10") == [(["I50.23"], "principal diagnosis", None)]


def test_the_drg_changes_with_the_principal_diagnosis_and_without_a_needed_code():
    whole = assigned("I50.23", "J96.01", "I10")
    assert not drg_changed(assigned("I50.23", "J96.01"), whole, STAY)
    assert drg_changed(assigned("I50.23", "I10"), whole, STAY) and drg_changed(
        assigned("J96.01", "I50.23"), whole, STAY
    )
    assert drg_changed(assigned(), assigned(), STAY)  # without a DRG nothing is known to be the same
    assert drg_changed(whole, whole, {**STAY, "kind": "outpatient"})


def test_codes_of_which_each_suffices_are_named_together():
    assert drivers("A41.9", "J18.9", "J96.01", "J44.1")[1:] == [(["J18.9", "J96.01"], "MCC", 872)]


def test_a_procedure_drives_the_drg():
    [_, procedure] = drivers("K35.80", "0DTJ4ZZ")
    assert procedure[:2] == (["0DTJ4ZZ"], "procedure") and procedure[2]


def test_every_driver_is_exact():
    """Without a code that is no driver, the DRG is the same; without one that is, it is the stated one."""
    names = ("A41.9", "R65.21", "J18.9", "N17.9", "E11.9", "I10", "Z79.4", "0BH17EZ")
    whole = group_drg(assigned(*names), STAY).drg
    single = {it.codes[0]: it.without for it in drg_drivers(assigned(*names), STAY)[1:] if len(it.codes) == 1}
    for name in names[1:]:
        without = group_drg(assigned(*(other for other in names if other != name)), STAY).drg
        assert (without != whole) == (code(name) in single)
        assert code(name) not in single or single[code(name)].drg == without


def test_without_a_drg_nothing_drives_it():
    assert drivers("Y92.9", "J96.01") == [] and drg_drivers(AssignedCodes(), STAY) == []
    assert drg_drivers(assigned("I50.23"), {**STAY, "kind": "outpatient"}) == []


def test_a_change_is_stated_only_where_something_changes():
    chosen = assigned("I50.23", "I10")
    change = group_change(chosen, code("J96.01"), STAY)
    assert change and change.drg and change.drg.drg == 291
    assert change.added == ("213",) and change.dropped == () and change.risk > 0
    alone = score_hcc(chosen, STAY).risk
    assert change.risk == pytest.approx(score_hcc(assigned("I50.23", "I10", "J96.01"), STAY).risk - alone)
    assert group_change(chosen, code("E78.5"), STAY) is None
    assert group_change(AssignedCodes(), code("J96.01"), STAY) is None  # it would be the principal diagnosis
    assert group_change(chosen, code("J96.01"), {"date": "2025-11-01"}) is None  # age and sex are not known


def test_an_hcc_below_another_is_dropped():
    score = score_hcc(assigned("N18.6", "N18.4", "E11.65", "E11.9"), STAY)
    rows = {item.number: item for item in score.categories}
    assert rows["327"].dropped == "HCC 326 is above it" and "Stage 4" in rows["327"].label
    assert [it.code for it in rows["38"].codes] == ["E11.65", "E11.9"] and not rows["38"].dropped
    parts = sum(item.coefficient for item in score.categories) + sum(score.interactions.values()) + score.demographic
    assert parts == pytest.approx(score.risk)
    change = group_change(assigned("E11.9", "N18.4"), code("N18.6"), STAY)
    assert change and (change.added, change.dropped) == (("326",), ("327",))
    alone = score_hcc(assigned("T82.512A"), STAY)
    assert [item.dropped for item in alone.categories] == ["it does not count on its own"]
