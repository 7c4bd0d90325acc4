"""A federation in one process: the hospitals of a simulation, and a grid without Ray and network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from nosology.core import DataError
from nosology.core.files import text_sha256
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.corpora.group_splits import summarize_notes
from nosology.corpora.splits import assign_sites
from nosology.federated.federation_settings import FederatedHeadsRecipe, FederatedRecipe
from nosology.federated.rounds import messages
from nosology.federated.rounds.client_app import make_app
from nosology.federated.rounds.federation_loop import FederationLoop, Report, federation_output
from nosology.federated.rounds.federation_modes import make_federation
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.kept_state import FOLDER
from nosology.federated.rounds.learner import LocalSite, learner_of
from nosology.federated.rounds.participants import SiteGrid
from nosology.federated.rounds.vectorized import VectorizedFederation
from nosology.models.bundle import Bundle
from nosology.training.run_folder import VECTORS, clear_run_folder

SITE_NAME = "site-name"  # in the node config
_SERVER_NODE, _FIRST_NODE = 1, 100


class InProcessGrid(SiteGrid):
    """A grid of nodes in this process, all with the same ClientApp.

    Nodes process messages one after the other, in the order of the messages. Each has a Context that lives as long as
    the grid. Node ids are counted, so two runs are identical.
    """

    timeout = 0.0  # seconds to wait for nodes: all are online from the start

    def __init__(self, app: ClientApp, sites: Iterable[str], run_id: int = 1, personal: Path | None = None):
        self.app, self.run_id, self.personal = app, run_id, personal
        self._contexts: dict[int, Context] = {}
        self._replies: dict[str, Message] = {}
        self._ids, self._nodes = count(1), count(_FIRST_NODE)
        # Message() takes run and sender from this class; Flower's own programs set it in the same way
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, _SERVER_NODE, 0
        for site in sites:
            self.add(site)

    def add(self, site: str) -> int:
        """The id of a new node of a site; an existing node of the site is removed with its state."""
        self.remove(site)
        node_id = next(self._nodes)
        config = {SITE_NAME: site} | ({FOLDER: str(self.personal / site)} if self.personal else {})
        self._contexts[node_id] = Context(self.run_id, node_id, {**config}, RecordDict(), {})
        return node_id

    def remove(self, site: str) -> None:
        """Removes the node of a site, as if it were switched off."""
        self._contexts = {
            node: context for node, context in self._contexts.items() if context.node_config[SITE_NAME] != site
        }

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of the messages; their replies are ready when this returns."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to messages, in their order. Each reply is returned once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def _push(self, message: Message) -> str:
        # a message has no public setter for its id
        message.metadata.__dict__["_message_id"] = name = f"message-{next(self._ids)}"
        reply = self._process(message)
        reply.metadata.__dict__["_message_id"] = f"reply-{name}"
        self._replies[name] = reply
        return name

    def _process(self, message: Message) -> Message:
        context = self._contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(messages.UNREACHABLE, "no such node"), reply_to=message)
        try:
            return self.app(message, context)
        except Exception as error:  # an exception of the app is a failure of its node, not of the run
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(messages.APP_RAISED, reason), reply_to=message)


def simulation_grid(sites: Sequence[LocalSite], personal: Path | None = None) -> InProcessGrid:
    """A grid with one node per site. personal: a folder for the personal layers of the sites."""
    by_name = {site.name: site for site in sites}
    app = make_app(lambda context, _: by_name[str(context.node_config[SITE_NAME])])
    return InProcessGrid(app, by_name, personal=personal)


def corpus_sites(corpora: Sequence[Corpus]) -> dict[str, str]:
    """The site of every note id, as given in the corpora."""
    _check_ids(corpora)
    sites = {note.id: note.site or "" for corpus in corpora for note in corpus.notes(text=False)}
    if without := sum(not site for site in sites.values()):
        raise DataError(f"{without} notes have no site: use `nosology corpus split --sites`, or --sites here")
    return sites


def partition_sites(corpora: Sequence[Corpus], sites: int, skew: str, alpha: float, seed: int) -> dict[str, str]:
    """A new partition: the site of every note id. No patient and no duplicate note is at two sites."""
    _check_ids(corpora)
    notes = (note for corpus in corpora for note in progress(corpus.notes(), "assigning sites", total=len(corpus)))
    return assign_sites(summarize_notes(notes), sites, skew=skew, alpha=alpha, seed=seed)


def _check_ids(corpora: Sequence[Corpus]) -> None:
    """Raises DataError if a note id occurs in two corpora."""
    ids = [note.id for corpus in corpora for note in corpus.notes(text=False)]
    if duplicates := len(ids) - len(set(ids)):
        raise DataError(f"note ids must differ between corpora; {duplicates} occur in two of them")


def notes_hash(corpora: Sequence[Corpus], site_of: dict[str, str]) -> str:
    """A hash of the notes and of the site of each."""
    content = json.dumps([[corpus.hash for corpus in corpora], sorted(site_of.items())])
    return text_sha256(content)[:16]


def simulated_sites(
    corpora: Sequence[Corpus], site_of: dict[str, str], recipe: FederatedRecipe, folder: Path
) -> list[LocalSite]:
    """One hospital per site. folder: for vectors; those that it does not have are computed and stored there."""
    return learner_of(recipe).simulated_sites(corpora, site_of, folder)


def personal_folder(out: Path) -> Path:
    """The folder of the personal layers of all sites of a simulation, next to its bundle; one folder per site."""
    return out.with_name(f"{out.name}-personal")


def run_simulation(
    corpora: Sequence[Corpus],
    site_of: dict[str, str],
    recipe: FederatedRecipe,
    out: Path,
    engine: Literal["flower", "vectorized"],
    report: Report,
) -> Bundle:
    """The coder that the sites train, saved in `out`; a run that was killed is continued.

    site_of: site of every note id. `min_sites` and `quorum` are at most the number of sites with enough notes.
    """
    (VectorizedFederation if engine == "vectorized" else FlowerFederation).check(recipe)
    with federation_output(out) as folder:
        stored = recipe.vectors.cache if isinstance(recipe, FederatedHeadsRecipe) else ""
        sites = simulated_sites(corpora, site_of, recipe, Path(stored or folder / VECTORS))
        loop = _simulated_loop(sites, recipe, engine, report, personal_folder(out))
        bundle = loop.run_in(folder, out, corpora, notes_hash(corpora, site_of)).bundle
        clear_run_folder(folder, marked=True)
    return bundle


def _simulated_loop(
    sites: Sequence[LocalSite],
    recipe: FederatedRecipe,
    engine: Literal["flower", "vectorized"],
    report: Report,
    personal: Path,
) -> FederationLoop:
    """The loop of these sites in this process. personal: folder of the personal layers."""
    federation = recipe.federation
    count = max(1, sum(site.sizes["train"] >= federation.min_site_notes for site in sites))
    limits = {"min_sites": min(federation.min_sites, count), "quorum": min(federation.quorum, count)}
    recipe = recipe.model_copy(update={"federation": federation.model_copy(update=limits)})
    if engine == "vectorized" and isinstance(recipe, FederatedHeadsRecipe):  # its `check` has refused other kinds
        return VectorizedFederation([site for site in sites if isinstance(site, HeadsSite)], recipe, report)
    if federation.mode == "async":
        from nosology.federated.rounds.virtual_clock import virtual_grid

        return make_federation(virtual_grid(sites, personal=personal), recipe, report)
    return make_federation(simulation_grid(sites, personal), recipe, report)
