"""Documentation gaps of finished encounters."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "found_gaps",
        sa.Column("note_id", sa.Integer(), sa.ForeignKey("notes.id"), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("made", sa.Double(), nullable=False),
        sa.Column("found", sa.Integer(), nullable=False),
        sa.Column("findings", sa.JSON()),
    )
