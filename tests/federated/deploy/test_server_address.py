"""Tests of addresses of servers: what is no address is refused before anything connects to it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import ConfigError
from nosology.federated.deploy.server_address import check_address, local_address


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("0.0.0.0", "127.0.0.1:8"), ("::", "127.0.0.1:8"), ("10.1.2.3", "10.1.2.3:8"), ("fd00::1", "[fd00::1]:8")],
)
def test_local_address_of_a_server(listen, expected):
    assert local_address(listen, 8) == check_address(expected)


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "",
        ":8",
        "a:0",
        "a:65536",
        f"a:{'9' * 5000}",
        "a:\u00b2",
        "a..b:8",
        f"{'a' * 64}:8",
        "::1:8",
        "a/b:8",
    ],
)
def test_what_is_no_address_is_refused(tmp_path, address):
    with pytest.raises(ConfigError, match="the address of a server must be HOST:PORT; got"):
        check_address(address)
    words = ["federate", "run", "heads-mlp", "--root", str(tmp_path / "root.pem"), "--out", str(tmp_path / "b")]
    result = CliRunner().invoke(app, [*words, f"--server={address}"])
    assert isinstance(result.exception, ConfigError)
