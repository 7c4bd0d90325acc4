"""Tests of a rehearsal on simulated notes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from nosology.config import load_recipe
from nosology.core import FederationError
from nosology.corpora.corpus import Corpus
from nosology.federated.deploy.rehearsal import rehearsal_settings, write_rehearsal_corpus
from nosology.federated.privacy.budget_ledger import BudgetLedger
from nosology.federated.rounds.client_app import app as client_app
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import make_content
from nosology.federated.rounds.simulation import InProcessGrid
from nosology.federated.rounds.site_policy import read_recipe
from tests.encoders.tiny_embedders import tiny_embedder
from tests.federated.small_hospitals import recipe


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """The simulated notes of three sites."""
    folder = tmp_path_factory.mktemp("rehearsal")
    return {site: write_rehearsal_corpus(site, 40, folder / site) for site in ("anna", "berta", "clara")}


def test_every_site_has_its_own_simulated_notes(corpora):
    notes = {site: list(Corpus.open(corpora[site]).notes()) for site in ("anna", "berta")}
    assert not {note.text for note in notes["anna"]} & {note.text for note in notes["berta"]}
    for part in notes.values():
        assert {note.split for note in part} == {"train", "dev", "test"} and all(len(n.text) <= 400 for n in part)
        splits = {(note.patient, note.split) for note in part}
        assert len(splits) == len({patient for patient, _ in splits})  # a patient is in one split
        counts = Counter(code for note in part if note.split == "train" for code in set(note.codes))
        assert counts.most_common(1)[0][1] >= 10  # a site reports codes of at least 10 notes


def test_rehearsals_and_real_runs_do_not_mix():
    changed = ["federation.rounds=5", "federation.rehearsal=false"]
    rehearsed = load_recipe("heads-mlp", rehearsal_settings(3, 2, changed)).federation
    assert rehearsed.rehearsal and rehearsed.rounds == 5
    contexts = {name: Context(0, 0, {"rehearsal": name}, RecordDict(), {}) for name in ("", "yes")}
    messages = {
        value: SimpleNamespace(content=make_content(recipe=recipe(rehearsal=value).model_dump(mode="json")))
        for value in (False, True)
    }
    assert read_recipe(messages[False], contexts[""]) and read_recipe(messages[True], contexts["yes"])
    with pytest.raises(FederationError, match="the site has real notes and takes no part in a rehearsal"):
        read_recipe(messages[True], contexts[""])
    with pytest.raises(FederationError, match="rehearses with simulated notes and takes no part in a real run"):
        read_recipe(messages[False], contexts["yes"])


@pytest.mark.parametrize(
    ("name", "settings", "policy"),
    [
        ("caml", ["vectors.size=8", "model.filters=8"], {"kinds": "caml", "words": "yes"}),
        (
            "heads-mlp",
            ["model.widths=[8]", "federation.privacy.secure=true", "federation.privacy.record_noise=1.0"],
            {"kinds": "heads", "words": "no", "secure-only": "yes", "record-noise": "1.0", "epsilon": "50"},
        ),
    ],
)
def test_agreed_recipe_is_rehearsed_under_the_policy_of_the_sites(corpora, tmp_path, name, settings, policy):
    embedder = tiny_embedder(tmp_path / "embedder", "bert")
    more = [f"embedder.model={embedder}"] if name == "heads-mlp" else []
    agreed = load_recipe(name, [*settings, *more, *rehearsal_settings(3, 1), "federation.min_notes=5"])
    grid = InProcessGrid(client_app, corpora)
    for context in grid._contexts.values():
        site = str(context.node_config["site-name"])
        config = {
            "corpus": str(corpora[site]),
            "cache": str(tmp_path / site),
            "ledger": str(tmp_path / f"{site}.budget"),
        }
        context.node_config |= config | policy | {"rehearsal": "yes"}
    result = FlowerFederation(grid, agreed).run(tmp_path / "bundle")
    assert result.refused == {} and result.history[0]["sites"] == 3
    for site in corpora:
        assert BudgetLedger(tmp_path / f"{site}.budget").spent()[0][1] == len(result.history)
