"""Copies of notes for blind double coding."""

from alembic import op

revision = "0005"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column. Alembic cannot add one with a foreign key on SQLite; both databases take this statement."""
    op.execute("ALTER TABLE notes ADD COLUMN double_of INTEGER CONSTRAINT fk_notes_double_of REFERENCES notes (id)")
    op.create_index("ix_notes_double_of", "notes", ["double_of"], unique=True)
