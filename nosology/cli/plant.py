"""nosology plant: the training stages of PLANT one by one; `nosology train plant` runs all that are not cached."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nosology.cli.coder_commands import Overrides
from nosology.core import ConfigError

if TYPE_CHECKING:
    from nosology.models.plant.plant_settings import PlantRecipe
    from nosology.models.plant.plant_trainer import PlantPipeline
    from nosology.training.examples import Examples

app = typer.Typer(help="The stages of PLANT, one by one.", no_args_is_help=True)

Recipe = Annotated[str, typer.Argument(help="A recipe of kind plant: a built-in one's name or a TOML file.")]
Corpora = Annotated[list[Path], typer.Option(help="A corpus folder; may be given several times.")]
Out = Annotated[Path, typer.Option(help="The bundle folder to write later; stages are stored in OUT.run.")]


@app.command()
def language(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Train the language model on the train notes; they need no codes."""
    from nosology.models.plant.plant_model import directions

    pipeline = _pipeline(recipe, corpus, out, settings, coded=False)
    for backward in directions(pipeline.recipe.model):
        pipeline.language(backward)
        typer.echo(f"{pipeline.stages.folder}: language model, {'backward' if backward else 'forward'}")


@app.command()
def relevance(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Compute the most informative words of each code: mutual information in the train notes."""
    pipeline = _pipeline(recipe, corpus, out, settings)
    found = pipeline.relevance()
    typer.echo(f"{pipeline.stages.folder}: {len(found.words):,} words for {len(found):,} codes")


@app.command()
def ranker(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Train the ranker on these words; missing earlier stages are computed first."""
    from nosology.models.plant.plant_model import directions

    pipeline = _pipeline(recipe, corpus, out, settings)
    if not pipeline.recipe.model.planted:
        raise ConfigError("model.planted must be true, or there is no ranker to train; got false")
    for backward in directions(pipeline.recipe.model):
        reached = pipeline.train_ranker(backward)
        name = "backward" if backward else "forward"
        typer.echo(f"{pipeline.stages.folder}: ranker, {name}, nDCG@{pipeline.recipe.ranker.k} {reached:.3f}")


@app.command()
def classifier(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Train the planted classifier of each direction; `nosology train` then averages, calibrates and saves them."""
    checked, train, dev, folder = _prepare(recipe, corpus, out, settings)
    from nosology.models.plant.plant_trainer import train_classifiers

    for name, fitted in train_classifiers(checked, train, dev, folder).items():
        scores = "".join(f", {metric} {value:.3f}" for metric, value in fitted.metrics.items())
        typer.echo(f"{folder}: classifier, {name}, epoch {fitted.best_epoch}{scores}")


def _pipeline(recipe: str, corpus: list[Path], out: Path, settings: list[str], *, coded: bool = True) -> PlantPipeline:
    checked, train, _, folder = _prepare(recipe, corpus, out, settings, coded=coded)
    from nosology.models.plant.plant_trainer import PlantPipeline

    return PlantPipeline.of(checked, train, folder, coded=coded)


def _prepare(
    recipe: str, corpus: list[Path], out: Path, settings: list[str], *, coded: bool = True
) -> tuple[PlantRecipe, Examples, Examples, Path]:
    """The recipe, the train notes, the dev notes and the folder of the stages; coded: the stage needs codes."""
    from nosology.config import load_recipe
    from nosology.corpora.corpus import Corpus
    from nosology.models.plant.plant_settings import PlantRecipe
    from nosology.models.train import examples_for
    from nosology.training.run_folder import run_folder

    checked = load_recipe(recipe, settings)
    if not isinstance(checked, PlantRecipe):
        raise ConfigError(f"recipe must be of kind plant; got {checked.kind}")
    try:
        import nosology.models.plant.plant_trainer  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"plant needs {error.name}, which is not installed: pip install nosology[train]") from error
    train, dev, _ = examples_for(checked, [Corpus.open(folder) for folder in corpus], out, coded=coded)
    return checked, train, dev, run_folder(out)
