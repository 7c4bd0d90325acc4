"""Review time."""

from sqlalchemy import insert

from nosology.workbench.audit_log import audit_entry
from nosology.workbench.cases import record_decision
from nosology.workbench.coding import CodedNote, save_codings
from nosology.workbench.database import insert_row, read_transaction, write_transaction
from nosology.workbench.measures import MAX_PAUSE, load_reviewed_notes
from nosology.workbench.store_tables import audit, coders

START = 1_700_000_000.0


def test_review_time_ends_when_the_note_is_finished(engine, people, note_id):
    with write_transaction(engine) as connection:
        row = {"digest": "x", "name": "x", "kind": "linear", "release": None, "about": {}, "created": 0.0}
        coder = insert_row(connection, coders, row)
        for seconds in (0, 5_000):  # opened to review it, and read again long after it was finished
            entry = audit_entry(people["ann"], "note", note_id, "") | {"at": START + seconds}
            connection.execute(insert(audit), entry)
    save_codings(engine, coder, [note_id], [CodedNote((), {})])
    actions = ((30, "add", {"code": "icd10cm:I50.9"}), (40 + MAX_PAUSE, "finish", {}))
    for version, (seconds, action, details) in enumerate(actions):
        record_decision(engine, note_id, action, details, user=people["ann"], version=version, at=START + seconds)
    with read_transaction(engine) as connection:
        (reviewed,) = load_reviewed_notes(connection)
    assert reviewed.seconds == 30 + MAX_PAUSE  # the second pause is longer than it counts
