"""nosology workbench: backup and restore of a store of `nosology serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nosology.cli.command_group import CommandGroup, workbench_packages

app = CommandGroup("The store of the workbench: backup and restore.")
Store = Annotated[str, typer.Argument(help="A file of SQLite, or postgresql://user@host/name.")]


@app.command()
def backup(store: Store, file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")]) -> None:
    """Write a consistent copy of a store to a new file, also while a server uses the store."""
    counts = _copies().backup_store(store, file)
    typer.echo(f"{file}: {counts['notes']:,} notes, {counts['decisions']:,} decisions, {counts['users']:,} users")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="The file of a backup.")],
    store: Annotated[str, typer.Argument(help="The store to write, a file or postgresql://...; it must be new.")],
) -> None:
    """Write a backup to a new store; everybody signs in again."""
    counts = _copies().restore_store(file, store)
    shown = store if "://" not in store else "the store"  # an address may have a password
    typer.echo(f"{shown}: {counts['notes']:,} notes, {counts['decisions']:,} decisions, {counts['users']:,} users")


def _copies() -> Any:
    with workbench_packages():
        from nosology.workbench import store_copy
    return store_copy
