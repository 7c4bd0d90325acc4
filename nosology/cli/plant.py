"""nosology plant: the training stages of PLANT one by one; `nosology train plant` runs all that are not cached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nosology.cli.coder_commands import Overrides
from nosology.cli.command_group import CommandGroup, recipe_names
from nosology.core import ConfigError

if TYPE_CHECKING:
    from nosology.models.plant.plant_settings import PlantRecipe
    from nosology.models.plant.plant_trainer import PlantPipeline
    from nosology.training.examples import Examples

app = CommandGroup("The stages of PLANT, one by one.")

Recipe = Annotated[
    str, typer.Argument(help=f"A recipe of kind plant, a TOML file or built in: {recipe_names('plant')}.")
]
Corpora = Annotated[list[Path], typer.Option(help="A corpus folder; may be repeated.")]
Out = Annotated[Path, typer.Option(help="The bundle folder to write later; stages are stored in OUT.run.")]


@app.command()
def language(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Train the language model on the train notes; they need no codes."""
    from nosology.models.plant.plant_model import direction_name, directions

    with _pipeline(recipe, corpus, out, settings, coded=False) as pipeline:
        for backward in directions(pipeline.recipe.model):
            pipeline.language(backward)
            typer.echo(f"{pipeline.stages.folder}: language model, {direction_name(backward)}")


@app.command()
def relevance(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Compute the most informative words of each code: mutual information in the train notes."""
    with _pipeline(recipe, corpus, out, settings) as pipeline:
        words = pipeline.relevance()
    typer.echo(f"{pipeline.stages.folder}: {len(words.words):,} words for {len(words):,} codes")


@app.command()
def ranker(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Train the ranker on these words; missing earlier stages are computed first."""
    from nosology.models.plant.plant_model import direction_name, directions

    with _pipeline(recipe, corpus, out, settings) as pipeline:
        if not pipeline.recipe.model.planted:
            raise ConfigError("model.planted must be true, or there is no ranker to train; got false")
        for backward in directions(pipeline.recipe.model):
            ndcg = f"nDCG@{pipeline.recipe.ranker.k} {pipeline.train_ranker(backward):.3f}"
            typer.echo(f"{pipeline.stages.folder}: ranker, {direction_name(backward)}, {ndcg}")


@app.command()
def classifier(recipe: Recipe, corpus: Corpora, out: Out, settings: Overrides = []) -> None:  # noqa: B006
    """Train the planted classifier of each direction; `nosology train` then averages, calibrates and saves them."""
    with _prepared(recipe, corpus, out, settings) as (checked, train, dev, folder):
        from nosology.models.plant.plant_trainer import PlantTrainer

        for name, fitted in PlantTrainer(checked, folder).train_classifiers(train, dev).items():
            scores = "".join(f", {metric} {value:.3f}" for metric, value in fitted.metrics.items())
            typer.echo(f"{folder}: classifier, {name}, epoch {fitted.best_epoch}{scores}")


@contextmanager
def _pipeline(
    recipe: str, corpus: list[Path], out: Path, settings: list[str], *, coded: bool = True
) -> Iterator[PlantPipeline]:
    with _prepared(recipe, corpus, out, settings, coded=coded) as (checked, train, _, folder):
        from nosology.models.plant.plant_trainer import PlantPipeline

        yield PlantPipeline.of(checked, train, folder, coded=coded)


@contextmanager
def _prepared(
    recipe: str, corpus: list[Path], out: Path, settings: list[str], *, coded: bool = True
) -> Iterator[tuple[PlantRecipe, Examples, Examples, Path]]:
    """The recipe, the train notes, the dev notes and the folder of the stages, which is locked while the block runs.

    coded: the stage needs codes.
    """
    from nosology.config import load_recipe
    from nosology.corpora.corpus import Corpus
    from nosology.models.bundle import check_bundle_folder
    from nosology.models.plant.plant_settings import PlantRecipe
    from nosology.models.train import examples_for
    from nosology.training.run_folder import open_run_folder

    checked = load_recipe(recipe, settings)
    if not isinstance(checked, PlantRecipe):
        raise ConfigError(f"recipe must be of kind plant; got {checked.kind}")
    try:
        import nosology.models.plant.plant_trainer  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"plant needs {error.name}, which is not installed: pip install 'nosology[train]'") from error
    check_bundle_folder(out)
    with open_run_folder(out) as folder:
        train, dev, _ = examples_for(checked, [Corpus.open(path) for path in corpus], coded=coded)
        yield checked, train, dev, folder
