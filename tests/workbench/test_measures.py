"""Reviewed notes as a corpus, the demo, and the agreement between its coder and reviewers."""

import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from nosology.cli.corpus_commands import prepare
from nosology.core import Code, DataError, Evidence, Note
from nosology.corpora.corpus import Corpus
from nosology.workbench import demo
from nosology.workbench.audit_log import read_log
from nosology.workbench.cases import add_notes, load_case, record_decision
from nosology.workbench.database import audit, batches, notes, open_database, read_transaction, users, write_transaction
from nosology.workbench.export import reviewed_notes
from nosology.workbench.measures import (
    agreement_by_chapter,
    agreement_by_code,
    agreement_by_day,
    load_reviewed_notes,
    measure_drift,
    total_agreement,
)

HEART = Code("icd10cm", "I50.9")


@pytest.fixture
def finished(engine, people):
    """Two finished notes, one in work, one that only the triage rule has seen."""
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", f"heart failure {i}", patient=f"p{i}") for i in range(4)], None)
    for note in (1, 2, 3):
        record_decision(engine, note, "add", {"code": str(HEART), "start": 0, "end": 5}, user=people["ann"], version=0)
    for note in (1, 2):
        record_decision(engine, note, "finish", {}, user=people["ann"], version=1)
    record_decision(engine, 4, "preaccept", {"codes": [str(HEART)]}, user=None, version=0)
    return engine


def test_reviewed_notes_are_those_that_people_finished(finished):
    notes = list(reviewed_notes(finished))
    assert [note.id for note in notes] == ["n0", "n1"]
    assert notes[0].codes == (HEART,) and notes[0].evidence == (Evidence(HEART, 0, 5),)
    assert notes[0].patient == "p0"
    with read_transaction(finished) as connection:
        assert [(row["what"], row["note_id"]) for row in read_log(connection)] == [("corpus", 2), ("corpus", 1)]


def test_corpus_prepare_reviews_hides_the_address_of_the_store(finished, store, tmp_path):
    prepare("reviews", [Path(store)], tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    assert [note.codes for note in corpus.notes()] == [(HEART,), (HEART,)]
    assert corpus.manifest["source"]["kind"] == "reviews" and corpus.manifest["source"]["paths"] == []
    with pytest.raises(DataError, match="no such store"):
        prepare("reviews", [tmp_path / "nothing.db"], tmp_path / "other")


def test_corpus_prepare_of_a_store_without_reviews(store, tmp_path):
    open_database(store).dispose()
    with pytest.raises(DataError, match="the store has no reviewed notes"):
        prepare("reviews", [Path(store)], tmp_path / "corpus")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A small demo."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "TRAINING_PATIENTS": 30,
            "QUEUE_PATIENTS": 5,
            "REVIEWED_NOTES": 4,
            "MIN_CODE_COUNT": 3,
        }.items():
            patch.setattr(demo, name, value)
        bundle = demo.demo_bundle(folder)
        demo.fill_demo(str(folder / "demo.db"), bundle)
        demo.fill_demo(str(folder / "demo.db"), bundle)  # a second start leaves it as it is
    engine = open_database(str(folder / "demo.db"))
    yield engine
    engine.dispose()


def test_the_demo_has_users_a_queue_and_reviewed_notes(shown):
    with read_transaction(shown) as connection:
        assert connection.scalar(select(func.count()).select_from(users)) == 3
        by_status = dict(connection.execute(select(notes.c.status, func.count()).group_by(notes.c.status)).all())
        case = load_case(connection, 1)
    assert by_status["done"] == 4 and by_status["new"] >= 1
    assert case.review.status == "done" and case.suggestions and case.note["encounter"]["sex"] in ("F", "M")


def test_agreement_counts_of_the_demo_add_up(shown):
    with read_transaction(shown) as connection:
        reviewed, changes = load_reviewed_notes(connection), measure_drift(connection)
    total = total_agreement(reviewed)
    assert len(reviewed) == 4 and all(item.by_person and item.seconds > 0 for item in reviewed)
    assert total.kept == sum(len(item.suggested & item.final) for item in reviewed)
    assert (
        sum(row.final for row in agreement_by_chapter(reviewed))
        == total.final
        == sum(len(item.final) for item in reviewed)
    )
    assert sum(day[1] for day in agreement_by_day(reviewed)) == 4
    assert agreement_by_code(reviewed)[0].final >= 1 and {row.verdict for row in changes} == {"too few notes"}


def test_the_demo_has_the_dates_that_it_tells(shown):
    now = time.time()
    with read_transaction(shown) as connection:
        created = dict(connection.execute(select(batches.c.name, batches.c.created)).all())
        logged = connection.scalars(select(audit.c.at).order_by(audit.c.id)).all()
    assert now - created[demo.PAST_BATCH] > 8 * 86_400
    assert logged == sorted(logged) and len(logged) == 4
