"""The first revision: the tables of version 0.1. `database.migrate` creates them from the metadata."""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Changes nothing: every database of this revision has the tables."""
