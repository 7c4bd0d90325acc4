"""The ServerApp of a deployed federation; its run's config names the recipe (JSON) and the bundle folder to write."""

from __future__ import annotations

from logging import INFO

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from pydantic import ValidationError

from nosology.core import ConfigError
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.federation_server import run_federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation; an exception is what tells Flower that the run has failed."""
    recipe, out = (str(context.run_config.get(key) or "") for key in ("recipe", "out"))
    if not recipe or not out:
        raise ConfigError("the run's config must name recipe (JSON) and out (the bundle folder)")
    try:
        checked = FederatedHeadsRecipe.model_validate_json(recipe)
    except ValidationError as error:
        raise ConfigError(f"the run's recipe is not one of kind heads: {error.errors()[0]['msg']}") from error
    found = run_federation(grid, checked, out, say=lambda line: log(INFO, "%s", line))
    labels = len(found.bundle.model.labels)
    log(INFO, "%s: heads coder, %d codes, threshold %.3f", out, labels, found.bundle.decision.threshold)
