"""What second review changed: properties over random decisions, and the states that are compared."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.claims.checks import AssignedCode
from nosology.core import Code, ReviewError
from nosology.workbench.replay import apply_decision
from nosology.workbench.review import POA, Review
from nosology.workbench.second_review import REVIEW_CHANGES, ReviewChange, review_changes, second_reviews

CODES = [Code("icd10cm", code) for code in ("I50.9", "I50.22", "I10", "E11.9", "E11.22", "N18.30", "J18.9")]
KEYS = [str(code) for code in CODES]
ANN, RITA = 1, 2

code_lists = st.lists(st.sampled_from(CODES), unique=True, max_size=7).flatmap(
    lambda codes: st.tuples(
        *(st.sampled_from(sorted(POA)).map(lambda poa, code=code: AssignedCode(code, "added", poa)) for code in codes)
    )
)
edits = st.one_of(
    st.tuples(st.just("add"), st.fixed_dictionaries({"code": st.sampled_from(KEYS)})),
    st.tuples(st.just("clear"), st.fixed_dictionaries({"code": st.sampled_from(KEYS)})),
    st.tuples(st.just("reject"), st.fixed_dictionaries({"code": st.sampled_from(KEYS), "reason": st.just("wrong")})),
    st.tuples(st.just("change"), st.fixed_dictionaries({"code": st.sampled_from(KEYS), "to": st.sampled_from(KEYS)})),
    st.tuples(
        st.just("poa"), st.fixed_dictionaries({"code": st.sampled_from(KEYS), "poa": st.sampled_from(sorted(POA))})
    ),
    st.tuples(st.just("order"), st.randoms(use_true_random=False)),
    st.tuples(st.just("undo"), st.just({})),
)


class History:
    """Decisions that are valid one after the other, and the state after them."""

    def __init__(self):
        self.review, self.decisions = Review(), []

    def take(self, action, details, user) -> bool:
        if action == "order":
            order = [str(code) for code in self.review.codes]
            details.shuffle(order)
            details = {"codes": order}
        try:
            self.review = apply_decision(self.review, action, details, user, length=100)
        except ReviewError:
            return False
        self.decisions.append((action, details, user))
        return True


def of_kind(changes, kind):
    return [change for change in changes if change.kind == kind]


def check_changes(before, after, changes):
    """The changes turn the codes before into the codes after."""
    old, new = [item.code for item in before], [item.code for item in after]
    gone = {change.before for change in of_kind(changes, "removed") + of_kind(changes, "changed")}
    come = {change.after for change in of_kind(changes, "added") + of_kind(changes, "changed")}
    assert {code.code for code in old} - gone | come == {code.code for code in new}
    assert gone <= {code.code for code in old} and come <= {code.code for code in new}
    assert not gone & {code.code for code in new} and not come & {code.code for code in old}
    was = {change.after: change.before for change in of_kind(changes, "changed")}
    assert len(was) == len(set(was.values()))
    poa = {item.code.code: item.poa for item in before}
    poa = {name: poa[was.get(name, name)] for name in (code.code for code in new) if was.get(name, name) in poa}
    for change in of_kind(changes, "poa"):
        assert poa[change.code.code] == change.before != change.after
        poa[change.code.code] = change.after
    assert all(poa.get(item.code.code, item.poa) == item.poa for item in after)
    kept = [was.get(code.code, code.code) for code in new if code.code not in come or code.code in was]
    is_same_order = kept == [code.code for code in old if code.code in kept]
    assert is_same_order == (not of_kind(changes, "reordered"))
    assert {change.kind for change in changes} <= REVIEW_CHANGES.keys()


@given(code_lists, code_lists)
def test_changes_turn_one_list_into_the_other(before, after):
    check_changes(before, after, review_changes(before, after))


@given(code_lists)
def test_equal_lists_have_no_changes(codes):
    assert review_changes(codes, codes) == ()


@given(code_lists, code_lists)
def test_the_way_back_swaps_added_and_removed(before, after):
    there, back = review_changes(before, after), review_changes(after, before)
    for one, other in (("added", "removed"), ("removed", "added"), ("poa", "poa"), ("reordered", "reordered")):
        assert {change.code for change in of_kind(there, one)} == {change.code for change in of_kind(back, other)}


@settings(max_examples=150, deadline=None)
@given(st.lists(edits, max_size=6), st.lists(edits, max_size=10), st.booleans())
def test_a_second_review_is_the_difference_of_the_finished_and_the_approved_state(coded, reviewed, asked_by_finish):
    history = History()
    for action, details in coded:
        history.take(action, details, ANN)
    history.take("finish" if asked_by_finish else "second", {}, ANN)
    if asked_by_finish:
        history.take("second", {}, RITA)  # asked for a note that is done: another person reviews it
    base = history.review.chosen
    reviewer = 3
    for action, details in reviewed:
        history.take(action, details, reviewer)
    assert second_reviews(history.decisions) == []  # not approved yet
    assert history.take("approve", {}, reviewer)
    [found] = second_reviews(history.decisions)
    assert (found.coder, found.reviewer, found.version) == (ANN, reviewer, history.review.version)
    assert found.returns == 0
    check_changes(base, history.review.chosen, found.changes)


def run(*decisions):
    history = History()
    for action, details, user in decisions:
        assert history.take(action, dict(details), user), (action, details)
    return second_reviews(history.decisions)


ADD = [("add", {"code": "icd10cm:I50.9"}, ANN), ("add", {"code": "icd10cm:I10"}, ANN)]
BACK = {"explanation": "I11.0 is missing"}


def test_a_code_that_is_changed_twice_is_one_change():
    [found] = run(
        *ADD,
        ("second", {}, ANN),
        ("change", {"code": "icd10cm:I50.9", "to": "icd10cm:I50.22"}, RITA),
        ("change", {"code": "icd10cm:I50.22", "to": "icd10cm:E11.9"}, RITA),
        ("approve", {}, RITA),
    )
    assert found.changes == (ReviewChange("changed", CODES[3], "I50.9", "E11.9"),)


def test_what_the_coder_corrects_after_a_note_was_sent_back_counts():
    [found] = run(
        *ADD,
        ("second", {}, ANN),
        ("return", BACK, RITA),
        ("add", {"code": "icd10cm:E11.9"}, ANN),
        ("finish", {}, ANN),
        ("approve", {}, RITA),
    )
    assert [change.kind for change in found.changes] == ["added"] and (found.returns, found.coder) == (1, ANN)


def test_what_the_coder_corrects_before_anybody_has_reviewed_does_not_count():
    [found] = run(
        *ADD,
        ("second", {}, ANN),
        ("reopen", {}, ANN),
        ("add", {"code": "icd10cm:E11.9"}, ANN),
        ("finish", {}, ANN),
        ("approve", {}, RITA),
    )
    assert found.changes == ()


def test_a_second_second_review_is_compared_with_the_state_that_it_got():
    first, second = run(
        *ADD,
        ("second", {}, ANN),
        ("reject", {"code": "icd10cm:I10", "reason": "wrong"}, RITA),
        ("approve", {}, RITA),
        ("second", {}, RITA),
        ("add", {"code": "icd10cm:E11.9"}, 3),
        ("approve", {}, 3),
    )
    assert [change.kind for change in first.changes] == ["removed"]
    assert [change.kind for change in second.changes] == ["added"]


def test_an_approved_triage_is_no_second_review():
    assert run(("preaccept", {"codes": ["icd10cm:I10"]}, None), ("approve", {}, RITA)) == []
