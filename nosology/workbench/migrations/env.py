"""Alembic's environment; `database.migrate` passes the connection."""

from alembic import context

from nosology.workbench.store_tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
