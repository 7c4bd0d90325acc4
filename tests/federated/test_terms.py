"""A site's own terms hold, whatever the server's recipe says."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message

from nosology.federated.privacy.secure_round import KEYS
from nosology.federated.rounds.federation_server import run_federation
from nosology.federated.rounds.records import EVALUATE, FACTS, STATISTICS, TRAIN, content
from tests.federated.worlds import grid_of, recipe, sites


def asked(grid, kind, settings):
    node = grid.get_node_ids()[0]
    told = content(
        {"a": np.zeros(1)}, recipe=settings.model_dump(mode="json"), round=1, agreed="", secure={"session": {}}
    )
    return grid.send_and_receive([Message(told, node, kind)])[0]


@pytest.mark.parametrize("kind", [FACTS, STATISTICS, TRAIN, EVALUATE, KEYS])
@pytest.mark.parametrize(
    ("term", "least", "given", "sentence"),
    [
        ("min-notes", "10", {"min_site_notes": 9}, "federation.min_site_notes is 10 at least; got 9"),
        ("record-noise", "1.5", {}, "federation.privacy.record_noise is 1.5 at least; got 0"),
    ],
)
def test_a_recipe_that_protects_less_is_refused_at_every_message(kind, term, least, given, sentence):
    grid = grid_of(sites(2))
    grid._contexts[grid.get_node_ids()[0]].node_config[term] = least
    assert sentence in asked(grid, kind, recipe("mlp", **given)).error.reason


def test_a_site_whose_terms_are_not_met_is_named_and_the_others_go_on(tmp_path):
    grid = grid_of(sites(3))
    grid._contexts[grid.get_node_ids()[0]].node_config["min-notes"] = "10"
    found = run_federation(grid, recipe("mlp", rounds=1), tmp_path / "bundle")
    assert found.history[0]["sites"] == 2
    assert list(found.refused.values()) == ["it takes part only where federation.min_site_notes is 10 at least; got 1"]


def test_a_recipe_of_another_version_is_refused_by_the_names_of_what_is_new():
    grid = grid_of(sites(2))
    told = recipe("mlp").model_dump(mode="json")
    told["federation"]["later"] = 1
    message = content({"a": np.zeros(1)}, recipe=told, round=1, agreed="", secure={"session": {}})
    [reply] = grid.send_and_receive([Message(message, grid.get_node_ids()[0], TRAIN)])
    assert reply.error.reason.endswith("does not take the recipe's federation.later")


def test_train_notes_are_not_counted(tmp_path):
    hospitals, settings = sites(2), recipe("mlp", rounds=1)
    grid = grid_of(hospitals)
    kept = []
    grid.app, inner = (lambda message, context: kept.append(message) or inner(message, context)), grid.app
    run_federation(grid, settings, tmp_path / "bundle")
    message = next(one for one in kept if one.metadata.message_type == EVALUATE)
    node = message.metadata.dst_node_id
    assert grid.send_and_receive([Message(message.content, node, EVALUATE)])[0].has_content()
    message.content["config"]["split"] = '"train"'
    reply = grid.send_and_receive([Message(message.content, node, EVALUATE)])[0]
    assert reply.error.reason == "it counts over dev and test notes only"


def test_a_recipe_that_meets_the_terms_is_taken():
    grid = grid_of(sites(2))
    grid._contexts[grid.get_node_ids()[0]].node_config |= {"min-notes": "10", "record-noise": "1.0"}
    met = recipe("mlp", min_site_notes=10, privacy={"record_noise": 1.0})
    assert asked(grid, FACTS, met).has_content()
