"""Scopes and expiry of tokens, lockable sessions, objects of audit entries, deletion of notes."""

import time

import sqlalchemy as sa
from alembic import op

from nosology.workbench.append_only import deletion_triggers, table_triggers

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
APPEND_ONLY = ("decisions", "audit", "codings", "texts")


def upgrade() -> None:
    """Adds the columns. Everybody signs in again; tokens and one-time passwords expire from now on."""
    now, dialect = time.time(), op.get_bind().dialect.name
    for table, column in (
        ("users", sa.Column("password_expires", sa.Double())),
        ("tokens", sa.Column("scopes", sa.JSON(), nullable=False, server_default="[]")),
        ("tokens", sa.Column("expires", sa.Double(), nullable=False, server_default="0")),
        ("tokens", sa.Column("used", sa.Double())),
        ("sessions", sa.Column("expires", sa.Double(), nullable=False, server_default="0")),
        ("sessions", sa.Column("idle", sa.Double(), nullable=False, server_default="0")),
        ("sessions", sa.Column("locked", sa.Boolean(), nullable=False, server_default=sa.false())),
        ("sessions", sa.Column("address", sa.String(60), nullable=False, server_default="")),
        ("batches", sa.Column("known", sa.Integer(), nullable=False, server_default="0")),
        ("audit", sa.Column("object", sa.String(1000), nullable=False, server_default="")),
    ):
        op.add_column(table, column)
    for column in ("failures", "locked_until"):
        op.drop_column("users", column)
    tokens = sa.table("tokens", sa.column("scopes", sa.JSON), sa.column("expires"))
    op.execute(tokens.update().values(scopes=["read", "import", "code", "decide", "export"], expires=now + 90 * 86_400))
    users = sa.table("users", sa.column("password_expires"), sa.column("must_change", sa.Boolean))
    op.execute(users.update().where(users.c.must_change).values(password_expires=now + 72 * 3600))
    op.execute(sa.table("sessions").delete())
    for table in APPEND_ONLY:
        if dialect == "sqlite":
            op.execute(f"DROP TRIGGER {table}_no_update")
            op.execute(f"DROP TRIGGER {table}_no_delete")
        else:
            op.execute(f"DROP FUNCTION {table}_append_only() CASCADE")
    for statement in table_triggers(dialect, APPEND_ONLY) + deletion_triggers(dialect):
        op.execute(statement)
