"""The ClientApp of a site, the same in a simulation and in a deployment. It owns no loop: `Site` does the work.

In a deployment every message may meet a fresh process. What a site needs from one message to the next is in the
Context's state: labels and scaler since `query.prepare`, AdamW's moments where they are kept. A message that trains or
evaluates names, by a hash, what the site must have been told; a site that was told something else, or nothing, answers
`UNPREPARED`, and the server tells it again. Moments are the site's own: lost with the state, they begin anew.

A reply never quotes an exception that is not ours: it might hold data.

Other kinds of message (a secure round's) are added to the app in `make_app`; `_Handlers.trained` gives them the update.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from nosology.codes.code_list import read_code_list
from nosology.core import ConfigError, FederationError, NosologyError
from nosology.core.label_space import LabelSpace
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.privacy.secure_round import SecureHandlers
from nosology.federated.privacy.site_policy import recipe_of, refuse_plain
from nosology.federated.rounds.agreement import BASIS
from nosology.federated.rounds.hospital_site import Site, Update
from nosology.federated.rounds.records import (
    ARRAYS,
    CONFIG,
    FAILED,
    METRICS,
    REFUSED,
    UNPREPARED,
    content,
    failed,
    from_record,
    to_record,
    value,
)
from nosology.federated.rounds.replies import KNOWN, LOSS, NOTES
from nosology.models.heads.coded_vectors import CodedVectors
from nosology.models.heads.feature_statistics import Scaler
from nosology.training.calibration import PlattScaling
from nosology.training.examples import codes_in_systems
from nosology.training.recipe_settings import LabelSettings

_AGREED, _SCALER = "agreed", "scaler"  # in a context's state
_MOMENTS, _ROUND, _EARLIER = "moments", "round", "earlier"  # the same: after the newest round, its number, before it

FindSite = Callable[[Context, FederatedHeadsRecipe], Site]
Handler = Callable[[Message, Context], Message]


class UnpreparedError(Exception):
    """The site has not been told the labels and the scaler that a message goes by."""


def open_site(context: Context, recipe: FederatedHeadsRecipe) -> Site:
    """The site that a node's config names; opened once a process.

    The config holds site-name, corpus (a folder, or several with commas between them), cache (a folder) and, if the
    site codes with some codes alone, codes (a file that names them). The recipe is the server's, so an embedder that
    brings programs of its own runs only where the config has trust-remote-code.
    """
    named = {key: str(context.node_config.get(key) or "") for key in ("site-name", "corpus", "cache", "codes")}
    for key in ("site-name", "corpus"):
        if not named[key]:
            raise ConfigError(f"the node's config must name {key}")
    if recipe.embedder.trust_remote_code and not context.node_config.get("trust-remote-code"):
        raise ConfigError("the embedder brings programs of its own, and the node's config has no trust-remote-code")
    return _opened(*named.values(), recipe.embedder.model_dump_json(), recipe.labels.model_dump_json())


@cache
def _opened(name: str, corpus: str, cache_folder: str, codes: str, embedder: str, labels: str) -> Site:
    folders = [Path(folder.strip()) for folder in corpus.split(",")]
    cached = Path(cache_folder) if cache_folder else None
    only = frozenset(code for code, _ in read_code_list(codes)) if codes else None
    site = Site.open(name, folders, cached, EmbedderSettings.model_validate_json(embedder), only=only)
    wanted = LabelSettings.model_validate_json(labels)
    site.notes = {
        split: CodedVectors(part.vectors, codes_in_systems(wanted, part.codes)) for split, part in site.notes.items()
    }
    return site


def make_app(find_site: FindSite) -> ClientApp:
    """The ClientApp of sites that are found by a node's context and the recipe."""
    app = ClientApp()
    handlers = _Handlers(find_site)
    app.query("facts")(answering(handlers.facts))
    app.query("statistics")(answering(handlers.statistics))
    app.query("prepare")(answering(handlers.prepare))
    app.train()(answering(handlers.train))
    app.evaluate()(answering(handlers.evaluate))
    secure = SecureHandlers(find_site, handlers.trained)
    app.query("secure_keys")(answering(secure.keys))
    app.query("secure_shares")(answering(secure.shares))
    app.train("secure")(answering(secure.mask))
    app.query("secure_unmask")(answering(secure.unmask))
    return app


def answering(handler: Callable[[Message, Context], RecordDict]) -> Handler:
    """A handler whose failures are replies: our own sentences, and of other exceptions only the kind."""

    def handle(message: Message, context: Context) -> Message:
        try:
            return Message(handler(message, context), reply_to=message)
        except UnpreparedError:
            return failed(UNPREPARED, "it has not been told labels and scaler", message)
        except NosologyError as error:
            return failed(REFUSED, str(error), message)
        except Exception as error:
            return failed(FAILED, f"it failed with {type(error).__name__}", message)

    return handle


class _Handlers:
    """What a site does with each kind of message."""

    def __init__(self, find_site: FindSite):
        self.find_site = find_site
        self.told: dict[str, str] = {}  # by site: the hash of what the Site object in this process was told

    def facts(self, message: Message, context: Context) -> RecordDict:
        recipe = recipe_of(message, context)
        site = self.find_site(context, recipe)
        return content(site=site.name, facts=site.facts(recipe.federation.min_site_notes).to_json())

    def statistics(self, message: Message, context: Context) -> RecordDict:
        recipe = recipe_of(message, context)
        found = self.find_site(context, recipe).statistics(recipe.federation.min_site_notes)
        return content({"total": found.total, "squares": found.squares}, count=found.count)

    def prepare(self, message: Message, context: Context) -> RecordDict:
        recipe = recipe_of(message, context)
        facts = self.find_site(context, recipe).facts(recipe.federation.min_site_notes)
        agreed = value(message.content, "basis")
        if facts.basis != agreed:  # it was restarted with other settings
            pairs = [each for each in zip(BASIS, agreed, facts.basis) if each[1] != each[2]]
            differences = "; ".join(f"{name} must be {wanted}; got {given}" for name, wanted, given in pairs)
            raise ConfigError(f"it is not as was agreed on: {differences}")
        context.state[_SCALER] = message.content[ARRAYS]
        context.state[_AGREED] = ConfigRecord(
            {name: message.content[CONFIG][name] for name in ("agreed", "labels")}  # as they came, in JSON
        )
        return content()

    def trained(self, message: Message, context: Context) -> Update:
        """What the site has learned in a round; what it must remember of it is in the context."""
        recipe = recipe_of(message, context)
        site = self.prepared(message, context, recipe)
        number, state = value(message.content, "round"), context.state
        if _MOMENTS in state and state[_ROUND]["round"] != number:  # a round that is repeated begins where it began
            state[_EARLIER] = state[_MOMENTS]
        moments = from_record(state[_EARLIER]) if _EARLIER in state else None
        update = site.train(from_record(message.content[ARRAYS]), recipe, number, moments)
        if update.moments:
            state[_MOMENTS], state[_ROUND] = to_record(update.moments), ConfigRecord({"round": number})
        return update

    def train(self, message: Message, context: Context) -> RecordDict:
        refuse_plain(recipe_of(message, context), context)
        update = self.trained(message, context)
        return RecordDict(
            {
                ARRAYS: to_record(update.weights),
                METRICS: MetricRecord({NOTES: update.notes, LOSS: float(update.loss)}),
                CONFIG: ConfigRecord({KNOWN: np.packbits(update.known).tobytes()}),
            }
        )

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        recipe = recipe_of(message, context)
        site = self.prepared(message, context, recipe)
        split, threshold, platt = (value(message.content, name) for name in ("split", "threshold", "calibration"))
        if split not in ("dev", "test"):
            raise FederationError("it counts over dev and test notes only")
        weights = from_record(message.content[ARRAYS])
        counts = site.evaluate(weights, recipe, split, PlattScaling(**platt) if platt else None, threshold)
        return content(counts.arrays())

    def prepared(self, message: Message, context: Context, recipe: FederatedHeadsRecipe) -> Site:
        """The site, told what the message goes by."""
        wanted, state = value(message.content, "agreed"), context.state.get(_AGREED)
        if state is None or json.loads(state["agreed"]) != wanted:
            raise UnpreparedError
        site = self.find_site(context, recipe)
        if self.told.get(site.name) != wanted or site.labels is None:
            scaler = from_record(context.state[_SCALER])
            site.prepare(LabelSpace(json.loads(state["labels"])), Scaler(scaler["mean"], scaler["scale"]))
            self.told[site.name] = wanted
        return site


app = make_app(open_site)
