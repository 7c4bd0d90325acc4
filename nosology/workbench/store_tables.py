"""The tables of the database. Times are seconds since 1970 in UTC.

Triggers make the tables of append_only.APPEND_ONLY append-only. Rows of a note can be deleted only when its status is
`deleted`, which is final and needs an entry of the audit log.

Every event of a note is a row of `decisions`. Its version counts up from 1 within the note. The pair (note, version)
is unique: if two people saw version 7, one of them writes version 8 and the other gets a conflict. Status, version,
assignee and codes in `notes` are a summary of these rows for the queue, written in the same transaction.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import JSON, Boolean, Column, Double, ForeignKey, Integer, String, Table, event
from sqlalchemy.schema import SchemaItem

from nosology.workbench.append_only import append_only_triggers
from nosology.workbench.change_clock import change_clock

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *columns: SchemaItem) -> Table:
    """A table; without a primary key among the columns it gets an integer id."""
    has_key = any(isinstance(column, Column) and column.primary_key for column in columns)
    return Table(name, metadata, *(() if has_key else (Column("id", Integer, primary_key=True),)), *columns)


users = _table(
    "users",
    Column("name", String(80), nullable=False, unique=True),
    Column("role", String(10), nullable=False),
    Column("password", String(200)),  # an argon2 hash; None for users of OpenID Connect
    Column("subject", String(300), unique=True),  # issuer and subject of OpenID Connect
    Column("must_change", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("password_expires", Double),  # of a one-time password; None: never
    Column("created", Double, nullable=False),
)

sessions = _table(
    "sessions",
    Column("id", String(64), primary_key=True),  # SHA-256 of the cookie: a copy of the table gives no access
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("created", Double, nullable=False),
    Column("seen", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("idle", Double, nullable=False),  # seconds without a request after which it is locked
    Column("locked", Boolean, nullable=False),
    Column("address", String(60), nullable=False),  # of the sign-in
)

tokens = _table(
    "tokens",
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),
    Column("name", String(80), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("created", Double, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("scopes", JSON, nullable=False),  # see accounts.SCOPES
    Column("expires", Double, nullable=False),
    Column("used", Double),
)

coders = _table(
    "coders",
    Column("digest", String(64), nullable=False, unique=True),  # SHA-256 of bundle.json, which lists every file
    Column("name", String(200), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("release", String(10)),
    Column("about", JSON, nullable=False),
    Column("created", Double, nullable=False),
)

batches = _table(
    "batches",
    Column("name", String(200), nullable=False),
    Column("user_id", Integer, ForeignKey("users.id")),
    Column("created", Double, nullable=False),
    Column("finished", Double),
    Column("status", String(10), nullable=False),  # waiting, cancelled, done
    Column("total", Integer, nullable=False),  # new encounters
    Column("known", Integer, nullable=False),  # documents that were skipped, because their ids existed already
    Column("documents", Integer, nullable=False),  # that were added
    Column("corrected", Integer, nullable=False),  # documents that came again with another text
)

notes = _table(  # encounters, each with one or more documents
    "notes",
    Column("ref", String(200), nullable=False, unique=True),  # of the encounter, or else of its only document
    Column("patient", String(200)),
    Column("site", String(200)),
    Column("lang", String(20)),
    Column("encounter", JSON, nullable=False),  # date, sex, age and other columns, see uploads.normalize_encounter
    Column("batch_id", Integer, ForeignKey("batches.id"), index=True),
    Column("received", Double, nullable=False),
    Column("coding", String(10), nullable=False),  # state of automatic coding: waiting, done, failed, cancelled
    Column("status", String(12), nullable=False),  # state of the review: see review.STATUSES; or deleted
    Column("version", Integer, nullable=False),  # of the last decision
    Column("assignee_id", Integer, ForeignKey("users.id"), index=True),
    Column("confidence", Double),
    Column("codes", Integer, nullable=False),  # number of chosen codes
    Column("finished", Double),
    Column("sent_back", Boolean, nullable=False, server_default=sa.false()),  # by second review, not finished since
    # The note of which this is a copy for double coding: both have the text and the codings of the note.
    Column("double_of", Integer, ForeignKey("notes.id"), index=True, unique=True),
    # of the row; every insert and update sets it
    Column("changed", Double, nullable=False, index=True, default=change_clock.now, onupdate=change_clock.now),
    # has all columns by which the queue is counted and ordered, so that the table is not read for it
    sa.Index("ix_notes_status_received", "status", "received", "assignee_id", "double_of", "confidence"),
    sa.Index("ix_notes_coding", "coding"),
    sa.Index("ix_notes_confidence", "confidence"),
    sa.Index("ix_notes_site", "site"),
)

# Separate from the notes, so that queries of the queue do not read them. Their states are in the decisions.
documents = _table(
    "documents",
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False, index=True),
    Column("batch_id", Integer, ForeignKey("batches.id"), index=True),  # in which it came
    Column("ref", String(200), nullable=False),
    Column("version", Integer, nullable=False),  # 1, and one more for each corrected text
    Column("kind", String(20), nullable=False),  # see documents.DOCUMENT_KINDS
    Column("title", String(200), nullable=False),
    Column("date", String(10)),
    Column("text", sa.Text, nullable=False),
    Column("length", Integer, nullable=False),  # in characters
    Column("start", Integer, nullable=False),  # of its first character in the text of the encounter
    Column("received", Double, nullable=False),
    sa.UniqueConstraint("ref", "version"),
)

codings = _table(
    "codings",
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False, index=True),
    Column("coder_id", Integer, ForeignKey("coders.id"), nullable=False),
    Column("made", Double, nullable=False),
    Column("suggestions", JSON, nullable=False),  # see cases.suggestion_to_json
    Column("profile", JSON, nullable=False),  # numbers for drift detection, no text: see coding.note_profile
    Column("claim", JSON(none_as_null=True)),  # the proposed claim, see stored_claims; None: a page builds it
)

decisions = _table(
    "decisions",
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("user_id", Integer, ForeignKey("users.id")),  # None: the triage rule
    Column("at", Double, nullable=False, index=True),
    Column("action", String(12), nullable=False),
    Column("details", JSON, nullable=False),
    sa.UniqueConstraint("note_id", "version"),
)

comments = _table(
    "comments",
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False),
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),
    Column("at", Double, nullable=False),
    Column("code", String(40)),  # such as icd10cm:I50.9
    Column("text", sa.Text, nullable=False),
    Column("key", String(64)),  # that the client chose; one that is sent again is stored once
    sa.UniqueConstraint("note_id", "key"),
)

queries = _table(
    "queries",
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False),
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),  # who asks
    Column("at", Double, nullable=False),
    Column("physician_id", Integer, ForeignKey("users.id")),  # None: any physician
    Column("question", sa.Text, nullable=False),
    Column("options", JSON, nullable=False),  # the answers to choose from; and two more, see conversation.FIXED
    Column("code", String(40)),
    Column("start", Integer),  # characters of the passage
    Column("end", Integer),
    Column("key", String(64)),
    sa.UniqueConstraint("note_id", "key"),
)

# a query is closed once: by its answer, or withdrawn
query_events = _table(
    "query_events",
    Column("query_id", Integer, ForeignKey("queries.id"), nullable=False, unique=True),
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False, index=True),
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),  # who answered, recorded or withdrew
    Column("at", Double, nullable=False),
    Column("kind", String(10), nullable=False),  # answered, withdrawn
    Column("physician", String(80)),  # the name of who answered
    Column("answer", sa.Text),
    Column("text", sa.Text),
)


def _result_table(name: str) -> Table:
    """A table of results about finished encounters, see finished_encounters; those of an older version do not count."""
    return _table(
        name,
        Column("note_id", Integer, ForeignKey("notes.id"), primary_key=True),
        Column("version", Integer, nullable=False),  # of the review
        Column("made", Double, nullable=False),
        Column("found", Integer, nullable=False),  # number of findings
        Column("findings", JSON(none_as_null=True)),  # without words of the note; None: it cannot be done
    )


bill_audits = _result_table("bill_audits")  # findings of an audit of the final codes, see bill_audit
found_gaps = _result_table("found_gaps")  # documentation gaps, see department_gaps

audit = _table(
    "audit",
    Column("at", Double, nullable=False, index=True),
    Column("user_id", Integer, ForeignKey("users.id")),
    Column("what", String(40), nullable=False),
    Column("note_id", Integer, index=True),
    Column("address", String(60)),
    Column("object", String(1000), nullable=False),  # what the action was about: a user, a setting, a batch
)

settings = _table("settings", Column("name", String(40), primary_key=True), Column("value", JSON, nullable=False))


for _dialect in ("sqlite", "postgresql"):
    for _statement in append_only_triggers(_dialect):
        event.listen(metadata, "after_create", sa.DDL(_statement.replace("%", "%%")).execute_if(dialect=_dialect))
