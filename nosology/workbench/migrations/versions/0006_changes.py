"""The time of the last change of each note, and an index of decisions by time."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_LAST = """UPDATE notes SET changed = COALESCE(
    (SELECT max(at) FROM decisions WHERE decisions.note_id = notes.id),
    (SELECT max(made) FROM codings WHERE codings.note_id = notes.id), received) WHERE status != 'deleted'"""


def upgrade() -> None:
    """Adds the column; a deleted note, which is final, counts as changed now."""
    op.add_column("notes", sa.Column("changed", sa.Double(), nullable=False, server_default=str(time.time())))
    op.execute(_LAST)
    op.create_index("ix_notes_changed", "notes", ["changed"])
    op.create_index("ix_decisions_at", "decisions", ["at"])
