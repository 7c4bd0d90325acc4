"""Tests of a server certificate that ends before a run does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

import httpx
import pytest
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from nosology.core import FederationError
from nosology.core.files import exclusive_output
from nosology.evaluation.decision import UNTUNED
from nosology.federated.deploy.certificate_expiry import expiry_warning, finished_bundle, server_certificate_end
from nosology.federated.deploy.credentials import create_server_credentials
from nosology.federated.deploy.server_app import DeployedGrid
from nosology.federated.deploy.superlink import ControlClient
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.simulation import simulation_grid
from nosology.models.bundle import MANIFEST
from tests.federated.small_hospitals import recipe, sites


@contextlib.contextmanager
def tls_server(credentials):
    """The port of a TLS server that closes every connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials.certificate, credentials.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_end_of_a_certificate_is_read_from_its_server(tmp_path):
    credentials = create_server_credentials(tmp_path, ["localhost"], days=10)
    with tls_server(credentials) as port:
        end = server_certificate_end(f"127.0.0.1:{port}", credentials.root)
    assert end == credentials.end and end == pytest.approx(time.time() + 10 * 86400, abs=60)
    assert server_certificate_end(f"127.0.0.1:{port}", credentials.root) == 0  # not reachable any more


def test_warning_before_a_run_that_may_last_longer():
    end = time.time() + 1000
    assert expiry_warning(end, 500, "too early") == "" == expiry_warning(0, 500, "too early")
    assert "expires on 20" in (warning := expiry_warning(end, 1500, "and 5 rounds may take longer"))
    assert "UTC, and 5 rounds may take longer: renew it first" in warning


def test_no_site_is_online_after_the_end(tmp_path):
    credentials = create_server_credentials(tmp_path, ["localhost"], days=-0.01)
    with tls_server(credentials) as port:
        grid = HttpGrid(f"127.0.0.1:{port}", False, credentials.root.read_bytes(), token="t")
        grid.set_run(Run.create_empty(1))
        expired = DeployedGrid(grid, {}, certificate_end=credentials.end)
        assert expired.has_expired() and expired.get_node_ids() == [] == expired.pull_messages(["1"])
        with pytest.raises(httpx.ConnectError, match="certificate has expired"):  # another reason is not ignored
            DeployedGrid(grid, {}, certificate_end=time.time() + 100).get_node_ids()
        with ControlClient(f"127.0.0.1:{port}", credentials.root) as client:
            assert not client.is_up
            with pytest.raises(FederationError, match="did not list its sites: its certificate has expired: renew it"):
                client.names()


def run_cut_off_after(rounds: int, out) -> list[str]:
    """The lines of a run of two rounds whose sites are cut off after some rounds."""
    grid, lines = simulation_grid(sites(3)), []

    def report(line):
        lines.append(line)
        if f"round {rounds}/2" in line:
            grid.has_expired, grid.get_node_ids = lambda: True, lambda: []

    FlowerFederation(grid, recipe(rounds=2, timeout=0.2, evaluate_every=5), report).run(out)
    return lines


def test_completed_rounds_become_a_bundle(tmp_path):
    started = time.time()
    assert finished_bundle(tmp_path / "bundle", started, end=1.0, seconds=0) is None
    grid = simulation_grid(sites(3))
    app, lines = grid.app, []

    def cut_off_evaluation(message, context):  # after the training of the last round
        if message.metadata.message_type == "evaluate":
            grid.has_expired = lambda: True
            raise ConnectionError
        return app(message, context)

    grid.app = cut_off_evaluation
    out = tmp_path / "bundle"
    FlowerFederation(grid, recipe(rounds=2, evaluate_every=5), lines.append).run(out)
    assert "caution: the certificate of the server has expired: the bundle is not tuned on dev notes" in lines
    bundle = finished_bundle(out, started, end=1.0, seconds=0)
    assert bundle is not None and bundle.decision.threshold == UNTUNED
    assert bundle.provenance["federation"]["rounds"] == 2 and "test" not in bundle.provenance["found"]
    assert finished_bundle(out, started, end=time.time() + 100, seconds=0) is None  # it has not expired
    assert finished_bundle(out, (out / MANIFEST).stat().st_mtime + 1, end=1.0, seconds=0) is None  # of an earlier run


def test_run_that_has_ended_is_not_waited_for(tmp_path):
    before = time.monotonic()
    assert finished_bundle(tmp_path / "bundle", 0, end=1.0, seconds=30) is None and time.monotonic() - before < 10
    with exclusive_output(tmp_path / "bundle"):  # a run is at work
        assert finished_bundle(tmp_path / "bundle", 0, end=1.0, seconds=1) is None
    assert 1 <= time.monotonic() - before < 20


def test_scores_of_the_last_round_are_kept(tmp_path):
    run_cut_off_after(2, tmp_path / "bundle")
    bundle = finished_bundle(tmp_path / "bundle", 0, end=1.0, seconds=0)
    assert bundle is not None and bundle.provenance["found"]["dev_codes"] and bundle.decision.threshold != UNTUNED


def test_unfinished_rounds_are_saved(tmp_path):
    with pytest.raises(FederationError, match="round 2 failed 1 times and the run stops; 1 rounds are saved"):
        run_cut_off_after(1, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
