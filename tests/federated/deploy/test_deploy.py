"""Tests of a federation over TLS on this machine, with real processes that are killed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from flwr.clientapp import ClientApp
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

from nosology.config import load_federated_recipe, load_recipe
from nosology.core import ConfigError, DataError, FederationError
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.federated.deploy import deploy_site
from nosology.federated.deploy.credentials import (
    create_server_credentials,
    create_site_key,
    read_public_keys,
    read_site_key,
)
from nosology.federated.deploy.deploy_site import SiteCredentials, serve_site
from nosology.federated.deploy.federation_status import read_status
from nosology.federated.deploy.flower_process import free_port, wait_until
from nosology.federated.deploy.localhost_middleware import LocalhostMiddleware, run_uvicorn
from nosology.federated.deploy.superlink import (
    ControlClient,
    SuperLinkServer,
    follow_run,
)
from nosology.federated.privacy.budget_ledger import BudgetLedger
from nosology.federated.rounds.federation_modes import make_federation
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.federation_setup import ROUND_FILE
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.learner import SiteFiles
from nosology.federated.rounds.lexicon_learner import LexiconLearner
from nosology.federated.rounds.personal_layers import load_personal
from nosology.federated.rounds.simulation import simulation_grid
from nosology.federated.rounds.word_learner import WordLearner
from nosology.models.bundle import Bundle
from nosology.training.run_folder import run_folder
from tests.federated.deployed_federation import NOTES, ODD, TIMEOUT, Federation, descendants, wait_for_file

# Every round has all sites, however busy the machine is: the weights are then those of the simulation.
ALL_SITES = {"quorum": len(NOTES), "timeout": TIMEOUT}
ROUNDS = 2


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A server and four sites, one of which has another embedder."""
    started = Federation(tmp_path_factory.mktemp("federation"))
    try:
        started.start_server()
        for name in [*NOTES, ODD]:
            started.start_site(name)
        started.server.wait_for("listening on")
        for name in [*NOTES, ODD]:
            started.sites[name].wait_for(f"{name}: connected to")
        yield started
    finally:
        started.stop()


def train_in_one_process(federation: Federation, out: Path) -> Bundle:
    """The bundle of the same sites in a simulation."""
    torch.set_num_threads(1)
    embedder = EmbedderSettings(model=str(federation.folder / "embedder"))
    sites = [
        HeadsSite.open(name, [federation.folder / name / "corpus"], federation.folder / name / "cache", embedder)
        for name in NOTES
    ]
    settings = ["embedder.model=embedder", "model.widths=[16]", "training.batch=8", f"federation.rounds={ROUNDS}"]
    settings += [f"federation.{name}=2" for name in ("quorum", "min_site_notes", "min_notes")]
    recipe = load_recipe("heads-mlp", [*settings, "federation.min_sites=3"])
    return FlowerFederation(simulation_grid(sites), recipe).run(out).bundle


def assert_same(result: Bundle, expected: Bundle) -> None:
    state, expected_state = result.model.net.state_dict(), expected.model.net.state_dict()
    assert state.keys() == expected_state.keys()
    for name, tensor in state.items():
        np.testing.assert_allclose(tensor.numpy(), expected_state[name].numpy(), rtol=0, atol=1e-5)
    assert result.model.labels.codes == expected.model.labels.codes
    assert result.decision.threshold == pytest.approx(expected.decision.threshold, abs=1e-4)


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of Flower, when it packs the app
@pytest.mark.timeout(1500)  # one test, because the five processes take long to start
def test_hospitals_over_tls(federation, tmp_path):
    check_same_weights_as_simulation(federation, tmp_path)
    check_ledgers_of_sites(federation)
    check_word_net_has_the_weights_of_a_simulation(federation, tmp_path)
    check_lexicon_is_that_of_a_simulation(federation, tmp_path)
    check_unknown_key_is_refused(federation)
    check_run_refused_by_all_sites(federation)
    check_run_survives_killed_processes(federation)
    check_children_of_a_killed_site_end(federation)


def check_same_weights_as_simulation(federation, folder):
    run = federation.run("together", rounds=ROUNDS, **ALL_SITES)
    expected = train_in_one_process(federation, folder / "together")
    assert run.exit_code() == 0, run.text
    assert_same(Bundle.load(federation.folder / "run" / "together"), expected)
    assert "3 sites" in run.wait_for(f"round {ROUNDS}/{ROUNDS}")
    assert f"{ODD} is excluded: embedder: " in run.text and "must be" in run.text  # the reason is named


def check_ledgers_of_sites(federation):
    """Every site has recorded its rounds, which had no noise; a site that was excluded has trained nothing."""
    for name in NOTES:
        (notes, rounds, epsilon), *others = BudgetLedger(federation.folder / name / f"{name}.budget").spent()
        assert 0 < notes <= NOTES[name] and rounds >= ROUNDS and epsilon == np.inf and not others
    assert not BudgetLedger(federation.folder / ODD / f"{ODD}.budget").spent()


def check_word_net_has_the_weights_of_a_simulation(federation, folder):
    """The running sites also train a net that reads words; their embedders do not matter then.

    Its weights are sent in several chunks, and each site keeps its own classifier.
    """
    out, names = federation.folder / "run" / "words", [*NOTES, ODD]
    numbers = {"rounds": 1, "min_site_notes": 2, "min_notes": 2, "quorum": 4, "min_sites": 4, "timeout": TIMEOUT}
    numbers |= {"vector_rounds": 1}
    settings = [f"federation.{name}={value}" for name, value in numbers.items()]
    settings += ["federation.personal=['head']", "federation.optimizer_state=reset"]
    recipe = load_recipe("dual_laat", [*settings, "vectors.size=180", "model.width=6", "training.precision=fp32"])
    config = {"recipe": recipe.model_dump_json(), "out": str(out)}
    lines: list[str] = []
    follow_run(f"localhost:{federation.port}", federation.credentials.root, config, lines.append)
    learner = WordLearner(recipe)
    files = [SiteFiles(name, [federation.folder / name / "corpus"], None, None) for name in names]
    sites = [learner.open_site(each) for each in files]
    simulated = FlowerFederation(simulation_grid(sites, folder / "personal"), recipe)
    bundle = Bundle.load(out)
    assert_same(bundle, simulated.run(folder / "words").bundle)
    sent = sum(array.nbytes for array in simulated.setup.initial_weights().values())
    assert sent > FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    for name in names:
        own, expected = (
            load_personal(path, simulated.setup.hash)
            for path in (federation.folder / name / "personal", folder / "personal" / name)
        )
        assert set(own) == set(bundle.missing_layers)
        for weight, array in expected.items():
            np.testing.assert_allclose(own[weight], array, rtol=0, atol=1e-5)
            assert (own[weight] != simulated.setup.personal[weight]).any()


def check_lexicon_is_that_of_a_simulation(federation, folder):
    """The running sites also send counts of phrases, and trees."""
    out, names = federation.folder / "run" / "lexicon", [*NOTES, ODD]
    numbers = {"min_site_notes": 2, "min_notes": 2, "quorum": 4, "min_sites": 4, "timeout": TIMEOUT}
    settings = [f"federation.{name}={value}" for name, value in numbers.items()]
    settings += [
        "federation.privacy.secure=false",
        "statistics.buckets=4096",
        "codes.release=2026",
        "codes.seventh=true",
        "learn.terms=false",
    ]
    recipe = load_federated_recipe("lexicon", [*settings, "learn.rounds=2", "learn.forest=2", "learn.min_leaf=5"])
    config = {"recipe": recipe.model_dump_json(), "out": str(out)}
    follow_run(f"localhost:{federation.port}", federation.credentials.root, config, lambda line: None)
    learner = LexiconLearner(recipe)
    sites = [learner.open_site(SiteFiles(name, [federation.folder / name / "corpus"], None, None)) for name in names]
    expected = make_federation(simulation_grid(sites), recipe).run(folder / "lexicon").bundle
    result = Bundle.load(out)
    notes = list(Corpus.open(federation.folder / "anna" / "corpus").notes("test"))
    np.testing.assert_array_equal(result.model.probabilities(notes), expected.model.probabilities(notes))
    assert result.decision.threshold == expected.decision.threshold and result.model.scorer.learned.codes


def check_unknown_key_is_refused(federation):
    unknown, _ = create_site_key(federation.folder / "unknown", "anna")
    server, root = f"localhost:{federation.port}", federation.credentials.root
    with pytest.raises(FederationError, match="refuses the key of anna"):
        serve_site(SiteCredentials("anna", server, root, unknown), ClientApp(), {}, unknown.with_suffix(".log"))


def check_run_refused_by_all_sites(federation):
    out = federation.folder / "run" / "none"
    settings = ["embedder.model=embedder", "federation.min_site_notes=1000", "federation.timeout=8"]
    config = {"recipe": load_recipe("heads-mlp", settings).model_dump_json(), "out": str(out)}
    with pytest.raises(FederationError) as caught:
        follow_run(f"localhost:{federation.port}", federation.credentials.root, config, lambda line: None)
    assert "did not complete (failed): 0 sites were online" in str(caught.value)
    assert "train notes; 1000 are needed" in str(caught.value)
    assert not out.exists()


def check_no_secret_on_a_command_line(federation):
    """All users of a machine can read command lines, so tokens and keys are in files that only their owner can read."""
    commands = [line for program in federation.programs for line in command_lines(program.process)]
    assert sum("superlink" in line for line in commands) == 1 and sum("supernode" in line for line in commands) == 4
    options = ("--token-file", "--superexec-auth-secret-file", "--auth-supernode-private-key", "--ssl-keyfile")
    files = {Path(line[line.index(name) + 1]) for line in commands for name in options if name in line}
    assert len(files) == 11  # token, SuperLink and SuperNodes
    secrets = [path.read_bytes() for path in files]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files) and all(len(secret) >= 32 for secret in secrets)
    forms = [f(secret) for secret in secrets for f in (bytes, base64.b64encode, lambda raw: raw.hex().encode())]
    everything = "\n".join(" ".join(line) for line in commands).encode()
    assert not any(form in everything for form in forms)
    long = [word for line in commands for word in line if re.fullmatch(r"[A-Za-z0-9+=_-]{32,}", word)]
    assert not [word for word in long if not word.startswith("--")]  # nor another random text


def command_lines(process: subprocess.Popen) -> list[list[str]]:
    """The command lines of a process and all its descendants."""
    lines = []
    for pid in [process.pid, *descendants(process.pid)]:
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
    return lines


def check_run_survives_killed_processes(federation):
    """Rounds go on without a killed site, which takes part again when it is back; a killed server resumes.

    The rounds are asynchronous. For synchronous ones, test_federation_server.py compares the weights after a kill.
    """
    out, settings = federation.folder / "run" / "killed", {"mode": "async", "buffer_size": 2, "timeout": TIMEOUT}
    run = federation.run("killed", rounds=1000, **settings)
    wait_for_file(run_folder(out) / ROUND_FILE)
    check_no_secret_on_a_command_line(federation)
    federation.sites["clara"].kill()
    wait_for_rounds(run, 3)
    federation.start_site("clara").wait_for("clara: connected to")
    back = time.time()
    assert wait_until(lambda: last_reply(federation, "clara") > back, TIMEOUT), run.text
    federation.server.kill()
    assert not out.exists()
    assert run.exit_code() == 1, run.text
    assert "start the run again" in run.text.splitlines()[-1]
    federation.start_server()
    federation.server.wait_for("1 run(s) were active")
    federation.server.wait_for("listening on")
    again = federation.run("killed", rounds=1000, **settings)
    again.wait_for("continues after round", 2 * TIMEOUT)
    assert wait_until(lambda: len(rounds_of(again)) >= 2, TIMEOUT), again.text
    assert "round 1/1000" not in again.text
    again.process.send_signal(signal.SIGINT)
    assert again.exit_code() == 130
    number = int(again.text.split()[1])
    with ControlClient(f"localhost:{federation.port}", federation.credentials.root) as control:
        assert wait_until(lambda: control.has_finished(number), TIMEOUT)
        assert control.status(number).sub_status == "stopped"


def wait_for_rounds(run, more: int) -> None:
    """Waits until a run has done more rounds."""
    number = last_round(run)
    assert wait_until(lambda: last_round(run) >= number + more, TIMEOUT), run.text


def last_round(run) -> int:
    return max([0, *rounds_of(run)])


def rounds_of(run) -> list[int]:
    """The numbers of the rounds that a run has reported."""
    return [int(number) for number in re.findall(r"^round (\d+)/\d+  loss", run.text, re.MULTILINE)]


def last_reply(federation, site: str) -> float:
    return read_status(federation.folder / "state")["sites"][site]["last_reply"]


def check_children_of_a_killed_site_end(federation):
    site = federation.sites["berta"].process
    children = descendants(site.pid)
    assert children
    site.kill()
    site.wait()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 30)


@pytest.mark.timeout(120)
def test_removed_key_stays_refused(tmp_path):
    """The server listens on one address only, which is not 127.0.0.1."""
    credentials = create_server_credentials(tmp_path / "credentials", ["localhost", "127.0.0.2"])
    for name in ("anna", "berta", "clara"):
        create_site_key(tmp_path / "keys", name)
    keys = read_public_keys(tmp_path / "keys")
    without = {name: keys[name] for name in ("anna", "clara")}
    with SuperLinkServer(credentials, tmp_path / "state", free_port(), "127.0.0.2") as server:
        assert server.local_address.startswith("127.0.0.2:")
        server.register_sites(keys, lambda line: None)
        for _ in range(2):  # once per start of the server
            server.register_sites(without, lambda line: None)
        with ControlClient(server.local_address, credentials.root) as control:
            assert sorted(control.names().values()) == ["anna", "clara"]
        with pytest.raises(FederationError, match="the key of berta was removed before: the site needs a new one"):
            server.register_sites(keys, lambda line: None)
        with pytest.raises(FederationError, match="the key of dora is registered for anna: a key keeps its name"):
            server.register_sites({"dora": keys["anna"], "clara": keys["clara"]}, lambda line: None)


def test_server_does_not_listen_on_an_address_without_certificate(tmp_path):
    credentials = create_server_credentials(tmp_path / "credentials", ["fed.example.org", "10.1.2.3"])
    with (
        pytest.raises(
            ConfigError, match=r"--listen must be 0\.0\.0\.0 or an address of .*; got 10\.9\.9\.9: create one"
        ),
        SuperLinkServer(credentials, tmp_path / "state", free_port(), "10.9.9.9"),
    ):
        pass
    assert credentials.is_valid_for("10.1.2.3") and credentials.is_valid_for("127.0.0.1")


def test_private_keys_are_private_and_never_replaced(tmp_path):
    credentials = create_server_credentials(tmp_path, ["federation.example.org"])
    private, public = create_site_key(tmp_path, "anna")
    secrets = [credentials.key, credentials.authority_key, private]
    before = [path.read_bytes() for path in secrets]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secrets)
    certificate, root = credentials.certificate.read_bytes(), credentials.root.read_bytes()
    create_server_credentials(tmp_path, ["10.1.2.3"])
    public.unlink()
    create_site_key(tmp_path, "anna")
    assert [path.read_bytes() for path in secrets] == before and credentials.root.read_bytes() == root
    assert credentials.certificate.read_bytes() != certificate and public.exists()


@pytest.mark.parametrize(
    ("answers", "connects"),
    [("refused", False), ("down refused accepted", True), ("down refused refused", False), ("down accepted", True)],
)
def test_site_that_waited_for_a_new_server_tries_twice(monkeypatch, answers, connects):
    """A server answers before it has registered the keys of its sites."""
    outcomes = {"refused": FederationError("refused"), "down": httpx.ConnectError("down"), "accepted": 7}
    credentials = Mock(activate=Mock(side_effect=[outcomes[answer] for answer in answers.split()]))
    monkeypatch.setattr(deploy_site, "RETRY_SECONDS", 0.0)
    if connects:
        assert deploy_site._wait_for_server(credentials, lambda line: None) == 7
        return
    with pytest.raises(FederationError, match="refused"):
        deploy_site._wait_for_server(credentials, lambda line: None)


def test_expired_certificate_raises(tmp_path):
    assert create_server_credentials(tmp_path, ["localhost"]).check()
    credentials = create_server_credentials(tmp_path, ["localhost"], days=0)
    with pytest.raises(DataError, match=r"server\.pem expired on \d{4}-\d\d-\d\d: delete it"):
        credentials.check()


def test_certificate_of_the_server_does_not_outlast_that_of_the_authority(tmp_path, monkeypatch):
    monkeypatch.setattr("nosology.federated.deploy.credentials.ROOT_DAYS", 10)
    credentials = create_server_credentials(tmp_path, ["localhost"], days=730)
    assert 9 * 86400 < credentials.end - time.time() < 10 * 86400 + 1
    monkeypatch.setattr("nosology.federated.deploy.credentials.ROOT_DAYS", -1)
    credentials.root.unlink()
    with pytest.raises(DataError, match=r"root\.pem expired on \d{4}-\d\d-\d\d: delete it; every site needs"):
        for _ in range(2):
            create_server_credentials(tmp_path, ["localhost"])


def test_invalid_credentials_raise(tmp_path):
    (tmp_path / "a.key").write_text("not a key")
    (tmp_path / "b.pub").write_text("not a key")
    with pytest.raises(DataError, match=r"a\.key is not a private key of"):
        read_site_key(tmp_path / "a.key")
    with pytest.raises(DataError, match=r"b\.pub is not a public key"):
        read_public_keys(tmp_path)
    with pytest.raises(ConfigError, match="the name of a site must be"):
        create_site_key(tmp_path, "../anna")
    with pytest.raises(ConfigError, match="a host must be"):
        create_server_credentials(tmp_path, ["https://here"])


@pytest.mark.parametrize("trusted", [True, False])
def test_forwarded_header_does_not_make_a_client_local(monkeypatch, trusted):
    """Also if the environment tells uvicorn to trust X-Forwarded-For."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message["type"])

    configs = []
    run = configs.append if trusted else lambda settings: run_uvicorn(lambda **all: configs.append(all), **settings)
    run({"app": LocalhostMiddleware(app), "interface": "asgi3", "lifespan": "off", "ws": "none"})
    config = uvicorn.Config(**configs[0])
    config.load()
    headers = [(b"x-forwarded-for", b"127.0.0.1")]
    scope = {"type": "http", "path": "/v1/control/start-run", "client": ("10.0.0.5", 1), "headers": headers}
    asyncio.run(config.loaded_app(scope, None, send))
    assert bool(reached) == trusted, "uvicorn trusts the header by default, so the test can fail"


@pytest.mark.parametrize(
    ("server", "passes"), [("10.0.0.5", True), ("10.0.0.6", False), ("fed.example.org", False), (None, False)]
)
def test_a_caller_with_the_address_of_the_server_is_on_its_machine(server, passes):
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message)

    address = (server, 8443) if server else None
    scope = {"type": "http", "path": "/v1/control/start-run", "client": ("10.0.0.5", 1), "server": address}
    asyncio.run(LocalhostMiddleware(app)(scope, None, send))
    assert bool(reached) == passes


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
def test_middleware_allows_only_public_paths_over_the_network(path, client, passes):
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": (client, 1) if client else None}
    asyncio.run(LocalhostMiddleware(app)(scope, None, send))
    assert bool(reached) == passes
    assert (sent[0]["status"] if sent else None) == (None if passes else 404)
