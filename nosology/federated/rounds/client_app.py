"""The ClientApp of a site, the same in a simulation and in a deployment.

In a deployment every message may be processed by a new process. What a site needs from one message to the next is in
the state of the Context: labels and shared inputs of `query.prepare`, what it keeps between rounds (`KeptState`), the
secrets of secure aggregation. Messages that train or evaluate carry the hash of labels and inputs. A site with
another hash, or none, replies `UNPREPARED`, and the server sends `query.prepare` again. Optimizer state that is lost is
reset.

Replies never quote exceptions of other libraries, because these may contain data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from nosology.codes.code_list import read_code_list
from nosology.core import ConfigError, FederationError, NosologyError
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederatedRecipe, PrivacySettings, read_federated_recipe
from nosology.federated.privacy.masking import to_fixed_point
from nosology.federated.privacy.secure_aggregation import SecureSite, SiteSignatures
from nosology.federated.privacy.secure_round import MASKED, SECURE, request_digest, to_vector
from nosology.federated.rounds import messages
from nosology.federated.rounds.compression import compress
from nosology.federated.rounds.federation_setup import COMPATIBILITY, setup_hash
from nosology.federated.rounds.kept_state import RESIDUAL, KeptState, optimizer_part
from nosology.federated.rounds.learner import LocalSite, SiteFiles, learner_of
from nosology.federated.rounds.personal_layers import mark, marked
from nosology.federated.rounds.site_policy import (
    SECURE_ONLY,
    SECURE_PEERS,
    SECURE_SITES,
    charge_budget,
    check_plain_allowed,
    read_policy,
    read_recipe,
)
from nosology.federated.rounds.site_results import SiteUpdate
from nosology.federated.rounds.statistics_learner import NAMES, StatisticsSite
from nosology.training.calibration import PlattScaling

SECURE_KEY = "secure-key"  # for signatures, in the node config

_SETUP, _INPUTS, _SECURE = "setup", "inputs", "secure"  # in the state of a context
_REPORT, _ASKED = "report", "asked"  # in the state of a context: a report with noise; in it: the recipe

FindSite = Callable[[Context, FederatedRecipe], LocalSite]


class UnpreparedError(Exception):
    """The site does not have the setup of a message."""


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
    app.query("secure_confirm")(replying(handlers.secure_confirm))
    app.query("secure_unmask")(replying(handlers.secure_unmask))
    app.query("stage")(replying(handlers.stage))
    app.train("stage")(replying(handlers.secure_stage))
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
        charge_budget(recipe, context, site.sizes["train"], None)  # a site without budget takes no part
        return messages.make_content(site=site.name, metadata=site.metadata(recipe.federation.min_site_notes).to_json())

    def statistics(self, message: Message, context: Context) -> RecordDict:
        """The report of the site. With noise it is made once in a run: the mean of several would have less noise."""
        recipe = read_recipe(message, context)
        learner = learner_of(recipe)
        if not recipe.federation.privacy.word_noise:
            return learner.report(self.find_site(context, recipe))
        asked, reported = recipe.model_dump_json(), context.state.config_records.get(_REPORT)
        if reported is None:
            report = learner.report(self.find_site(context, recipe)).config_records[messages.CONFIG]
            reported = context.state[_REPORT] = ConfigRecord({**report, _ASKED: asked})
        if reported[_ASKED] != asked:
            raise FederationError("the site has reported words with noise in this run, for another recipe")
        return RecordDict({messages.CONFIG: ConfigRecord({k: v for k, v in reported.items() if k != _ASKED})})

    def prepare(self, message: Message, context: Context) -> RecordDict:
        recipe = read_recipe(message, context)
        values = self.find_site(context, recipe).metadata(recipe.federation.min_site_notes).compatibility
        expected = messages.get_value(message.content, "compatibility")
        if values != expected:  # the site was restarted with other settings
            triples = [triple for triple in zip(COMPATIBILITY, expected, values) if triple[1] != triple[2]]
            differences = "; ".join(f"{name} must be {wanted}; got {value}" for name, wanted, value in triples)
            raise ConfigError(f"the site has changed since the setup: {differences}")
        config = message.content.config_records[messages.CONFIG]
        inputs = json.loads(str(config.get(messages.INPUTS, "{}")))
        labels, arrays = LabelSpace(json.loads(str(config["labels"]))), messages.get_arrays(message.content)
        if setup_hash(labels, arrays, inputs) != messages.get_value(message.content, "setup"):
            raise FederationError("labels and inputs are not those of their hash")
        context.state[_INPUTS] = message.content[messages.ARRAYS]
        names = ("setup", "labels", messages.INPUTS)
        context.state[_SETUP] = ConfigRecord({name: str(config[name]) for name in names if name in config})  # JSON
        return messages.make_content()

    def train(self, message: Message, context: Context) -> RecordDict:
        recipe = read_recipe(message, context)
        check_plain_allowed(recipe, context)
        update = self._update(message, context, recipe.federation.compression != "none")
        return RecordDict(
            {
                messages.ARRAYS: messages.to_record(update.arrays),
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
        kept = self._kept(message, context)
        weights = messages.get_arrays(message.content) | kept.personal(kept.latest())
        counts = site.evaluate(weights, recipe, split, PlattScaling(**platt) if platt else None, threshold)
        return messages.make_content(counts.arrays())

    def secure_keys(self, message: Message, context: Context) -> RecordDict:
        site, _ = self._secure_site(message, context)
        return self._secure_reply(site, site.keys(messages.get_value(message.content, SECURE)), context)

    def secure_shares(self, message: Message, context: Context) -> RecordDict:
        site, _ = self._secure_site(message, context)
        return self._secure_reply(site, site.shares(messages.get_value(message.content, SECURE)), context)

    def train_secure(self, message: Message, context: Context) -> RecordDict:
        site, privacy = self._secure_site(message, context)
        request = messages.get_value(message.content, SECURE)
        site.session(request, "shares")  # before the training
        update = self._update(message, context)
        vector = to_vector(update, messages.get_arrays(message.content), privacy, site.state.threshold)
        fixed = to_fixed_point(vector, len(site.state.keys))
        masked = site.mask(request, fixed, request_digest(message.content))
        self._secure_reply(site, {}, context)
        return messages.make_content({MASKED: masked})

    def secure_confirm(self, message: Message, context: Context) -> RecordDict:
        site, _ = self._secure_site(message, context)
        return self._secure_reply(site, site.confirm(messages.get_value(message.content, SECURE)), context)

    def secure_unmask(self, message: Message, context: Context) -> RecordDict:
        site, _ = self._secure_site(message, context)
        return self._secure_reply(site, site.unmask(messages.get_value(message.content, SECURE)), context)

    def stage(self, message: Message, context: Context) -> RecordDict:
        """The site's part of a stage of a `StatisticsLearner`, in the clear."""
        recipe, stage, site = self._stage(message, context)
        arrays, is_sum = messages.get_arrays(message.content), stage not in site.collected
        if is_sum:
            check_plain_allowed(recipe, context)
        elif stage != NAMES and context.node_config.get(SECURE_ONLY):
            raise FederationError("the site sends updates only in secure sums, and decision trees are no sums")
        self._charge_stage(message, context, recipe, site)
        if not is_sum:
            return messages.make_content(site.collect(stage, arrays, recipe))
        vector = site.noisy_vector(stage, arrays, recipe, 1)
        index = np.flatnonzero(vector)
        return messages.make_content({"index": index, "value": vector[index]})

    def secure_stage(self, message: Message, context: Context) -> RecordDict:
        """The masked vector of the site in a stage that is a sum."""
        secure, _ = self._secure_site(message, context)
        request = messages.get_value(message.content, SECURE)
        secure.session(request, "shares")  # before the budget is charged
        recipe, stage, site = self._stage(message, context)
        self._charge_stage(message, context, recipe, site)
        vector = site.noisy_vector(stage, messages.get_arrays(message.content), recipe, secure.state.threshold)
        fixed = to_fixed_point(vector, len(secure.state.keys))
        masked = secure.mask(request, fixed, request_digest(message.content))
        self._secure_reply(secure, {}, context)
        return messages.make_content({MASKED: masked})

    def _stage(self, message: Message, context: Context) -> tuple[FederatedRecipe, str, StatisticsSite]:
        recipe = read_recipe(message, context)
        site = self._prepared_site(message, context, recipe)
        if not isinstance(site, StatisticsSite):
            raise FederationError(f"a federated {recipe.kind} has no stages")
        return recipe, str(messages.get_value(message.content, "stage")), site

    @staticmethod
    def _charge_stage(message: Message, context: Context, recipe: FederatedRecipe, site: StatisticsSite) -> None:
        """Records the stage in the ledger of the site, after all refusals."""
        charge_budget(recipe, context, site.sizes["train"], int(messages.get_value(message.content, "round")))

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

    def _update(self, message: Message, context: Context, compressed: bool = False) -> SiteUpdate:
        """The update of the site, without personal layers; saves what the site keeps. compressed: its arrays are."""
        recipe = read_recipe(message, context)
        site, kept = self._prepared_site(message, context, recipe), self._kept(message, context)
        before = kept.before_round()
        own = kept.personal(before)
        weights = messages.get_arrays(message.content) | own
        charge_budget(recipe, context, site.sizes["train"], kept.number)
        update = site.train(weights, recipe, kept.number, optimizer_part(before))
        keep = update.optimizer_state | mark({name: update.arrays[name] for name in own})
        shared = {name: array for name, array in update.arrays.items() if name not in own}
        if compressed:
            shared, left_out = compress(shared, weights, recipe.federation, marked(before, RESIDUAL))
            keep |= mark(left_out, RESIDUAL)
        kept.save(keep)
        return replace(update, arrays=shared)

    @staticmethod
    def _kept(message: Message, context: Context) -> KeptState:
        """What the site keeps between rounds, in the round of a message."""
        setup, number = (messages.get_value(message.content, name) for name in ("setup", "round"))
        return KeptState(context, setup, number, marked(messages.from_record(context.state.array_records[_INPUTS])))

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
