"""Creates the first tables and their append-only triggers."""

from typing import Any

from alembic import op
from sqlalchemy import JSON, Boolean, Column, Double, ForeignKey, Integer, String, Text, UniqueConstraint

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("decisions", "audit", "codings", "texts")


def _required(name: str, kind: Any, **options: Any) -> Column:
    return Column(name, kind, nullable=False, **options)


def _id() -> Column:
    return Column("id", Integer, primary_key=True)


def _reference(name: str, target: str, *, nullable: bool = True, **options: Any) -> Column:
    return Column(name, Integer, ForeignKey(f"{target}.id"), nullable=nullable, **options)


def _tables() -> dict[str, tuple[Any, ...]]:
    """The columns of each table, in the order of creation."""
    return {
        "coders": (
            _id(),
            _required("digest", String(64), unique=True),
            _required("name", String(200)),
            _required("kind", String(40)),
            Column("release", String(10)),
            _required("about", JSON),
            _required("created", Double),
        ),
        "settings": (Column("name", String(40), primary_key=True), _required("value", JSON)),
        "users": (
            _id(),
            _required("name", String(80), unique=True),
            _required("role", String(10)),
            Column("password", String(200)),
            Column("subject", String(300), unique=True),
            _required("must_change", Boolean),
            _required("disabled", Boolean),
            _required("failures", Integer),
            _required("locked_until", Double),
            _required("created", Double),
        ),
        "audit": (
            _id(),
            _required("at", Double, index=True),
            _reference("user_id", "users"),
            _required("what", String(40)),
            Column("note_id", Integer, index=True),
            Column("address", String(60)),
        ),
        "batches": (
            _id(),
            _required("name", String(200)),
            _reference("user_id", "users"),
            _required("created", Double),
            Column("finished", Double),
            _required("status", String(10)),
            _required("total", Integer),
        ),
        "sessions": (
            Column("id", String(64), primary_key=True),
            _reference("user_id", "users", nullable=False),
            _required("csrf", String(64)),
            _required("created", Double),
            _required("seen", Double),
        ),
        "tokens": (
            _id(),
            _reference("user_id", "users", nullable=False),
            _required("name", String(80)),
            _required("hash", String(64), unique=True),
            _required("created", Double),
            _required("revoked", Boolean),
        ),
        "notes": (
            _id(),
            _required("ref", String(200), unique=True),
            Column("patient", String(200)),
            Column("site", String(200)),
            Column("lang", String(20)),
            _required("encounter", JSON),
            _reference("batch_id", "batches", index=True),
            _required("received", Double),
            _required("coding", String(10), index=True),
            _required("status", String(12)),
            _required("version", Integer),
            _reference("assignee_id", "users", index=True),
            Column("confidence", Double, index=True),
            _required("codes", Integer),
            Column("finished", Double),
        ),
        "texts": (
            _reference("note_id", "notes", nullable=False, primary_key=True, autoincrement=False),
            _required("text", Text),
            _required("length", Integer),
        ),
        "codings": (
            _id(),
            _reference("note_id", "notes", nullable=False, index=True),
            _reference("coder_id", "coders", nullable=False),
            _required("made", Double),
            _required("suggestions", JSON),
            _required("profile", JSON),
        ),
        "decisions": (
            _id(),
            _reference("note_id", "notes", nullable=False),
            _required("version", Integer),
            _reference("user_id", "users"),
            _required("at", Double),
            _required("action", String(12)),
            _required("details", JSON),
            UniqueConstraint("note_id", "version"),
        ),
    }


def upgrade() -> None:
    """Creates tables, indexes and triggers."""
    for table, columns in _tables().items():
        op.create_table(table, *columns)
    op.create_index("ix_notes_site", "notes", ["site"])
    op.create_index("ix_notes_status_received", "notes", ["status", "received"])
    for table in APPEND_ONLY:
        _forbid_changes(table)


def _forbid_changes(table: str) -> None:
    """Adds triggers that refuse to change or delete a row."""
    if op.get_bind().dialect.name == "sqlite":
        for operation in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{operation.lower()} BEFORE {operation} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{table} is append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()"
    )


def downgrade() -> None:
    """Drops all tables."""
    for table in reversed(_tables()):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        for table in APPEND_ONLY:
            op.execute(f"DROP FUNCTION {table}_append_only()")
