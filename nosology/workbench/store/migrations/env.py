"""How Alembic reaches the store: by the connection that `store.engine.migrate` hands it."""

from alembic import context

from nosology.workbench.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
