"""The tables. Times are seconds since 1970 in UTC; by triggers, decisions, codings, texts and audit are append-only.

Everything that happens to a note is a row of `decisions`. Its version counts up from 1 within the note, and the pair
(note, version) is unique: of two people who saw version 7, one writes version 8 and the other gets a conflict. What
stands in `notes` besides the text is a summary of these rows for the queue, written in the same transaction.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

users = Table(
    "users",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(80), nullable=False, unique=True),
    Column("role", String(10), nullable=False),
    Column("password", String(200)),  # an argon2 hash; None: signs in elsewhere (OpenID Connect)
    Column("subject", String(300), unique=True),  # issuer and subject of OpenID Connect
    Column("must_change", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("locked_until", Double, nullable=False),
    Column("created", Double, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", String(64), primary_key=True),  # SHA-256 of the cookie: a copy of the table signs nobody in
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("created", Double, nullable=False),
    Column("seen", Double, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False),
    Column("name", String(80), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("created", Double, nullable=False),
    Column("revoked", Boolean, nullable=False),
)

coders = Table(
    "coders",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),  # SHA-256 of bundle.json, which names every file
    Column("name", String(200), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("release", String(10)),
    Column("about", JSON, nullable=False),
    Column("created", Double, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("user_id", Integer, ForeignKey("users.id")),
    Column("created", Double, nullable=False),
    Column("finished", Double),
    Column("status", String(10), nullable=False),  # waiting, cancelled, done
    Column("total", Integer, nullable=False),
)

notes = Table(
    "notes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("ref", String(200), nullable=False, unique=True),
    Column("patient", String(200)),
    Column("site", String(200)),
    Column("lang", String(20)),
    Column("encounter", JSON, nullable=False),  # date, sex, age and what else is known, see review.Encounter
    Column("batch_id", Integer, ForeignKey("batches.id"), index=True),
    Column("received", Double, nullable=False),
    Column("coding", String(10), nullable=False),  # waiting, done, failed, cancelled: what the coder has done with it
    Column("status", String(12), nullable=False),  # what people have: see review.STATUSES
    Column("version", Integer, nullable=False),  # of the last decision
    Column("assignee_id", Integer, ForeignKey("users.id"), index=True),
    Column("confidence", Double),
    Column("codes", Integer, nullable=False),  # how many are chosen
    Column("finished", Double),
    Index("ix_notes_status_received", "status", "received"),
    Index("ix_notes_coding", "coding"),
    Index("ix_notes_confidence", "confidence"),
    Index("ix_notes_site", "site"),
)

texts = Table(  # apart from the notes, so that the queue need not page through them
    "texts",
    metadata,
    Column("note_id", Integer, ForeignKey("notes.id"), primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
    Column("length", Integer, nullable=False),  # in characters
)

codings = Table(
    "codings",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False, index=True),
    Column("coder_id", Integer, ForeignKey("coders.id"), nullable=False),
    Column("made", Double, nullable=False),
    Column("suggestions", JSON, nullable=False),  # as serving.coder gave them, never changed
    Column("profile", JSON, nullable=False),  # what drift is measured by: lengths and shares, no words
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("note_id", Integer, ForeignKey("notes.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("user_id", Integer, ForeignKey("users.id")),  # None: the triage rule
    Column("at", Double, nullable=False),
    Column("action", String(12), nullable=False),
    Column("details", JSON, nullable=False),
    UniqueConstraint("note_id", "version"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Double, nullable=False, index=True),
    Column("user_id", Integer, ForeignKey("users.id")),
    Column("what", String(40), nullable=False),
    Column("note_id", Integer, index=True),
    Column("address", String(60)),
)

settings = Table(
    "settings",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", JSON, nullable=False),
)
