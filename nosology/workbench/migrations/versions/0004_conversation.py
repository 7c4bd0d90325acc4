"""Comments, queries to physicians and their answers; notes that second review sent back."""

import sqlalchemy as sa
from alembic import op

from nosology.workbench.append_only import table_triggers

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the tables and the column."""
    op.add_column("notes", sa.Column("sent_back", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "comments",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("note_id", sa.Integer(), sa.ForeignKey("notes.id"), nullable=False),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("code", sa.String(40)),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("key", sa.String(64)),
        sa.UniqueConstraint("note_id", "key"),
    )
    op.create_table(
        "queries",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("note_id", sa.Integer(), sa.ForeignKey("notes.id"), nullable=False),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("physician_id", sa.Integer(), sa.ForeignKey("users.id")),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("code", sa.String(40)),
        sa.Column("start", sa.Integer()),
        sa.Column("end", sa.Integer()),
        sa.Column("key", sa.String(64)),
        sa.UniqueConstraint("note_id", "key"),
    )
    op.create_table(
        "query_events",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("query_id", sa.Integer(), sa.ForeignKey("queries.id"), nullable=False, unique=True),
        sa.Column("note_id", sa.Integer(), sa.ForeignKey("notes.id"), nullable=False, index=True),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("physician", sa.String(80)),
        sa.Column("answer", sa.Text()),
        sa.Column("text", sa.Text()),
    )
    for statement in table_triggers(op.get_bind().dialect.name, ("comments", "queries", "query_events")):
        op.execute(statement)
