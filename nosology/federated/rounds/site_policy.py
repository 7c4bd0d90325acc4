"""The policy of a site, in its node config: limits that no recipe of a server can lower.

A site in a simulation has no policy. In a deployment `nosology federate site` sets all values.
"""

from __future__ import annotations

import math
from pathlib import Path

from flwr.app import Context, Message
from pydantic import ValidationError

from nosology.core import ConfigError, FederationError, __version__
from nosology.federated.federation_settings import (
    FEDERATED_KINDS,
    FederatedRecipe,
    FederatedStatisticsRecipe,
    read_federated_recipe,
)
from nosology.federated.privacy.budget_ledger import BudgetLedger, Charge, train_texts
from nosology.federated.rounds import messages
from nosology.federated.rounds.learner import learner_of

SECURE_ONLY, RECORD_NOISE, MIN_NOTES = "secure-only", "record-noise", "min-notes"
SECURE_SITES, REHEARSAL = "secure-sites", "rehearsal"
SECURE_PEERS = "secure-peers"  # a folder with the public keys of the other sites
KINDS, WORDS = "kinds", "words"  # kinds of recipes, separated by commas; "no": no words of notes are reported
MIN_WORD_PATIENTS, MIN_WORD_SITES = 3, 2
"""The fewest patients and sites of a shared word or phrase that a site with a policy for words accepts in a recipe."""
LEDGER, EPSILON, DELTA = "ledger", "epsilon", "delta"  # a file; the largest epsilon of a note over all runs


_WITHOUT_WORDS = dict.fromkeys(("caml", "laat", "dual_laat"), " unless it has federation.vocabulary")
_WITHOUT_WORDS["plant"] = " unless it has federation.vocabulary and federation.privacy.secure"
_WITHOUT_WORDS["hmhan"] = " for these columns.choices"


def read_recipe(message: Message, context: Context) -> FederatedRecipe:
    """The recipe of a message.

    FederationError if it protects less than the site policy in the node config demands, or if it is invalid here.
    """
    try:
        recipe = read_federated_recipe(messages.get_value(message.content, "recipe"))
    except ValidationError as error:
        names = sorted({".".join(map(str, part["loc"])) for part in error.errors()})
        raise FederationError(
            f"nosology {__version__} does not accept {', '.join(names)[:200]} of the recipe"
        ) from error
    if recipe.federation.rehearsal != bool(context.node_config.get(REHEARSAL)):
        raise FederationError(
            "the site has real notes and takes no part in a rehearsal"
            if recipe.federation.rehearsal
            else "the site rehearses with simulated notes and takes no part in a real run"
        )
    check_kind(recipe, context)
    values = {
        MIN_NOTES: ("federation.min_site_notes", recipe.federation.min_site_notes),
        RECORD_NOISE: ("federation.privacy.record_noise", recipe.federation.privacy.record_noise),
    }
    if recipe.federation.privacy.secure:
        values[SECURE_SITES] = ("federation.privacy.secure_threshold", recipe.federation.privacy.min_secure_sites)
    policy = read_policy(context)
    if recipe.kind != "heads" and (policy[RECORD_NOISE] or recipe.federation.privacy.record_noise):
        raise FederationError(f"a federated {recipe.kind} has no federation.privacy.record_noise")
    for option, (name, value) in values.items():
        if not value >= (minimum := policy[option]):
            raise FederationError(f"the site policy demands {name} of at least {minimum:g}; got {value:g}")
    return recipe


def check_kind(recipe: FederatedRecipe, context: Context) -> None:
    """Raises FederationError if the policy does not permit this kind of recipe, or that words of notes are reported."""
    kinds = read_kinds(context)
    if kinds and recipe.kind not in kinds:
        raise FederationError(f"the site policy permits recipes of kind {', '.join(kinds)}; got {recipe.kind}")
    if context.node_config.get(WORDS) == "no" and learner_of(recipe).reports_words:
        raise FederationError(
            f"the site policy does not permit to report words of notes, and a federated {recipe.kind} needs them"
            + _WITHOUT_WORDS.get(recipe.kind, "")
        )
    if context.node_config.get(WORDS) and isinstance(recipe, FederatedStatisticsRecipe):
        found = recipe.statistics.min_patients, recipe.statistics.min_sites
        if found[0] < MIN_WORD_PATIENTS or found[1] < MIN_WORD_SITES:
            raise FederationError(
                f"the site shares words of at least {MIN_WORD_PATIENTS} patients at {MIN_WORD_SITES} sites"
                f" (statistics.min_patients, statistics.min_sites); got {found[0]} and {found[1]}"
            )


def read_kinds(context: Context) -> list[str]:
    """The kinds of recipes that the site permits; empty: all. ConfigError for an unknown kind."""
    kinds = [kind.strip() for kind in str(context.node_config.get(KINDS) or "").split(",") if kind.strip()]
    if unknown := sorted(set(kinds) - set(FEDERATED_KINDS)):
        raise ConfigError(f"kinds of a site must be of {', '.join(FEDERATED_KINDS)}; got {', '.join(unknown)}")
    return kinds


def read_policy(context: Context) -> dict[str, float]:
    """The numbers of the site policy; ConfigError if the node config has other than numbers."""
    policy = {}
    for option in (MIN_NOTES, RECORD_NOISE, SECURE_SITES, EPSILON, DELTA):
        value = str(context.node_config.get(option) or 0)
        try:
            policy[option] = float(value)
        except ValueError:
            policy[option] = math.nan
        if not 0 <= policy[option] < math.inf:
            raise ConfigError(f"{option} of a site must be a finite number of at least 0; got {value}")
    if policy[EPSILON] and not context.node_config.get(LEDGER):
        raise ConfigError(f"the node config must have {LEDGER} if it has {EPSILON}")
    if policy[DELTA] >= 1:
        raise ConfigError(f"{DELTA} of a site must be below 1; got {policy[DELTA]:g}")
    return policy


def check_plain_allowed(recipe: FederatedRecipe, context: Context) -> None:
    """Raises FederationError if updates must be masked, by the recipe or by the site policy."""
    if recipe.federation.privacy.secure or context.node_config.get(SECURE_ONLY):
        raise FederationError("the site sends updates only with secure aggregation (federation.privacy.secure)")


def charge_budget(recipe: FederatedRecipe, context: Context, notes: int, number: int | None) -> None:
    """Records a round in the ledger of the site, before it is trained; a site without a ledger records nothing.

    number: of the round; None: nothing is recorded. FederationError if the budget does not suffice.
    """
    if not (path := str(context.node_config.get(LEDGER) or "")):
        return
    policy = read_policy(context)
    ledger = BudgetLedger(Path(path), policy[EPSILON], policy[DELTA] or 1e-5)
    texts = train_texts(str(context.node_config.get("corpus") or ""))
    charge = Charge.of(recipe, notes, knows_peers=bool(context.node_config.get(SECURE_PEERS)))
    if number is None:
        ledger.check(texts, charge)
    else:
        ledger.charge(texts, charge, str(context.run_id), number)
