"""nosology compare: scores of recipes over seeds, with significance tests."""

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
            help="Recipes. Settings of one recipe follow its name: 'hmhan model.attention=single'.",
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

    variants = _variants(recipes, settings)
    compared = run(variants, Corpus.open(corpus), out, seeds=seeds, say=lambda line: typer.echo(line, err=True))
    typer.echo(f"{'':<28}" + "".join(f"{name:>18}" for name in SHOWN.values()))
    for name, row in compared.rows.items():
        typer.echo(f"{name:<28}" + "".join(f"{_cell(row[metric]):>18}" for metric in SHOWN))
    first = next(iter(compared.rows))
    for name, tests in compared.tests.items():
        bootstrap, t_test = tests["bootstrap"], tests["t_test"]
        line = f"{first} minus {name}, F1 of the first seeds: {bootstrap['value']:+.4f}"
        line += (
            f" ({bootstrap['low']:+.4f} to {bootstrap['high']:+.4f}), bootstrap over patients p {bootstrap['p']:.3f}"
        )
        if t_test:
            p = "undefined" if t_test["p"] is None else f"{t_test['p']:.4f}"
            line += f"; mean over seeds {t_test['value']:+.4f}, paired t-test p {p}"
        typer.echo(line)
    typer.echo(f"written: {out / 'compare.json'}")


def _cell(values: dict[str, Any]) -> str:
    if values["mean"] is None:
        return "undefined"
    return f"{values['mean']:.3f}" + ("" if values["std"] is None else f" (sd {values['std']:.3f})")


def _variants(recipes: list[str], settings: list[str]) -> list[Variant]:
    """The recipes with their names. Raises ConfigError where two have one name."""
    from nosology.config import load_recipe
    from nosology.models.compare import Variant

    named: dict[str, Recipe] = {}
    for argument in recipes:
        name, *own = argument.split()
        label = "-".join([Path(name).stem, *(part.replace("=", "_").replace("/", "_") for part in own)])
        if label in named:
            raise ConfigError(f"recipes must differ; got {argument!r} twice")
        named[label] = load_recipe(name, [*settings, *own])
    return [Variant(name, recipe) for name, recipe in named.items()]
