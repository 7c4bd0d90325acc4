"""Documents of encounters in place of one text per note; numbers of documents and corrections of an import."""

import sqlalchemy as sa
from alembic import op

from nosology.workbench.append_only import table_triggers

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Every text becomes the only document of its note."""
    dialect = op.get_bind().dialect.name
    op.create_table(
        "documents",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("note_id", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.Integer()),
        sa.Column("ref", sa.String(200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("date", sa.String(10)),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("received", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_documents"),
        sa.ForeignKeyConstraint(["note_id"], ["notes.id"], name="fk_documents_note_id"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name="fk_documents_batch_id"),
        sa.UniqueConstraint("ref", "version", name="uq_documents_ref"),
    )
    for column in ("note_id", "batch_id"):
        op.create_index(f"ix_documents_{column}", "documents", [column])
    op.execute(
        "INSERT INTO documents (note_id, batch_id, ref, version, kind, title, text, length, start, received) "
        "SELECT notes.id, notes.batch_id, notes.ref, 1, 'other', '', texts.text, texts.length, 0, notes.received "
        "FROM texts JOIN notes ON notes.id = texts.note_id ORDER BY notes.id"
    )
    op.drop_table("texts")
    if dialect == "postgresql":
        op.execute("DROP FUNCTION texts_append_only()")
    for statement in table_triggers(dialect, ["documents"]):
        op.execute(statement)
    for name in ("documents", "corrected"):
        op.add_column("batches", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.execute("UPDATE batches SET documents = total")
