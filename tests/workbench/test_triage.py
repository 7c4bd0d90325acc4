"""Confidence, the triage rule, which notes count, and what the rule guarantees."""

import numpy as np
import pytest
from sqlalchemy import select

from nosology.claims.checks import AssignedCode
from nosology.core import Code, ConfigError, Note, Suggestion
from nosology.workbench import triage
from nosology.workbench.cases import load_case, record_decision
from nosology.workbench.coding import CodedNote, save_codings
from nosology.workbench.database import insert_row, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.encounter_services import encounter_details
from nosology.workbench.measures import ReviewedNote, load_reviewed_notes, population_stability_index
from nosology.workbench.review import Review
from nosology.workbench.store_settings import save_setting
from nosology.workbench.store_tables import coders, notes
from nosology.workbench.triage import CalibrationPeriod, TriageRule, expected_f1, is_sampled
from nosology.workbench.triage_guarantee import (
    DELTA,
    Guarantee,
    PassRule,
    TriageGoal,
    calibrate,
    find_guarantee,
    load_guarantee,
    restart,
    triage_losses,
)

CODES = [Code("icd10cm", f"A{number:02d}") for number in range(20)]
STAY = {"sex": "F", "age": 70, "date": "2025-11-03", "kind": "inpatient"}


def reviewed(number, confidence, accepted, final, *, encounter=STAY, at_coding=None, by_person=True):
    """A reviewed note with these codes."""
    review = Review(tuple(AssignedCode(code, "suggested") for code in final))
    known = encounter if at_coding is None else at_coding
    return ReviewedNote(number, encounter, known, tuple(accepted), review, confidence, 10.0, 1.0, by_person)


def with_errors(number, confidence, errors, **options):
    """A note with one right code and this many missing ones."""
    return reviewed(number, confidence, CODES[:1], CODES[: errors + 1], **options)


def suggestions(*pairs):
    return [Suggestion("icd10cm", "I10", "", p, bool(a)) for p, a in pairs]


def test_confidence_is_the_expected_f1():
    assert expected_f1(suggestions((1.0, True), (1.0, True))) == 1.0
    assert expected_f1([]) == 0.0 and expected_f1(suggestions((0.4, False))) == 0.0
    # expected: 0.8 true positives, 0.2 false positives, 0.2 false negatives: 1.6 / (1.6 + 0.4)
    assert expected_f1(suggestions((0.8, True), (0.2, False))) == pytest.approx(0.8)


def test_expected_f1_is_the_mean_f1_of_random_draws():
    """If codes are true with the stated probability, the mean F1 of many notes is near the confidence."""
    rng = np.random.default_rng(0)
    p = np.array([0.95, 0.9, 0.9, 0.8, 0.7, 0.3, 0.1, 0.05])
    accepted = p >= 0.5
    true = rng.random((4000, len(p))) < p
    hits = (true & accepted).sum(1)
    f1 = 2 * hits / (true.sum(1) + accepted.sum())
    assert expected_f1(suggestions(*zip(p, accepted))) == pytest.approx(f1.mean(), abs=0.02)


def guarantee(threshold=0.8, loss="errors", coder=1) -> Guarantee:
    return Guarantee(loss, 0.5, threshold, 100, 90, 40, 0.1, 40, 1, coder, 0, 0.0)


def test_confident_notes_pass_except_a_sample():
    rule = PassRule(TriageRule(on=True, sample=0.25), guarantee(), 1)
    taken = [rule.passes(number, 0.8, {}) for number in range(4000)]
    assert 0.70 < np.mean(taken) < 0.80
    assert taken == [not is_sampled(number, 0.25) for number in range(4000)]
    assert not any(rule.passes(number, 0.79, {}) for number in range(100))
    with pytest.raises(ConfigError, match=r"must lie in \[0.01, 1\]; got 0"):
        TriageRule(sample=0.0)


@pytest.mark.parametrize(
    "rule",
    [
        PassRule(TriageRule(on=False), guarantee(), 1),
        PassRule(TriageRule(on=True), None, 1),
        PassRule(TriageRule(on=True), guarantee(threshold=None), 1),
        PassRule(TriageRule(on=True), guarantee(coder=2), 1),
    ],
)
def test_nothing_passes_without_a_rule_and_a_guarantee_for_the_coder(rule):
    assert not any(rule.passes(number, 1.0, STAY) for number in range(100))


def test_only_inpatients_pass_where_the_drg_is_guaranteed():
    rule = PassRule(TriageRule(on=True), guarantee(loss="drg"), 1)
    number = next(number for number in range(100) if not is_sampled(number, 0.1))
    assert rule.passes(number, 0.9, STAY)
    for change in ({"kind": "outpatient"}, {"sex": None}, {"age": None}):
        assert not rule.passes(number, 0.9, {**STAY, **change})


def test_notes_count_only_if_people_review_them_whatever_their_confidence():
    never, since = CalibrationPeriod(), CalibrationPeriod(start=5.0, rule_on=10.0, share=0.2)
    assert all(never.counts(number, 3.0) for number in range(100))
    assert not any(since.counts(number, 4.9) for number in range(100))
    assert all(since.counts(number, 9.9) for number in range(100))
    assert [since.counts(number, 10.0) for number in range(100)] == [is_sampled(number, 0.2) for number in range(100)]


def test_the_period_keeps_the_smallest_sample_until_it_starts_again(engine):
    with write_transaction(engine) as connection:
        triage.save_triage_rule(connection, TriageRule(on=False, sample=0.05))
        assert triage.load_period(connection) == CalibrationPeriod()
        triage.save_triage_rule(connection, TriageRule(on=True, sample=0.2))
        first = triage.load_period(connection)
        assert first.share == 0.2 and first.rule_on is not None
        for rule in (TriageRule(True, 0.1), TriageRule(True, 0.5), TriageRule(False)):
            triage.save_triage_rule(connection, rule)
        assert triage.load_period(connection) == CalibrationPeriod(0.0, first.rule_on, 0.1)
        triage.start_period(connection)
        again = triage.load_period(connection)
        assert again.start > 0 and again.rule_on is None and again.share == 1.0


def test_no_note_of_an_older_store_counts_where_a_rule_was_on(engine, note_id):
    with write_transaction(engine) as connection:
        save_setting(connection, "triage", {"on": True, "threshold": 0.9, "sample": 0.0})
        assert triage.load_triage_rule(connection) == TriageRule(True, 0.01)
        assert not any(triage.load_period(connection).counts(number, 1.0) for number in range(100))
        save_setting(connection, "triage", {"on": False, "threshold": 0.9, "sample": 0.1})
        assert triage.load_period(connection).counts(1, 1.0)
    record_decision(engine, note_id, "preaccept", {"codes": [str(CODES[0])]}, user=None, version=0)
    with read_transaction(engine) as connection:
        assert not any(triage.load_period(connection).counts(number, 1.0) for number in range(100))


def coded_store(engine, number=5, digest="d"):
    """A coder that has coded some new notes."""
    about = {"digest": digest, "name": "coder", "kind": "linear", "about": {}, "created": 0.0}
    with write_transaction(engine) as connection:
        coder = insert_row(connection, coders, about)
        add_notes(connection, [Note(f"{digest}{i}", "heart failure") for i in range(number)], None)
        ids = list(connection.scalars(select(notes.c.id).where(notes.c.coding == "waiting").order_by(notes.c.id)))
    save_codings(engine, coder, ids, [CodedNote((Suggestion("icd10cm", "I50.9", "", 0.9, True),), {})] * number)
    return coder, ids


def finish(engine, note, user):
    record_decision(engine, note, "accept", {"code": "icd10cm:I50.9"}, user=user, version=0)
    record_decision(engine, note, "finish", {}, user=user, version=1)


def test_notes_count_up_to_the_first_that_is_not_finished(engine, people):
    coder, ids = coded_store(engine)
    for note in (ids[0], ids[1], ids[3]):
        finish(engine, note, people["ann"])
    with read_transaction(engine) as connection:
        counted = triage.count_notes(connection)
    assert (counted.coder_id, counted.ids) == (coder, ids[:2])
    assert counted.waiting == {ids[2]: "d2", ids[4]: "d4"}
    assert counted.later == 1
    finish(engine, ids[2], people["ann"])
    with read_transaction(engine) as connection:
        assert triage.count_notes(connection).ids == ids[:4]
    other, _ = coded_store(engine, 2, "e")
    with read_transaction(engine) as connection:
        counted = triage.count_notes(connection)
    assert counted.coder_id == other and counted.ids == [] and len(counted.waiting) == 2


def test_a_store_without_codings_has_no_counted_notes(engine):
    with read_transaction(engine) as connection:
        assert triage.count_notes(connection) == triage.CountedNotes()


def test_calibrations_are_numbered_until_a_new_start(engine, people):
    coder, ids = coded_store(engine)
    finish(engine, ids[0], people["ann"])
    goal = TriageGoal("errors", 1.0)
    with write_transaction(engine) as connection:
        first, second = calibrate(connection, goal), calibrate(connection, goal)
        assert load_guarantee(connection) == second
        assert (first.number, second.number, first.coder_id, first.notes) == (1, 2, coder, 1)
        assert first.threshold is None and second.fewest > first.fewest > 1
        restart(connection)
        assert load_guarantee(connection) is None and triage.count_notes(connection).ids == []
        assert calibrate(connection, goal).number == 1


def test_the_errors_of_all_calibrations_together_stay_within_delta():
    assert sum(DELTA / (k * (k + 1)) for k in range(1, 10_000)) <= DELTA


def test_a_guarantee_keeps_what_it_says():
    """The mean errors of notes at or above a threshold t are 2 * (1 - t)."""
    rng = np.random.default_rng(0)
    confidences = rng.random(2000)
    errors = rng.poisson(4 * (1 - confidences))
    notes = [with_errors(number, float(c), int(e)) for number, (c, e) in enumerate(zip(confidences, errors))]
    thresholds = []
    for tolerated in (0.5, 1.0, 1.5):
        found = find_guarantee(notes, TriageGoal("errors", tolerated), 1)
        assert 2 * (1 - found["threshold"]) <= tolerated and found["threshold"] == round(found["threshold"], 2)
        assert found["found"] <= tolerated and found["passed"] > 50
        thresholds.append(found["threshold"])
    assert thresholds == sorted(thresholds, reverse=True)
    assert find_guarantee(notes, TriageGoal("errors", 1.0), 1) == find_guarantee(
        notes[::-1], TriageGoal("errors", 1.0), 1
    )


@pytest.mark.parametrize("loss", ["errors", "not_exact", "drg"])
def test_nothing_may_pass_where_there_are_too_few_notes(loss):
    notes = [with_errors(number, 0.9, 0) for number in range(10)]
    found = find_guarantee(notes, TriageGoal(loss, 0.05), 1)
    assert found["threshold"] is None and found["notes"] == 10 < found["fewest"]
    assert find_guarantee([], TriageGoal(loss, 0.05), 1)["threshold"] is None


def test_notes_of_the_rule_and_outpatients_are_left_out():
    notes = [with_errors(1, 0.9, 0), with_errors(2, 0.9, 0, by_person=False)]
    notes.append(with_errors(3, 0.9, 0, encounter={**STAY, "kind": "outpatient"}))
    assert find_guarantee(notes, TriageGoal("errors", 0.5), 1)["notes"] == 2
    assert find_guarantee(notes, TriageGoal("drg", 0.5), 1)["notes"] == 1


def test_data_that_people_complete_after_coding_do_not_count_for_what_may_pass(engine, people):
    coder, (first, second) = coded_store(engine, 2)
    stay = {"sex": "F", "age": 70, "setting": "inpatient", "discharged": "2025-11-03"}
    with read_transaction(engine) as connection:
        details = encounter_details(load_case(connection, first), stay)
    record_decision(engine, first, "encounter", details, user=people["ann"], version=0)
    for note, version in ((first, 1), (second, 0)):
        record_decision(engine, note, "accept", {"code": "icd10cm:I50.9"}, user=people["ann"], version=version)
        record_decision(engine, note, "finish", {}, user=people["ann"], version=version + 1)
    with read_transaction(engine) as connection:
        known = {note.note_id: note for note in load_reviewed_notes(connection)}
    assert (known[first].encounter["sex"], known[first].encounter["kind"]) == ("F", "inpatient")
    assert "sex" not in known[first].at_coding and "kind" not in known[first].at_coding
    rule = PassRule(TriageRule(on=True), guarantee(loss="drg", coder=coder), coder)
    assert not rule.passes(first, 1.0, known[first].at_coding)
    assert find_guarantee(list(known.values()), TriageGoal("drg", 0.5), 1)["notes"] == 0


def test_the_drg_loss_compares_the_data_at_coding_with_the_final_data():
    infarct = Code("icd10cm", "I21.4")  # the DRG of those who died is another one
    died = reviewed(1, 0.9, [infarct], [infarct], at_coding=STAY, encounter={**STAY, "disposition": "20"})
    assert triage_losses([died, reviewed(2, 0.9, [infarct], [infarct])], "drg").tolist() == [1, 0]
    later = reviewed(3, 0.9, CODES[:1], CODES[:1], at_coding={**STAY, "age": None})
    assert find_guarantee([later], TriageGoal("drg", 0.5), 1)["notes"] == 0


def test_losses_of_a_note():
    heart, kidney, fracture = (Code("icd10cm", code) for code in ("I50.21", "N18.30", "S72.001A"))
    same, order = reviewed(1, 0.9, [heart, kidney], [heart, kidney]), reviewed(2, 0.9, [kidney, heart], [heart, kidney])
    other = reviewed(3, 0.9, [heart], [fracture, heart])
    assert triage_losses([same, order, other], "errors").tolist() == [0, 0, 1]
    assert triage_losses([same, order, other], "not_exact").tolist() == [0, 0, 1]
    assert triage_losses([same, order, other], "drg").tolist() == [0, 1, 1]  # by another principal diagnosis, too
    assert triage_losses([reviewed(4, 0.9, [], [])], "drg").tolist() == [1]  # no DRG: not known to be right


def test_goals_are_checked_and_put_in_words():
    with pytest.raises(ConfigError, match=r"between 0\.001 and 10; got 12"):
        TriageGoal("errors", 12)
    with pytest.raises(ConfigError, match=r"between 0\.001 and 1; got 5"):
        TriageGoal("drg", 5)
    assert TriageGoal("drg", 0.05).words == "at most 5 in 100 encounters with another DRG"
    assert TriageGoal("errors", 0.5).words.startswith("at most 0.5 wrong or missing codes per encounter")


def test_population_stability_index_detects_a_shift():
    rng = np.random.default_rng(1)
    then, same, moved = rng.normal(0, 1, 800), rng.normal(0, 1, 800), rng.normal(1, 1, 800)
    assert population_stability_index(then, same) < 0.1 < 0.25 < population_stability_index(then, moved)
    assert population_stability_index(then[:10], same) is None
