"""A federation over TLS on this machine: real processes, real keys, real kill -9."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import uvicorn

from nosology.config import load_recipe
from nosology.core import ConfigError, DataError, FederationError
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.federated.deploy.control import Control, check_address
from nosology.federated.deploy.credentials import make_server_papers, make_site_key, read_public_keys, read_site_key
from nosology.federated.deploy.deploy_server import Server
from nosology.federated.deploy.flower_process import Door, _run_quietly
from nosology.federated.deploy.processes import free_port, wait_until
from nosology.federated.rounds.federation_server import run_federation
from nosology.federated.rounds.hospital_site import Site
from nosology.federated.rounds.saved_rounds import ROUND
from nosology.models.bundle import Bundle
from nosology.training.run_folder import run_folder
from tests.federated.hospitals import NOTES, ODD, PATIENCE, Federation, descendants, wait_for_file
from tests.federated.worlds import grid_of


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A server and four sites, one of which has another embedder."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start_server()
        for name in [*NOTES, ODD]:
            made.start_site(name)
        made.server.says("listening on")
        for name in [*NOTES, ODD]:
            made.sites[name].says(f"{name}: connected to")
        yield made
    finally:
        made.end()


def trained_in_one_process(federation: Federation, out: Path, rounds: int = 4) -> Bundle:
    """The bundle of the same sites without a network between them."""
    torch.set_num_threads(1)
    embedder = EmbedderSettings(model=str(federation.folder / "embedder"))
    sites = [
        Site.open(name, [federation.folder / name / "corpus"], federation.folder / name / "cache", embedder)
        for name in NOTES
    ]
    settings = ["embedder.model=embedder", "model.widths=[16]", "training.batch=8", f"federation.rounds={rounds}"]
    settings += [f"federation.{name}=2" for name in ("quorum", "min_site_notes", "min_notes")]
    recipe = load_recipe("heads-mlp", [*settings, "federation.min_sites=3"])
    return run_federation(grid_of(sites), recipe, out).bundle


def assert_same(found: Bundle, wanted: Bundle) -> None:
    state, other = found.model.net.state_dict(), wanted.model.net.state_dict()
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        np.testing.assert_allclose(tensor.numpy(), other[name].numpy(), rtol=0, atol=1e-5)
    assert found.model.labels.codes == wanted.model.labels.codes
    assert found.decision.threshold == pytest.approx(wanted.decision.threshold, abs=1e-4)


@pytest.mark.timeout(900)  # one test, not five: they share five processes that take long to start
def test_hospitals_over_tls(federation, tmp_path):
    three_hospitals_train_what_one_process_trains(federation, tmp_path)
    a_run_that_all_sites_refuse_ends_with_a_sentence_and_exit_code_1(federation)
    a_killed_site_is_missed_until_it_comes_back_and_an_interrupted_run_is_stopped(federation)
    a_killed_server_goes_on_after_its_last_round(federation, tmp_path)
    what_a_killed_site_started_ends_by_itself(federation)


def three_hospitals_train_what_one_process_trains(federation, folder):
    run = federation.run("together")
    stranger, _ = make_site_key(federation.folder / "stranger", "anna")
    refused = federation.start_site("anna", key=stranger)
    assert run.ends() == 0, run.text
    expected = trained_in_one_process(federation, folder / "together")
    assert_same(Bundle.load(federation.folder / "run" / "together"), expected)
    assert "3 sites" in run.says("round 4/4")
    assert f"{ODD} is left out: embedder: " in run.text and "must be" in run.text  # the difference is named
    assert refused.ends() == 1
    assert "refuses the key of anna" in refused.text.splitlines()[-1]


def a_run_that_all_sites_refuse_ends_with_a_sentence_and_exit_code_1(federation):
    run = federation.run("none", min_site_notes=1000, wait=15)
    assert run.ends() == 1
    last = run.text.splitlines()[-1]
    assert "did not complete (failed): 0 sites were there" in last
    assert "train notes; 1000 are needed" in last
    assert not (federation.folder / "run" / "none").exists()


def a_killed_site_is_missed_until_it_comes_back_and_an_interrupted_run_is_stopped(federation):
    run = federation.run("missed", rounds=1000, wait=10)
    wait_for_file(run_folder(federation.folder / "run" / "missed") / ROUND)
    federation.sites["clara"].kill()
    run.says(" 2 sites")
    federation.start_site("clara").says("clara: connected to")
    assert wait_until(lambda: " 3 sites" in run.text.rpartition(" 2 sites")[2], PATIENCE), run.text
    rounds = [line for line in run.text.splitlines() if line.startswith("round ") and "loss" in line]
    assert " 3 sites" in rounds[0]
    assert "; clara: " in next(line for line in rounds if " 2 sites" in line), run.text  # it is named
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130
    number = int(run.text.split()[1])
    with Control(f"localhost:{federation.port}", federation.papers.root) as control:
        assert wait_until(lambda: control.status(number).finished, PATIENCE)
        assert control.status(number).end == "stopped"


def a_killed_server_goes_on_after_its_last_round(federation, folder):
    out, rounds = federation.folder / "run" / "resumed", 8  # enough not to be over before it is killed
    run = federation.run("resumed", rounds=rounds, wait=PATIENCE)
    wait_for_file(run_folder(out) / ROUND)
    federation.server.kill()
    assert not out.exists()
    assert run.ends() == 1, run.text
    assert "start the run again" in run.text.splitlines()[-1]
    federation.start_server()
    federation.server.says("1 run(s) were under way")
    federation.server.says("listening on")
    again = federation.run("resumed", rounds=rounds, wait=PATIENCE)
    assert again.ends(2 * PATIENCE) == 0, again.text
    assert "goes on after round" in again.text and f"round 1/{rounds}" not in again.text
    assert_same(Bundle.load(out), trained_in_one_process(federation, folder / "resumed", rounds))


def what_a_killed_site_started_ends_by_itself(federation):
    site = federation.sites["berta"].process
    children = descendants(site.pid)
    assert children
    site.kill()
    site.wait()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 30)


@pytest.mark.timeout(120)
def test_a_key_that_was_taken_out_stays_out_and_the_server_goes_on(tmp_path):
    papers = make_server_papers(tmp_path / "papers", ["localhost"])
    for name in ("anna", "berta", "clara"):
        make_site_key(tmp_path / "keys", name)
    keys = read_public_keys(tmp_path / "keys")
    without = {name: keys[name] for name in ("anna", "clara")}
    with Server(papers, tmp_path / "state", free_port(), "127.0.0.1") as server:
        server.admit(keys, lambda line: None)
        for _ in range(2):  # as often as the server is started
            server.admit(without, lambda line: None)
        with Control(server.here, papers.root) as control:
            assert sorted(control.names().values()) == ["anna", "clara"]
        with pytest.raises(FederationError, match="the key of berta was taken out before: it needs a new one"):
            server.admit(keys, lambda line: None)
        with pytest.raises(FederationError, match="the key of dora is registered as anna's: a key keeps its name"):
            server.admit({"dora": keys["anna"], "clara": keys["clara"]}, lambda line: None)


def test_private_keys_are_for_their_owner_and_never_replaced(tmp_path):
    papers = make_server_papers(tmp_path, ["federation.example.org"])
    private, public = make_site_key(tmp_path, "anna")
    secrets = [papers.key, papers.authority_key, private]
    before = [path.read_bytes() for path in secrets]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secrets)
    certificate, root = papers.certificate.read_bytes(), papers.root.read_bytes()
    make_server_papers(tmp_path, ["10.1.2.3"])
    public.unlink()
    make_site_key(tmp_path, "anna")
    assert [path.read_bytes() for path in secrets] == before and papers.root.read_bytes() == root
    assert papers.certificate.read_bytes() != certificate and public.exists()


def test_a_certificate_that_has_run_out_is_named(tmp_path):
    assert make_server_papers(tmp_path, ["localhost"]).check()
    papers = make_server_papers(tmp_path, ["localhost"], days=0)
    with pytest.raises(DataError, match=r"server\.pem ran out on \d{4}-\d\d-\d\d: delete it"):
        papers.check()


def test_papers_that_are_not_papers_are_one_sentence(tmp_path):
    (tmp_path / "a.key").write_text("no key")
    (tmp_path / "b.pub").write_text("no key")
    with pytest.raises(DataError, match=r"a\.key is not a site's private key"):
        read_site_key(tmp_path / "a.key")
    with pytest.raises(DataError, match=r"b\.pub is not a public key"):
        read_public_keys(tmp_path)
    with pytest.raises(ConfigError, match="a site's name must be"):
        make_site_key(tmp_path, "../anna")
    with pytest.raises(ConfigError, match="a host must be"):
        make_server_papers(tmp_path, ["https://here"])
    with pytest.raises(ConfigError, match="--server must be HOST:PORT"):
        check_address("localhost")


@pytest.mark.parametrize("believed", [True, False])
def test_a_stranger_cannot_say_that_it_is_local(monkeypatch, believed):
    """Whatever the environment tells the web server to believe of X-Forwarded-For."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message["type"])

    made = []
    run = made.append if believed else lambda settings: _run_quietly(lambda **all: made.append(all), **settings)
    run({"app": Door(app), "interface": "asgi3", "lifespan": "off", "ws": "none"})
    config = uvicorn.Config(**made[0])
    config.load()
    headers = [(b"x-forwarded-for", b"127.0.0.1")]
    scope = {"type": "http", "path": "/v1/control/start-run", "client": ("10.0.0.5", 1), "headers": headers}
    asyncio.run(config.loaded_app(scope, None, send))
    assert bool(reached) == believed, "by itself uvicorn believes it, so that the test can fail"


@pytest.mark.parametrize(
    ("path", "client", "passes"),
    [
        ("/v1/fleet/pull-messages", "10.0.0.5", True),
        ("/v1/control/start-run", "10.0.0.5", False),
        ("/v1/runtime/acquire-task", "10.0.0.5", False),
        ("/docs", "10.0.0.5", False),
        ("/v1/fleetx", "10.0.0.5", False),
        ("/v1/control/start-run", "127.0.0.1", True),
        ("/v1/control/start-run", "::1", True),
        ("/v1/control/start-run", "testclient", False),
        ("/v1/control/start-run", None, False),
    ],
)
def test_strangers_reach_only_what_asks_for_a_key(path, client, passes):
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": (client, 1) if client else None}
    asyncio.run(Door(app)(scope, None, send))
    assert bool(reached) == passes
    assert (sent[0]["status"] if sent else None) == (None if passes else 404)
