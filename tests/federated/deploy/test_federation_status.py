"""Tests of the status of a run."""

from __future__ import annotations

import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import DataError
from nosology.federated.deploy.federation_status import Traffic, make_status, read_status, status_page, write_status
from nosology.federated.deploy.server_app import DeployedGrid, content_size, report
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import pack_message, unpack_message
from nosology.federated.rounds.participants import SiteGrid
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.small_hospitals import recipe, sites

NAMES = ["site-00", "site-01", "site-02"]


class PackedGrid(SiteGrid):
    """A simulated grid under `DeployedGrid`, which packs messages."""

    def __init__(self, grid):
        self.grid, self.replies = grid, {}

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.content = unpack_message(message.content)
            (reply,) = self.grid.send_and_receive([message])
            if reply.has_content():
                reply.content = pack_message(reply.content)
            ids.append(reply.metadata.reply_to_message_id)
            self.replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """The state folder of a run of three sites, and a site that never came."""
    monkeypatch.setenv("NOSOLOGY_FEDERATION_STATUS", str(tmp_path))
    simulated = simulation_grid(sites(3))
    names = dict(zip(simulated.get_node_ids(), NAMES))
    grid = DeployedGrid(PackedGrid(simulated), names | {99: "late <b>"})
    federation = FlowerFederation(grid, recipe(rounds=2), lambda line: report(line, federation, grid))
    federation.run(tmp_path / "bundle")
    return tmp_path


def test_status_of_a_run_has_sites_rounds_loss_and_bytes(finished):
    status = read_status(finished)
    assert [row["round"] for row in status["history"]] == [1, 2] and status["rounds"] == 2
    assert {name: site["state"] for name, site in status["sites"].items()} == dict.fromkeys(NAMES, "online") | {
        "late <b>": "offline"
    }
    for name in NAMES:
        values = status["sites"][name]
        assert values["sent"] > 5000 and values["received"] > 2500  # 2 rounds of 700 weights, and the evaluation
        assert time.time() - 60 < values["last_reply"] <= time.time()
    assert status["sites"]["late <b>"]["last_reply"] == 0
    loss = f"{status['history'][-1]['loss']:.4f}"
    shown = CliRunner().invoke(app, ["federate", "status", str(finished), "--html", str(finished / "page.html")])
    assert shown.exit_code == 0 and "2 of 2 rounds" in shown.output and loss in shown.output
    assert "never" in shown.output and all(name in shown.output for name in NAMES)
    page = (finished / "page.html").read_text()
    assert page == (finished / "status.html").read_text()
    assert loss in page and "<script" not in page and "late &lt;b&gt;" in page and "late <b>" not in page


def run_with(tmp_path, monkeypatch, change, rounds=1):
    """The status of a run of three sites; change: is called with the simulated grid and its sites."""
    monkeypatch.setenv("NOSOLOGY_FEDERATION_STATUS", str(tmp_path))
    hospitals = sites(3)
    simulated = simulation_grid(hospitals)
    grid = DeployedGrid(PackedGrid(simulated), dict(zip(simulated.get_node_ids(), NAMES)))
    change(simulated, hospitals)
    federation = FlowerFederation(grid, recipe(rounds=rounds), lambda line: report(line, federation, grid))
    federation.run(tmp_path / "bundle")
    return read_status(tmp_path)["sites"]


def test_site_that_refuses_the_recipe_is_shown_with_its_reason(tmp_path, monkeypatch):
    def demand_noise(grid, hospitals):
        grid._contexts[grid.get_node_ids()[1]].node_config["record-noise"] = "1.0"

    shown = run_with(tmp_path, monkeypatch, demand_noise)
    assert {name: site["state"] for name, site in shown.items()} == dict(zip(NAMES, ["online", "refused", "online"]))
    assert shown["site-01"]["reason"].startswith("the site policy demands federation.privacy.record_noise")
    assert "site-01  refused" in CliRunner().invoke(app, ["federate", "status", str(tmp_path)]).output


@pytest.mark.parametrize("place", ["metadata", "train"])
def test_site_that_fails_is_shown_with_the_class_of_its_exception(tmp_path, monkeypatch, place):
    def fail(grid, hospitals):
        monkeypatch.setattr(hospitals[1], place, lambda *_: [][1])

    shown = run_with(tmp_path, monkeypatch, fail)
    assert shown["site-01"]["state"] == ("refused" if place == "metadata" else "online")
    assert shown["site-01"]["reason"] == "it failed with IndexError"


def test_refused_site_has_its_reason():
    traffic = Traffic()
    traffic.record("anna", sent=1500, received=2_500_000)
    status = make_status("line", 3, [], ["anna", "berta"], ["anna"], {"berta": "embedder: other"}, {}, traffic)
    page = status_page(status)
    assert "<td>refused</td>" in page and "embedder: other" in page and "1.5 KB" in page and "2.5 MB" in page


def test_folder_without_status_raises(tmp_path):
    with pytest.raises(DataError, match=r"no status\.json in .*: no run has been started there"):
        read_status(tmp_path)
    write_status(make_status("", 1, [], [], [], {}, {}, Traffic()), tmp_path)
    (tmp_path / "status.json").write_text("[1]")
    with pytest.raises(DataError, match="is not a status"):
        read_status(tmp_path)


def test_size_of_a_message_is_that_of_its_arrays():
    content = RecordDict({"a": ArrayRecord({"x": Array(np.zeros(1000, np.uint8))})})
    assert 1000 <= content_size(content) < 1200
