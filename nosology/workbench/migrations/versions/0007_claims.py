"""Proposed claims beside the suggestions, and an index with all columns of the queue."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column, which is empty for notes that are coded already, and more columns to the index."""
    op.add_column("codings", sa.Column("claim", sa.JSON()))
    op.drop_index("ix_notes_status_received", "notes")
    columns = ["status", "received", "assignee_id", "double_of", "confidence"]
    op.create_index("ix_notes_status_received", "notes", columns)
