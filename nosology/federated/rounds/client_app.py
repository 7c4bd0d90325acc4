"""The ClientApp of a site, the same in a simulation and in a deployment.

In a deployment every message may be processed by a new process. What a site needs from one message to the next is in
the state of the Context: labels and shared inputs of `query.prepare`, the AdamW state with `optimizer_state = "keep"`,
the secrets of secure aggregation. Messages that train or evaluate carry the hash of labels and inputs. A site with
another hash, or none, replies `UNPREPARED`, and the server sends `query.prepare` again. Optimizer state that is lost is
reset.

Replies never quote exceptions of other libraries, because these may contain data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from pydantic import ValidationError

from nosology.codes.code_list import read_code_list
from nosology.core import ConfigError, FederationError, NosologyError, __version__
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederatedRecipe, PrivacySettings, read_federated_recipe
from nosology.federated.privacy.masking import to_fixed_point
from nosology.federated.privacy.secure_aggregation import SecureSite, SiteSignatures
from nosology.federated.privacy.secure_round import MASKED, SECURE, to_vector
from nosology.federated.rounds import messages
from nosology.federated.rounds.compression import compress
from nosology.federated.rounds.federated_site import SiteUpdate
from nosology.federated.rounds.federation_setup import COMPATIBILITY
from nosology.federated.rounds.learner import LocalSite, SiteFiles, learner_of
from nosology.training.calibration import PlattScaling

SECURE_ONLY, RECORD_NOISE, MIN_NOTES = "secure-only", "record-noise", "min-notes"  # site policy in the node config
SECURE_SITES, REHEARSAL = "secure-sites", "rehearsal"
SECURE_KEY, SECURE_PEERS = "secure-key", "secure-peers"  # signatures in the node config

_SETUP, _INPUTS, _SECURE = "setup", "inputs", "secure"  # in the state of a context
_OPTIMIZER, _ROUND, _PREVIOUS = "optimizer", "round", "previous-optimizer"  # optimizer state, its round, the one before

FindSite = Callable[[Context, FederatedRecipe], LocalSite]


class UnpreparedError(Exception):
    """The site does not have the setup of a message."""


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
    values = {
        MIN_NOTES: ("federation.min_site_notes", recipe.federation.min_site_notes),
        RECORD_NOISE: ("federation.privacy.record_noise", recipe.federation.privacy.record_noise),
    }
    if recipe.federation.privacy.secure:
        values[SECURE_SITES] = ("federation.privacy.secure_threshold", recipe.federation.privacy.min_secure_sites)
    if recipe.federation.rehearsal != bool(context.node_config.get(REHEARSAL)):
        raise FederationError(
            "the site has real notes and takes no part in a rehearsal"
            if recipe.federation.rehearsal
            else "the site rehearses with simulated notes and takes no part in a real run"
        )
    policy = read_policy(context)
    if recipe.kind != "heads" and (policy[RECORD_NOISE] or recipe.federation.privacy.record_noise):
        raise FederationError(f"a federated {recipe.kind} has no federation.privacy.record_noise")
    for option, (name, value) in values.items():
        if not value >= (minimum := policy[option]):
            raise FederationError(f"the site policy demands {name} of at least {minimum:g}; got {value:g}")
    return recipe


def read_policy(context: Context) -> dict[str, float]:
    """The smallest values that the site accepts in a recipe; ConfigError if the node config has other than numbers."""
    policy = {}
    for option in (MIN_NOTES, RECORD_NOISE, SECURE_SITES):
        value = str(context.node_config.get(option) or 0)
        try:
            policy[option] = float(value)
        except ValueError:
            policy[option] = math.nan
        if not 0 <= policy[option] < math.inf:
            raise ConfigError(f"{option} of a site must be a finite number of at least 0; got {value}")
    return policy


def check_plain_allowed(recipe: FederatedRecipe, context: Context) -> None:
    """Raises FederationError if updates must be masked, by the recipe or by the site policy."""
    if recipe.federation.privacy.secure or context.node_config.get(SECURE_ONLY):
        raise FederationError("the site sends updates only with secure aggregation (federation.privacy.secure)")


def open_site(context: Context, recipe: FederatedRecipe) -> LocalSite:
    """The site of a node config, opened once per process and kind of coder.

    The config has site-name, corpus (folders, separated by commas), cache (a folder, for heads) and optionally codes (a
    file with the codes that the site uses). The recipe comes from the server, so an embedder with its own code runs
    only if the config has trust-remote-code.
    """
    config = {key: str(context.node_config.get(key) or "") for key in ("site-name", "corpus", "cache", "codes")}
    for key in ("site-name", "corpus"):
        if not config[key]:
            raise ConfigError(f"the node config must have {key}")
    trusts = bool(context.node_config.get("trust-remote-code"))
    return _open_cached(*config.values(), trusts, recipe.model_dump_json(include=learner_of(recipe).site_tables))


@cache
def _open_cached(name: str, corpus: str, cache_folder: str, codes: str, trusts: bool, tables: str) -> LocalSite:
    folders = [Path(folder.strip()) for folder in corpus.split(",")]
    vectors = Path(cache_folder) if cache_folder else None
    code_list = frozenset(code for code, _ in read_code_list(codes)) if codes else None
    learner = learner_of(read_federated_recipe(json.loads(tables)))
    return learner.open_site(SiteFiles(name, folders, vectors, code_list, trusts))


def make_app(find_site: FindSite) -> ClientApp:
    """The ClientApp of the sites that `find_site` returns."""
    app = ClientApp()
    handlers = _Handlers(find_site)
    app.query("metadata")(replying(handlers.metadata))
    app.query("statistics")(replying(handlers.statistics))
    app.query("prepare")(replying(handlers.prepare))
    app.train()(replying(handlers.train))
    app.evaluate()(replying(handlers.evaluate))
    app.query("secure_keys")(replying(handlers.secure_keys))
    app.query("secure_shares")(replying(handlers.secure_shares))
    app.train("secure")(replying(handlers.train_secure))
    app.query("secure_unmask")(replying(handlers.secure_unmask))
    return app


def replying(handler: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
    """A handler that turns exceptions into error replies; of foreign exceptions only the class is sent."""

    def handle(message: Message, context: Context) -> Message:
        try:
            return Message(handler(message, context), reply_to=message)
        except UnpreparedError:
            return messages.error_reply(messages.UNPREPARED, "it has no labels and no inputs", message)
        except NosologyError as error:
            return messages.error_reply(messages.REFUSED, str(error), message)
        except Exception as error:
            return messages.error_reply(messages.FAILED, f"it failed with {type(error).__name__}", message)

    return handle


class _Handlers:
    """One method per message type."""

    def __init__(self, find_site: FindSite):
        self.find_site = find_site
        self.configured: dict[str, str] = {}  # by site: hash of the setup of its object in this process

    def metadata(self, message: Message, context: Context) -> RecordDict:
        recipe = read_recipe(message, context)
        site = self.find_site(context, recipe)
        return messages.make_content(site=site.name, metadata=site.metadata(recipe.federation.min_site_notes).to_json())

    def statistics(self, message: Message, context: Context) -> RecordDict:
        recipe = read_recipe(message, context)
        return learner_of(recipe).report(self.find_site(context, recipe))

    def prepare(self, message: Message, context: Context) -> RecordDict:
        recipe = read_recipe(message, context)
        values = self.find_site(context, recipe).metadata(recipe.federation.min_site_notes).compatibility
        expected = messages.get_value(message.content, "compatibility")
        if values != expected:  # the site was restarted with other settings
            triples = [triple for triple in zip(COMPATIBILITY, expected, values) if triple[1] != triple[2]]
            differences = "; ".join(f"{name} must be {wanted}; got {value}" for name, wanted, value in triples)
            raise ConfigError(f"the site has changed since the setup: {differences}")
        config = message.content.config_records[messages.CONFIG]
        context.state[_INPUTS] = message.content[messages.ARRAYS]
        names = ("setup", "labels", messages.INPUTS)
        context.state[_SETUP] = ConfigRecord({name: str(config[name]) for name in names if name in config})  # JSON
        return messages.make_content()

    def train(self, message: Message, context: Context) -> RecordDict:
        recipe = read_recipe(message, context)
        check_plain_allowed(recipe, context)
        update = self._update(message, context)
        arrays = update.arrays
        if recipe.federation.compression == "bf16":
            arrays = compress(arrays, messages.get_arrays(message.content))
        return RecordDict(
            {
                messages.ARRAYS: messages.to_record(arrays),
                messages.METRICS: MetricRecord({messages.NOTES: update.notes, messages.LOSS: update.loss}),
                messages.CONFIG: ConfigRecord({messages.LABEL_MASK: np.packbits(update.label_mask).tobytes()}),
            }
        )

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        recipe = read_recipe(message, context)
        site = self._prepared_site(message, context, recipe)
        split, threshold, platt = (
            messages.get_value(message.content, name) for name in ("split", "threshold", "calibration")
        )
        if split not in ("dev", "test"):
            raise FederationError(f"split must be dev or test; got {split!r}")
        counts = site.evaluate(
            messages.get_arrays(message.content), recipe, split, PlattScaling(**platt) if platt else None, threshold
        )
        return messages.make_content(counts.arrays())

    def secure_keys(self, message: Message, context: Context) -> RecordDict:
        site, _ = self._secure_site(message, context)
        return self._secure_reply(site, site.keys(messages.get_value(message.content, SECURE)), context)

    def secure_shares(self, message: Message, context: Context) -> RecordDict:
        site, _ = self._secure_site(message, context)
        return self._secure_reply(site, site.shares(messages.get_value(message.content, SECURE)), context)

    def train_secure(self, message: Message, context: Context) -> RecordDict:
        site, privacy = self._secure_site(message, context)
        update = self._update(message, context)
        vector = to_vector(update, messages.get_arrays(message.content), privacy, site.state.threshold)
        masked = site.mask(messages.get_value(message.content, SECURE), to_fixed_point(vector, len(site.state.keys)))
        self._secure_reply(site, {}, context)
        return messages.make_content({MASKED: masked})

    def secure_unmask(self, message: Message, context: Context) -> RecordDict:
        site, _ = self._secure_site(message, context)
        return self._secure_reply(site, site.unmask(messages.get_value(message.content, SECURE)), context)

    def _secure_site(self, message: Message, context: Context) -> tuple[SecureSite, PrivacySettings]:
        recipe = read_recipe(message, context)
        name, saved = self.find_site(context, recipe).name, context.state.config_records.get(_SECURE)
        state = json.loads(str(saved["state"])) if saved is not None else None
        privacy = recipe.federation.privacy
        least = int(read_policy(context)[SECURE_SITES]) or privacy.min_secure_sites
        return SecureSite(name, state, read_signatures(context), least), privacy

    @staticmethod
    def _secure_reply(site: SecureSite, reply: dict, context: Context) -> RecordDict:
        """The reply as content; saves the state of the site in the context."""
        context.state[_SECURE] = ConfigRecord({"state": json.dumps(site.to_json())})
        return messages.make_content(secure=reply)

    def _update(self, message: Message, context: Context) -> SiteUpdate:
        """The update of the site; saves its optimizer state in the context."""
        recipe = read_recipe(message, context)
        site = self._prepared_site(message, context, recipe)
        number, state = messages.get_value(message.content, "round"), context.state
        if _OPTIMIZER in state and state.config_records[_ROUND]["round"] != number:
            state[_PREVIOUS] = state[_OPTIMIZER]  # a repeated round starts from the state before it
        previous = messages.from_record(state.array_records[_PREVIOUS]) if _PREVIOUS in state else None
        update = site.train(messages.get_arrays(message.content), recipe, number, previous)
        if update.optimizer_state:
            state[_OPTIMIZER] = messages.to_record(update.optimizer_state)
            state[_ROUND] = ConfigRecord({"round": number})
        return update

    def _prepared_site(self, message: Message, context: Context, recipe: FederatedRecipe) -> LocalSite:
        """The site, configured with the labels and the inputs of the message."""
        expected, setup = messages.get_value(message.content, "setup"), context.state.config_records.get(_SETUP)
        if setup is None or json.loads(str(setup["setup"])) != expected:
            raise UnpreparedError
        site = self.find_site(context, recipe)
        if self.configured.get(site.name) != expected or site.labels is None:
            arrays = messages.from_record(context.state.array_records[_INPUTS])
            inputs = learner_of(recipe).unpack_inputs(arrays, json.loads(str(setup.get(messages.INPUTS, "{}"))))
            site.configure(LabelSpace(json.loads(str(setup["labels"]))), inputs)
            self.configured[site.name] = expected
        return site


def read_signatures(context: Context) -> SiteSignatures | None:
    """The key of the site and the public keys of the other sites, if the node config names them."""
    key, peers = (str(context.node_config.get(name) or "") for name in (SECURE_KEY, SECURE_PEERS))
    if not peers:
        return None
    if not key:
        raise ConfigError(f"the node config must have {SECURE_KEY} if it has {SECURE_PEERS}")
    from nosology.federated.deploy.credentials import public_bytes, read_public_keys, read_site_key

    private_key, public_keys = read_site_key(Path(key)), read_public_keys(Path(peers))
    name = str(context.node_config.get("site-name") or "")
    if public_keys.get(name, own := public_bytes(private_key.public_key())) != own:
        raise ConfigError(f"{key} is not the key of {name}: {Path(peers) / name}.pub belongs to another")
    return SiteSignatures(private_key, public_keys)


app = make_app(open_site)
