"""Differences of two codings, and the codes that choices lead to."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.core import Code, ReviewError, Span
from nosology.workbench.code_differences import code_to_json, compare_codes, count_disagreements, final_codes
from nosology.workbench.replay import apply_decision
from nosology.workbench.review import Review

HEART, ACUTE, DIABETES, PNEUMONIA = (Code("icd10cm", code) for code in ("I50.9", "I50.23", "E11.9", "J18.9"))
SURGERY = Code("icd10pcs", "0DTJ4ZZ")


def coding(*items: Code | tuple[Code, str]) -> AssignedCodes:
    """A coding of codes, or of codes with their indicator."""
    pairs = ((item, "") if isinstance(item, Code) else item for item in items)
    return AssignedCodes(tuple(AssignedCode(code, "suggested", poa) for code, poa in pairs))


def kinds(first: AssignedCodes, second: AssignedCodes) -> dict[str, str]:
    return {item.name.split(":")[-1]: item.kind for item in compare_codes(first, second).differences}


def test_the_order_of_secondary_codes_is_no_difference():
    compared = compare_codes(coding(HEART, DIABETES, PNEUMONIA), coding(HEART, PNEUMONIA, DIABETES))
    assert compared.differences == () and len(compared.agreed) == 3


def test_each_kind_of_difference():
    first, second = coding(HEART, (DIABETES, "Y"), PNEUMONIA), coding(ACUTE, (DIABETES, "N"), PNEUMONIA)
    assert kinds(first, second) == {"I50.9": "first", "I50.23": "second", "E11.9": "poa", "principal": "principal"}
    assert [item.code for item in compare_codes(first, second).agreed] == [PNEUMONIA]
    assert kinds(coding(), coding(SURGERY)) == {"0DTJ4ZZ": "second"}  # a procedure is no principal diagnosis


def test_choices_give_the_final_codes_with_the_principal_diagnosis_first():
    first, second = coding(HEART, (DIABETES, "Y"), PNEUMONIA), coding(ACUTE, (DIABETES, "N"), PNEUMONIA)
    choices = {"icd10cm:I50.9": "second", "icd10cm:I50.23": "second", "icd10cm:E11.9": "first", "principal": "second"}
    final, differences = final_codes(first, second, choices)
    assert [(item.code, item.poa) for item in final] == [(ACUTE, ""), (DIABETES, "Y"), (PNEUMONIA, "")]
    assert len(differences) == 4
    with pytest.raises(ReviewError, match="principal diagnosis must be one of the codes that are kept"):
        final_codes(first, second, choices | {"principal": "first"})
    with pytest.raises(ReviewError, match="2 differences are still to be decided"):
        final_codes(first, second, {"icd10cm:I50.9": "first", "icd10cm:I50.23": "neither", "icd10cm:E11.9": "first"})


def test_evidence_of_both_is_kept():
    first, second = (
        AssignedCodes((AssignedCode(HEART, "added", "", spans),)) for spans in ((Span(0, 5),), (Span(0, 5), Span(8, 9)))
    )
    final, _ = final_codes(first, second, {})
    assert final[0].evidence == (Span(0, 5), Span(8, 9))


ITEMS = st.lists(
    st.tuples(st.sampled_from([HEART, ACUTE, DIABETES, PNEUMONIA, SURGERY]), st.sampled_from(["", "Y", "N"])),
    max_size=5,
    unique_by=lambda item: item[0],
)


def sets(items: Iterable[AssignedCode]) -> set[tuple[Code, str]]:
    return {(item.code, item.poa) for item in items}


@settings(deadline=None, max_examples=60)
@given(ITEMS, ITEMS)
def test_choosing_one_side_always_gives_its_codes(left, right):
    first, second = coding(*left), coding(*right)
    names = [item.name for item in compare_codes(first, second).differences]
    for side, wanted in (("first", first), ("second", second)):
        final, _ = final_codes(first, second, dict.fromkeys(names, side))
        assert sets(final) == sets(wanted.chosen)
        assert AssignedCodes(final).principal == wanted.principal
    assert not compare_codes(first, first).differences
    assert not names or compare_codes(second, first).differences


@settings(deadline=None, max_examples=60)
@given(ITEMS)
def test_final_codes_are_stored_and_replayed_unchanged(items):
    final = coding(*items).chosen
    details = {"final": [code_to_json(item) for item in final]}
    assert apply_decision(Review(status="done"), "adjudicate", details, 3, length=9).chosen == final
    with pytest.raises(ReviewError, match="only a finished note is adjudicated"):
        apply_decision(Review(status="open"), "adjudicate", details, 3, length=9)


def test_disagreements_of_one_category_belong_together():
    pairs = [({HEART, DIABETES}, {ACUTE, DIABETES}), ({ACUTE}, {HEART, PNEUMONIA}), ({PNEUMONIA}, set())]
    assert count_disagreements(pairs) == [(ACUTE, HEART, 2), (PNEUMONIA, None, 2)]
