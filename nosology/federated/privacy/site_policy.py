"""What a site insists on, whatever the server's recipe says; it stands in the node's config."""

from __future__ import annotations

from flwr.app import Context, Message
from pydantic import ValidationError

from nosology.core import FederationError, __version__
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.records import value

SECURE_ONLY, RECORD_NOISE, MIN_NOTES = "secure-only", "record-noise", "min-notes"


def recipe_of(message: Message, context: Context) -> FederatedHeadsRecipe:
    """The recipe that a message carries.

    FederationError if it gives less protection than the site insists on, or says what this version does not take.
    """
    try:
        recipe = FederatedHeadsRecipe.model_validate(value(message.content, "recipe"))
    except ValidationError as error:
        named = sorted({".".join(map(str, part["loc"])) for part in error.errors()})
        raise FederationError(f"nosology {__version__} does not take the recipe's {', '.join(named)[:200]}") from error
    asked = {
        MIN_NOTES: ("federation.min_site_notes", recipe.federation.min_site_notes),
        RECORD_NOISE: ("federation.privacy.record_noise", recipe.federation.privacy.record_noise),
    }
    for term, (name, given) in asked.items():
        if given < (least := float(context.node_config.get(term) or 0)):
            raise FederationError(f"it takes part only where {name} is {least:g} at least; got {given:g}")
    return recipe


def refuse_plain(recipe: FederatedHeadsRecipe, context: Context) -> None:
    """Raises FederationError where an update must not go out unmasked: the recipe says so, or the site's own config."""
    if recipe.federation.privacy.secure or context.node_config.get(SECURE_ONLY):
        raise FederationError("it takes part in secure rounds only (federation.privacy.secure)")
