"""nosology compare: recipes over seeds, side by side; nosology leakage: what a leak would make of a score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.coder_commands import Overrides
from nosology.core import ConfigError

if TYPE_CHECKING:
    from nosology.models.compare import Variant
    from nosology.training.recipe_settings import Recipe

SHOWN = {
    "micro_precision": "precision",
    "micro_recall": "recall",
    "micro_f1": "F1",
    "macro_f1": "macro F1",
    "micro_auc": "ROC-AUC",
    "hamming_loss": "Hamming",
}


def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE...",
            help="Recipes, each with settings of its own behind it if need be: 'hmhan model.attention=single'.",
        ),
    ],
    corpus: Annotated[Path, typer.Option(help="A corpus folder with train, dev and test notes.")],
    out: Annotated[Path, typer.Option(help="A folder for bundles and compare.json.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe.")] = 5,
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Train recipes over seeds and print their scores with paired t-tests and a bootstrap over patients."""
    from nosology.corpora.corpus import Corpus
    from nosology.models.compare import compare as run

    opened = Corpus.open(corpus)
    found = run(_variants(recipes, settings), opened, out, seeds=seeds, say=lambda line: typer.echo(line, err=True))
    typer.echo(f"{'':<28}" + "".join(f"{name:>18}" for name in SHOWN.values()))
    for name, row in found.rows.items():
        typer.echo(f"{name:<28}" + "".join(f"{_cell(row[metric]):>18}" for metric in SHOWN))
    first = next(iter(found.rows))
    for name, tests in found.tests.items():
        drawn, paired = tests["bootstrap"], tests["t_test"]
        told = f"{first} - {name}, F1 of the first seeds: {drawn['value']:+.4f}"
        told += f" ({drawn['low']:+.4f} to {drawn['high']:+.4f}), patients drawn, p {drawn['p']:.3f}"
        if paired:
            p = "undefined" if paired["p"] is None else f"{paired['p']:.4f}"
            told += f"; mean over seeds {paired['value']:+.4f}, paired t-test p {p}"
        typer.echo(told)
    typer.echo(f"written: {out / 'compare.json'}")


def leakage(
    recipe: Annotated[str, typer.Argument(help="A recipe of kind hmhan: a built-in one's name or a TOML file.")],
    corpus: Annotated[Path, typer.Option(help="A corpus folder; its notes are divided anew for each protocol.")],
    out: Annotated[Path, typer.Option(help="A folder for leakage.json and what training keeps.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each protocol.")] = 3,
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Show what splitting by report and resampling before the split would make of a score."""
    from nosology.corpora.corpus import Corpus
    from nosology.reproduce.hmhan_tables import leakage as run

    checked = _hmhan(recipe, settings)
    found = run(checked, Corpus.open(corpus), out, seeds=seeds, say=lambda line: typer.echo(line, err=True))
    names = ("micro_precision", "micro_recall", "micro_f1", "micro_auc", "hamming_loss")
    shown = [*(SHOWN[name] for name in names), "density", "shared patients"]
    typer.echo(f"{'':<44}" + "".join(f"{name:>17}" for name in shown))
    for name, row in found.items():
        cells = [_cell(row[metric]) for metric in names]
        cells += [f"{row['density']:.3f}", "-" if row["shared"] is None else f"{row['shared']:.0%}"]
        typer.echo(f"{name:<44}" + "".join(f"{cell:>17}" for cell in cells))
    typer.echo(f"written: {out / 'leakage.json'}")


def _cell(values: dict[str, Any]) -> str:
    if values["mean"] is None:
        return "undefined"
    return f"{values['mean']:.3f}" + ("" if values["std"] is None else f" (sd {values['std']:.3f})")


def _variants(recipes: list[str], settings: list[str]) -> list[Variant]:
    """The recipes with their names; a name that comes twice is refused."""
    from nosology.config import load_recipe
    from nosology.models.compare import Variant

    found: dict[str, Recipe] = {}
    for given in recipes:
        name, *own = given.split()
        recipe = load_recipe(name, [*settings, *own])
        label = "-".join([Path(name).stem, *(part.replace("=", "_").replace("/", "_") for part in own)])
        if label in found:
            raise ConfigError(f"recipes must differ; got {given!r} twice")
        found[label] = recipe
    return [Variant(name, recipe) for name, recipe in found.items()]


def _hmhan(name: str, settings: list[str]) -> Any:
    from nosology.config import load_recipe

    recipe = load_recipe(name, settings)
    if recipe.kind != "hmhan":
        raise ConfigError(f"recipe must be of kind hmhan; got {recipe.kind}")
    return recipe
