"""nosology grid: all runs of the tables, each in a process of its own, as often as it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.coder_commands import Overrides

if TYPE_CHECKING:
    from nosology.reproduce.grid import Recipes
    from nosology.reproduce.grid_settings import GridSettings


def grid(
    name: Annotated[str, typer.Argument(metavar="GRID", help="paper, small, or a TOML file.")],
    cache: Annotated[Path, typer.Option(help="The cache folder of vectors, as `nosology embed` fills it.")],
    out: Annotated[Path, typer.Option(help="The folder of results; what it holds already is not run again.")],
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be given several times.")] = [],  # noqa: B006
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    keep_bundles: Annotated[bool, typer.Option("--keep-bundles", help="Keep every coder in OUT/bundles.")] = False,
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Train and measure every embedder with every head: central, federated and on random splits, as tables."""
    from nosology.core import ConfigError
    from nosology.federated.rounds.folder_lock import locked
    from nosology.reproduce.grid import Folder, plan, prepare
    from nosology.reproduce.grid_plot import write_plot
    from nosology.reproduce.grid_tables import missing, write_tables
    from nosology.reproduce.grid_work import Worker

    checked = load_grid(name, settings)
    recipes = recipes_of(checked, name)
    corpora = corpus or [Path(folder) for folder in checked.corpora]
    if not corpora:
        raise ConfigError("a grid needs a corpus: name it with --corpus, or in the grid's file under corpora")
    folder = Folder(out)
    with locked(out, "grid"):
        runs = plan(checked, recipes, prepare(checked, corpora, folder))
        worker = Worker(folder, cache, jobs, keep_bundles, checked.sites.stacked, tuple(checked.top))
        try:
            worker.work(runs, typer.echo)
        finally:  # what is there is shown, however it ended
            results, failed = folder.found(runs), folder.failures(runs)
            write_tables(out, runs, results, failed, checked.top)
            write_plot(out, runs, results)
    typer.echo(f"{out / 'tables.md'}: {len(runs)} runs, {missing(runs, results, failed)}")
    if len(results) < len(runs):
        raise typer.Exit(1)


def load_grid(name: str, overrides: list[str]) -> GridSettings:
    """The grid of a built-in name or a TOML file, with `section.key=value` overrides applied, checked."""
    from nosology.config import checked, override, read_values
    from nosology.reproduce.grid_settings import GridSettings

    return checked(GridSettings, override(read_values(name, "grid"), overrides), name)


def recipes_of(grid: GridSettings, source: str) -> Recipes:
    """The recipe of each embedder and head of a grid, with the grid's changes."""
    from nosology.config import check, read_values

    found = {}
    for embedder in grid.embedders:
        for head in grid.heads:
            own = {"seed": grid.seed, "embedder": {"model": embedder}, "model": {"head": head}}
            values = _merged(_merged(read_values(f"heads-{head}"), grid.recipe), own)
            found[embedder, head] = check(values, f"{source}, [recipe]")
    return found


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The values with others in their place, table by table."""
    merged = dict(values)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
