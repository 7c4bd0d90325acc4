"""The state of a note after its decisions."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code, ReviewError, Span
from nosology.workbench.replay import apply_decision, replay
from nosology.workbench.review import REASONS, STATUSES, Review
from nosology.workbench.review_actions import ACTIONS

HEART, PNEUMONIA, DIABETES = (Code("icd10cm", code) for code in ("I50.9", "J18.9", "E11.9"))


def after(*acts, user=1, length=100):
    return replay([(action, details, user) for action, details in acts], length=length)


def accept(code):
    return "accept", {"code": str(code)}


def test_accepting_chooses_in_order_and_the_first_diagnosis_is_principal():
    review = after(("add", {"code": "icd10pcs:0DTJ4ZZ"}), accept(HEART), accept(DIABETES))
    assert [code.code for code in review.codes] == ["0DTJ4ZZ", "I50.9", "E11.9"]
    assert review.principal == HEART
    assert (review.status, review.version, review.assignee) == ("open", 3, 1)


def test_a_rejection_has_a_reason_and_can_be_cleared():
    review = after(("reject", {"code": str(HEART), "reason": "negated"}))
    assert review.rejected == {HEART: "negated"}
    assert apply_decision(review, "clear", {"code": str(HEART)}, 1, length=9).rejected == {}
    with pytest.raises(ReviewError, match=r"reason must be one of not_documented, .*; got 'because'"):
        apply_decision(review, "reject", {"code": str(HEART), "reason": "because"}, 1, length=9)


def test_change_keeps_position_and_records_the_replaced_code():
    review = after(accept(HEART), accept(DIABETES), ("change", {"code": str(HEART), "to": "icd10cm:I50.23"}))
    assert [code.code for code in review.codes] == ["I50.23", "E11.9"]
    assert review.chosen[0].instead_of == HEART and review.chosen[0].origin == "changed"
    assert HEART in review.rejected


def test_a_code_that_is_changed_twice_stands_for_the_first_one():
    twice = (("change", {"code": str(HEART), "to": "icd10cm:I50.20"}),)
    twice += (("change", {"code": "icd10cm:I50.20", "to": "icd10cm:I50.22"}),)
    review = after(accept(HEART), *twice)
    assert review.chosen[0].instead_of == HEART and len(review.rejected) == 2
    for action, details in (("clear", {}), ("reject", {"reason": "wrong"})):
        cleared = apply_decision(review, action, {"code": "icd10cm:I50.22", **details}, 1, length=9)
        assert HEART not in cleared.rejected and Code("icd10cm", "I50.20") not in cleared.rejected
    back = apply_decision(review, "change", {"code": "icd10cm:I50.22", "to": str(HEART)}, 1, length=9)
    assert back.rejected == {} and back.chosen[0] == after(accept(HEART)).chosen[0]


def test_order_must_be_the_same_codes():
    review = after(accept(HEART), accept(DIABETES))
    swapped = apply_decision(review, "order", {"codes": [str(DIABETES), str(HEART)]}, 1, length=9)
    assert swapped.codes == (DIABETES, HEART)
    for wrong in ([str(HEART)], [str(HEART)] * 2, None, "x"):
        with pytest.raises(ReviewError):
            apply_decision(review, "order", {"codes": wrong}, 1, length=9)


def test_evidence_lies_within_the_note():
    review = after(accept(HEART), ("evidence", {"code": str(HEART), "start": 3, "end": 9}))
    assert review.chosen[0].evidence == (Span(3, 9),)
    for start, end in ((5, 5), (-1, 3), (90, 101), (True, 3), ("1", 2)):
        with pytest.raises(ReviewError, match="evidence must be characters"):
            apply_decision(review, "evidence", {"code": str(HEART), "start": start, "end": end}, 1, length=100)


def test_a_finished_note_must_be_reopened_before_edits():
    review = after(accept(HEART), ("finish", {}))
    with pytest.raises(ReviewError, match="the note is done: reopen it"):
        apply_decision(review, *accept(DIABETES), 1, length=9)
    assert (
        apply_decision(apply_decision(review, "reopen", {}, 1, length=9), *accept(DIABETES), 1, length=9).status
        == "open"
    )


def test_a_second_review_needs_another_user():
    review = after(accept(HEART), ("second", {}))
    with pytest.raises(ReviewError, match="another person's"):
        apply_decision(review, "approve", {}, 1, length=9)
    assert apply_decision(review, "approve", {}, 2, length=9).status == "done"


def test_a_second_review_on_hold_stays_one():
    review = after(accept(HEART), ("second", {}), ("hold", {}), ("resume", {}))
    assert review.status == "second"
    with pytest.raises(ReviewError, match="another person's"):
        apply_decision(review, "approve", {}, 1, length=9)
    assert after(("hold", {}), ("resume", {})).status == "open"


def test_codes_that_do_not_exist_are_refused_without_showing_long_values():
    for code in ("icd10cm:Q99.99Z", "icd10:I50.9", "I50.9", "", 7, "icd10cm:" + "secret " * 9):
        with pytest.raises(ReviewError) as caught:
            after(("add", {"code": code}))
        assert "secret" not in str(caught.value)


CODES = st.sampled_from(["icd10cm:I50.9", "icd10cm:J18.9", "icd10pcs:0DTJ4ZZ", "icd10cm:XX", "?", ""])
DETAILS = st.fixed_dictionaries(
    {},
    optional={
        "code": CODES,
        "to": CODES,
        "reason": st.sampled_from([*REASONS, "?"]),
        "poa": st.sampled_from(["", "Y", "N", "?"]),
        "start": st.integers(-2, 12),
        "end": st.integers(-2, 12),
        "codes": st.lists(CODES, max_size=3),
        "user": st.one_of(st.none(), st.integers(1, 3), st.just("x")),
    },
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([*ACTIONS, "?"]), DETAILS, st.integers(1, 3)), max_size=12))
def test_any_decisions_give_a_valid_state_or_an_error(acts):
    review, history = Review(), []
    for action, details, user in acts:
        try:
            review = apply_decision(review, action, details, user, length=10)
        except ReviewError:
            continue
        history.append((action, details, user))
        assert len(set(review.codes)) == len(review.codes)
        assert not set(review.codes) & review.rejected.keys()
        assert review.status in STATUSES
        assert review.version == len(history)
        assert all(0 <= span.start < span.end <= 10 for item in review.chosen for span in item.evidence)
    assert replay(history, length=10) == review


def test_a_change_is_rejected_as_too_unspecific_only_if_the_new_code_is_below():
    below = after(accept("icd10cm:I50.2"), ("change", {"code": "icd10cm:I50.2", "to": "icd10cm:I50.22"}))
    assert below.rejected == {Code("icd10cm", "I50.2"): "unspecific"}
    other = after(accept(HEART), ("change", {"code": str(HEART), "to": str(DIABETES)}))
    assert set(other.rejected.values()) == {"replaced"}
    told = after(accept(HEART), ("change", {"code": str(HEART), "to": str(DIABETES), "reason": "negated"}))
    assert set(told.rejected.values()) == {"negated"}
    with pytest.raises(ReviewError, match="reason must be one of"):
        after(accept(HEART), ("change", {"code": str(HEART), "to": str(DIABETES), "reason": "x"}))


def test_undoing_a_change_opens_both_codes_again():
    changed = after(
        accept(HEART), ("change", {"code": str(HEART), "to": str(DIABETES)}), ("clear", {"code": str(DIABETES)})
    )
    assert not changed.chosen and not changed.rejected


def test_undo_returns_to_the_state_before_the_last_decision_on_a_code():
    before = after(accept(HEART))
    for decision in (
        accept(DIABETES),
        ("reject", {"code": str(HEART), "reason": "wrong"}),
        ("poa", {"code": str(HEART), "poa": "Y"}),
    ):
        undone = apply_decision(apply_decision(before, *decision, 1, length=9), "undo", {}, 1, length=9)
        assert undone == replace(before, version=undone.version) and undone.version == 3
    twice = after(accept(HEART), accept(DIABETES), ("undo", {}), ("undo", {}))
    assert not twice.chosen and twice.version == 4
    with pytest.raises(ReviewError, match="no decision on a code to undo"):
        apply_decision(twice, "undo", {}, 1, length=9)
    with pytest.raises(ReviewError, match="another person's"):
        apply_decision(before, "undo", {}, 2, length=9)
    with pytest.raises(ReviewError, match="no decision on a code to undo"):
        apply_decision(apply_decision(before, "hold", {}, 1, length=9), "undo", {}, 1, length=9)


def test_the_codes_of_an_accepted_claim_are_undone_together():
    claimed = after(accept(HEART), ("claim", {"code": str(DIABETES)}), ("claim", {"code": "icd10cm:I10"}), ("undo", {}))
    assert list(claimed.codes) == [HEART]


def test_decisions_of_one_step_are_undone_together():
    """Decisions of one request share a key; histories from before have claims without one."""

    def claim(code, key):
        return "claim", {"code": str(code), "key": key}

    two = (claim(HEART, "a"), claim(DIABETES, "a"), claim(PNEUMONIA, "b"), accept(Code("icd10cm", "I10")))
    assert after(*two, ("undo", {})).codes == (HEART, DIABETES, PNEUMONIA)
    assert after(*two, ("undo", {}), ("undo", {})).codes == (HEART, DIABETES)
    assert after(*two, *[("undo", {})] * 3).codes == ()
    mixed = (("claim", {"code": str(HEART)}), ("claim", {"code": str(DIABETES)}), claim(PNEUMONIA, "b"))
    assert after(*mixed, ("undo", {})).codes == (HEART, DIABETES)
    assert after(*mixed, ("undo", {}), ("undo", {})).codes == ()
    poa = [("poa", {"code": str(code), "poa": "Y", "key": "p"}) for code in (HEART, DIABETES)]
    undone = after(accept(HEART), accept(DIABETES), *poa, ("undo", {}))
    assert [item.poa for item in undone.chosen] == ["", ""] and undone.codes == (HEART, DIABETES)
    other = replay(
        [("claim", {"code": str(HEART), "key": "a"}, 1), ("claim", {"code": str(DIABETES), "key": "a"}, 2)], length=9
    )
    assert apply_decision(other, "undo", {}, 2, length=9).codes == (HEART,), "only one's own decisions"


def test_evidence_is_removed_and_can_be_marked_again():
    marked = after(
        ("add", {"code": str(HEART), "start": 0, "end": 4}), ("evidence", {"code": str(HEART), "start": 5, "end": 7})
    )
    gone = apply_decision(marked, "unmark", {"code": str(HEART), "start": 0, "end": 4}, 1, length=9)
    assert gone.chosen[0].evidence == (Span(5, 7),) and gone.removed == {HEART: (Span(0, 4),)}
    again = apply_decision(gone, "evidence", {"code": str(HEART), "start": 0, "end": 4}, 1, length=9)
    assert set(again.chosen[0].evidence) == {Span(0, 4), Span(5, 7)} and not any(again.removed.values())


def test_a_second_review_cannot_be_left_by_reopening():
    asked = after(accept(HEART), ("second", {}), ("reopen", {}), ("finish", {}))
    assert asked.status == "second", "it is still due"
    with pytest.raises(ReviewError, match="another person's task"):
        apply_decision(asked, "approve", {}, 1, length=9)
    approved = apply_decision(asked, "approve", {}, 2, length=9)
    assert approved.status == "done" and approved.second_of is None
    assert after(accept(HEART), ("finish", {})).status == "done"


def test_decisions_have_keys():
    assert after(("add", {"code": str(HEART), "key": "k-1"})).keys == {"k-1"}


def test_nobody_approves_codes_that_they_have_finished():
    finished = (("add", {"code": str(HEART)}, 1), ("finish", {}, 1), ("second", {}, 2))
    again = (("add", {"code": str(HEART)}, 1), ("second", {}, 1), ("reopen", {}, 2), ("second", {}, 2))
    for past in (finished, again):
        review = replay(past, length=9)
        for user in (1, 2):
            with pytest.raises(ReviewError, match="another person's task"):
                apply_decision(review, "approve", {}, user, length=9)
        assert apply_decision(review, "approve", {}, 3, length=9).status == "done"


def test_a_stored_decision_that_new_rules_refuse_leaves_the_note_readable():
    past = [("second", {}, 1), ("approve", {}, 1), ("reopen", {}, 1), ("add", {"code": str(HEART)}, 1)]
    with pytest.raises(ReviewError):
        replay(past, length=9)
    review = replay(past, length=9, stored=True)
    assert (review.version, review.codes, review.status) == (4, (HEART,), "open")
