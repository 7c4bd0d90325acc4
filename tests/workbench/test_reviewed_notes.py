"""Reviewed notes as a corpus."""

from pathlib import Path

import pytest

from nosology.cli.corpus_commands import prepare
from nosology.core import Code, DataError, Evidence, Note
from nosology.corpora.corpus import Corpus
from nosology.workbench.audit_log import read_log
from nosology.workbench.cases import record_decision
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.export import reviewed_notes

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
