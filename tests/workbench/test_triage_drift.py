"""The alarm of triage: raised by notes that differ, it stops the rule until a reviewer acknowledges it."""

import numpy as np
import pytest
from sqlalchemy import func, select

from nosology.core import Note, Suggestion
from nosology.workbench import triage_drift
from nosology.workbench.audit_log import read_log
from nosology.workbench.coding import CodedNote, save_codings
from nosology.workbench.database import insert_row, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.measures import DRIFT_FEATURES, measure_drift
from nosology.workbench.store_settings import save_setting
from nosology.workbench.store_tables import coders, notes
from nosology.workbench.triage import TriageRule, save_triage_rule
from nosology.workbench.triage_guarantee import Guarantee, load_guarantee, newest_coding


class Stream:
    """A coder and its notes: words has the number of words of each, and every note reaches the threshold."""

    def __init__(self, engine):
        self.engine, self.rng, self.number = engine, np.random.default_rng(0), 0
        about = {"digest": "d", "name": "coder", "kind": "linear", "about": {}, "created": 0.0}
        with write_transaction(engine) as connection:
            self.coder = insert_row(connection, coders, about)

    def add(self, count: int, words: float, chunk: int = 20) -> list[str]:
        """The statuses of new notes with about this many words."""
        statuses = []
        for _ in range(count // chunk):
            with write_transaction(self.engine) as connection:
                self.number += chunk
                new = [Note(f"n{self.number - i}", "heart failure") for i in range(chunk)]
                add_notes(connection, new, None)
                query = select(notes.c.id).where(notes.c.coding == "waiting").order_by(notes.c.id)
                ids = list(connection.scalars(query))
            found = (Suggestion("icd10cm", "I50.9", "", 0.9, True),)
            results = [CodedNote(found, {"words": float(self.rng.normal(words, 20))}) for _ in ids]
            save_codings(self.engine, self.coder, ids, results)
            with read_transaction(self.engine) as connection:
                statuses += connection.scalars(select(notes.c.status).where(notes.c.id.in_(ids)))
        return statuses

    def alarm(self):
        with read_transaction(self.engine) as connection:
            return triage_drift.load_alarm(connection)


@pytest.fixture
def stream(engine) -> Stream:
    """A store with 200 notes before the calibration and a rule that is on."""
    stream = Stream(engine)
    stream.add(200, 300)
    with write_transaction(engine) as connection:
        coding = newest_coding(connection)
        found = Guarantee("errors", 0.5, 0.5, 200, 180, 150, 0.1, 40, 1, stream.coder, coding, 1.0)
        save_setting(connection, "triage_guarantee", found)
        save_triage_rule(connection, TriageRule(on=True, sample=0.1))
    return stream


def test_notes_like_those_of_the_calibration_pass(stream):
    statuses = stream.add(200, 300)
    assert stream.alarm() is None and 150 < statuses.count("preaccepted") < 200


def test_an_alarm_stops_the_rule_until_it_is_acknowledged(stream):
    statuses = stream.add(100, 400)
    alarm = stream.alarm()
    assert alarm is not None and alarm.title == DRIFT_FEATURES["words"] and alarm.notes < 60
    assert statuses.count("preaccepted") > 0 and set(statuses[alarm.notes + 20 :]) == {"new"}
    with read_transaction(stream.engine) as connection:
        raised = [row for row in read_log(connection) if row["what"] == "triage alarm"]
    assert len(raised) == 1 and raised[0]["object"] == f"{alarm.title}, after {alarm.notes} encounters"
    with write_transaction(stream.engine) as connection:
        triage_drift.end_alarm(connection)
    assert stream.alarm() is None
    assert "preaccepted" in stream.add(20, 300) and stream.alarm() is None  # the monitors begin again
    stream.add(100, 400)
    assert stream.alarm() is not None  # the reference is still that of the calibration


def test_a_server_that_starts_again_has_the_same_monitors(stream):
    stream.add(60, 310)
    with read_transaction(stream.engine) as connection:
        guarantee = load_guarantee(connection)
        running = triage_drift.watch_drift(stream.engine, connection, guarantee)
        triage_drift._watches.clear()
        started = triage_drift.watch_drift(stream.engine, connection, guarantee)
    assert started is not running and started.notes == running.notes == 60
    for name in running.monitors:
        assert started.monitors[name].log_wealth == running.monitors[name].log_wealth


def test_nothing_is_monitored_without_a_guarantee(engine):
    with read_transaction(engine) as connection:
        assert triage_drift.watch_drift(engine, connection, None) is None
        assert connection.scalar(select(func.count()).select_from(notes)) == 0


def test_features_that_older_versions_did_not_store_are_not_monitored(stream):
    """The notes of this store have no number of capitals, and nothing else but words and confidence."""
    stream.add(20, 300)
    with read_transaction(stream.engine) as connection:
        watch = triage_drift.watch_drift(stream.engine, connection, load_guarantee(connection))
        drift = {row.name: row for row in measure_drift(connection)}
    assert set(watch.monitors) == {"words", "confidence"}
    assert drift["capitals"].index is None and drift["words"].index is not None


def test_features_without_variation_raise_no_alarm(stream):
    """Ties are broken at random: a feature that all notes share says nothing."""
    stream.add(400, 300)
    assert stream.alarm() is None
