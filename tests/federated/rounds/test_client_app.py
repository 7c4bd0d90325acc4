"""Tests of the ClientApp: node config and site policy."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from nosology.config import load_federated_recipe, load_recipe
from nosology.core import ConfigError
from nosology.federated.deploy.credentials import create_site_key
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.privacy.secure_round import KEYS
from nosology.federated.rounds.client_app import open_site, read_signatures
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import EVALUATE, METADATA, STATISTICS, TRAIN, make_content
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.small_hospitals import recipe, sites


def context(**config: str) -> Context:
    return Context(1, 1, {name.replace("_", "-"): value for name, value in config.items()}, RecordDict(), {})


def test_site_with_code_list_reports_only_its_codes(small_corpus, tmp_path):
    (tmp_path / "codes.csv").write_text("code,system\nI50.9,icd10cm\nJ18.9,icd10cm\n")
    config = {"site_name": "a", "corpus": str(small_corpus.folder), "cache": str(tmp_path / "vectors")}
    all_codes = open_site(context(**config), FederatedHeadsRecipe())
    listed = open_site(context(**config, codes=str(tmp_path / "codes.csv")), FederatedHeadsRecipe())
    assert {code.code for code in listed.metadata(1).codes} == {"I50.9", "J18.9"}
    assert len(all_codes.metadata(1).codes) == 6
    labels = FederatedHeadsRecipe().labels.model_copy(update={"systems": ["icd10pcs"]})
    procedures = open_site(context(**config), FederatedHeadsRecipe(labels=labels))
    assert {code.system for code in procedures.metadata(1).codes} == {"icd10pcs"}


def test_code_of_an_embedder_runs_only_with_trust_remote_code(small_corpus, tmp_path):
    trusting = FederatedHeadsRecipe.model_validate({"embedder": {"trust_remote_code": True}})
    config = {"site_name": "a", "corpus": str(small_corpus.folder), "cache": str(tmp_path / "vectors")}
    with pytest.raises(ConfigError, match="has no trust-remote-code"):
        open_site(context(**config), trusting)
    with pytest.raises(ConfigError, match="must have corpus"):
        open_site(context(site_name="a"), FederatedHeadsRecipe())


def send(grid, kind, recipe_json):
    """The reply of the first node to a message."""
    content = make_content({"a": np.zeros(1)}, recipe=recipe_json, round=1, setup="", secure={"session": {}})
    return grid.send_and_receive([Message(content, grid.get_node_ids()[0], kind)])[0]


def set_policy(grid, **options):
    """Sets the site policy of the first node."""
    grid._contexts[grid.get_node_ids()[0]].node_config |= {k.replace("_", "-"): v for k, v in options.items()}


@pytest.mark.parametrize("kind", [METADATA, STATISTICS, TRAIN, EVALUATE, KEYS])
@pytest.mark.parametrize(
    ("policy", "federation", "sentence"),
    [
        ({"min_notes": "10"}, {"min_site_notes": 9}, "federation.min_site_notes of at least 10; got 9"),
        ({"record_noise": "1.5"}, {}, "federation.privacy.record_noise of at least 1.5; got 0"),
    ],
)
def test_every_message_of_a_recipe_below_the_site_policy_is_refused(kind, policy, federation, sentence):
    grid = simulation_grid(sites(2))
    set_policy(grid, **policy)
    assert sentence in send(grid, kind, recipe("mlp", **federation).model_dump(mode="json")).error.reason


@pytest.mark.parametrize("kind", ["caml", "laat", "dual_laat"])
def test_nets_without_record_noise_do_not_pass_a_policy_that_demands_it(kind):
    grid = simulation_grid(sites(2))
    set_policy(grid, record_noise="1.0")
    asked = load_recipe(kind, ["federation.privacy.record_noise=1.0"]).model_dump(mode="json")
    assert send(grid, TRAIN, asked).error.reason == f"a federated {kind} has no federation.privacy.record_noise"


@pytest.mark.parametrize("kind", [METADATA, STATISTICS, TRAIN, EVALUATE, KEYS])
def test_kinds_of_recipes_that_the_policy_does_not_permit_are_refused(kind):
    grid = simulation_grid(sites(2))
    set_policy(grid, kinds="heads,laat", words="yes")
    reply = send(grid, kind, load_recipe("caml").model_dump(mode="json"))
    assert reply.error.reason == "the site policy permits recipes of kind heads, laat; got caml"
    for name in ("heads-mlp", "laat"):
        reply = send(grid, kind, load_recipe(name).model_dump(mode="json"))
        assert not reply.has_error() or "policy" not in reply.error.reason
    set_policy(grid, kinds="heads,lat")
    assert "kinds of a site must be of heads, " in send(grid, kind, recipe("mlp").model_dump(mode="json")).error.reason


@pytest.mark.parametrize("kind", [METADATA, STATISTICS, TRAIN])
def test_words_leave_only_if_the_policy_permits_it(kind):
    grid = simulation_grid(sites(2))
    set_policy(grid, kinds="heads,caml", words="no")
    reply = send(grid, kind, load_recipe("caml").model_dump(mode="json"))
    assert reply.error.reason.startswith("the site policy does not permit to report words of notes")
    public = load_recipe("caml", ["federation.vocabulary=words.txt"]).model_dump(mode="json")
    for asked in (public, recipe("mlp").model_dump(mode="json")):
        reply = send(grid, kind, asked)
        assert not reply.has_error() or "policy" not in reply.error.reason
    set_policy(grid, words="yes")
    reply = send(grid, kind, load_recipe("caml").model_dump(mode="json"))
    assert not reply.has_error() or "policy" not in reply.error.reason


def test_columns_of_reports_that_may_have_words_need_the_permission():
    grid = simulation_grid(sites(2))
    set_policy(grid, kinds="hmhan", words="no")
    asked = load_recipe("hmhan", ["columns.choices=['gender', 'ward_note']"]).model_dump(mode="json")
    assert "for these columns.choices" in send(grid, METADATA, asked).error.reason
    usual = send(grid, METADATA, load_recipe("hmhan").model_dump(mode="json"))
    assert not usual.has_error() or "policy" not in usual.error.reason


@pytest.mark.parametrize("kind", ["linear", "lexicon"])
def test_words_of_few_patients_or_of_one_site_are_not_shared(kind):
    grid = simulation_grid(sites(2))
    set_policy(grid, kinds=kind, words="no")
    asked = load_federated_recipe(kind).model_dump(mode="json")
    assert f"and a federated {kind} needs them" in send(grid, METADATA, asked).error.reason
    set_policy(grid, kinds=kind, words="yes")
    for few in ("statistics.min_patients=2", "statistics.min_sites=1"):
        reply = send(grid, METADATA, load_federated_recipe(kind, [few]).model_dump(mode="json"))
        assert "shares words of at least 3 patients at 2 sites" in reply.error.reason


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({"epsilon": "8"}, "the node config must have ledger if it has epsilon"),
        ({"epsilon": "8", "ledger": "x", "delta": "1.5"}, "delta of a site must be below 1; got 1.5"),
        ({"epsilon": "inf"}, "epsilon of a site must be a finite number of at least 0; got inf"),
    ],
)
def test_incomplete_budget_refuses_every_recipe(policy, sentence):
    grid = simulation_grid(sites(2))
    set_policy(grid, **policy)
    assert send(grid, TRAIN, recipe("mlp").model_dump(mode="json")).error.reason == sentence


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "much"])
def test_policy_that_is_no_finite_number_refuses_every_recipe(value):
    grid = simulation_grid(sites(2))
    set_policy(grid, record_noise=value)
    reply = send(grid, TRAIN, recipe("mlp").model_dump(mode="json"))
    assert reply.error.reason == f"record-noise of a site must be a finite number of at least 0; got {value}"


def test_site_that_refuses_by_policy_is_named_and_the_others_continue(tmp_path):
    grid = simulation_grid(sites(3))
    set_policy(grid, min_notes="10")
    result = FlowerFederation(grid, recipe("mlp", rounds=1)).run(tmp_path / "bundle")
    assert result.history[0]["sites"] == 2
    reason = "the site policy demands federation.min_site_notes of at least 10; got 1"
    assert list(result.refused.values()) == [reason]


def test_recipe_with_unknown_settings_is_refused_with_their_names():
    newer = recipe("mlp").model_dump(mode="json")
    newer["federation"]["later"] = 1
    reply = send(simulation_grid(sites(2)), TRAIN, newer)
    assert reply.error.reason.endswith("does not accept federation.later of the recipe")


def test_evaluation_on_train_notes_is_refused(tmp_path):
    grid = simulation_grid(sites(2))
    messages = []
    grid.app, inner = (lambda message, context: messages.append(message) or inner(message, context)), grid.app
    FlowerFederation(grid, recipe("mlp", rounds=1)).run(tmp_path / "bundle")
    message = next(message for message in messages if message.metadata.message_type == EVALUATE)
    node = message.metadata.dst_node_id
    assert grid.send_and_receive([Message(message.content, node, EVALUATE)])[0].has_content()
    message.content["config"]["split"] = '"train"'
    reply = grid.send_and_receive([Message(message.content, node, EVALUATE)])[0]
    assert reply.error.reason == "split must be dev or test; got 'train'"


@pytest.mark.parametrize("kind", [["heads"], {"heads": 1}, 3, None])
def test_kind_of_another_type_in_a_recipe_is_refused(kind):
    reply = send(simulation_grid(sites(1)), METADATA, recipe("mlp").model_dump(mode="json") | {"kind": kind})
    assert "does not accept kind of the recipe" in reply.error.reason


def test_recipe_that_meets_the_site_policy_is_accepted():
    grid = simulation_grid(sites(2))
    set_policy(grid, min_notes="10", record_noise="1.0")
    accepted = recipe("mlp", min_site_notes=10, privacy={"record_noise": 1.0})
    assert send(grid, METADATA, accepted.model_dump(mode="json")).has_content()


def test_key_of_another_site_is_refused(tmp_path):
    keys = {name: create_site_key(tmp_path, name)[0] for name in ("a", "b")}
    peers = str(tmp_path)
    assert read_signatures(context(site_name="a", secure_key=str(keys["a"]), secure_peers=peers)) is not None
    assert read_signatures(context(site_name="c", secure_key=str(keys["a"]), secure_peers=peers)) is not None
    with pytest.raises(ConfigError, match=r"a\.key is not the key of b: .*b\.pub belongs to another"):
        read_signatures(context(site_name="b", secure_key=str(keys["a"]), secure_peers=peers))
