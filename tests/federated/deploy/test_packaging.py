"""Tests of the container file and the systemd units: what they start exists, they drop rights, they hold no secret."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nosology.cli import app

FOLDER = Path(__file__).parents[3] / "packaging"
HARDENING = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "ProtectProc": "invisible",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
    "User": "nosology",
}
SECRET = re.compile(r"(?i)PRIVATE KEY|password|token|secret=|api_key")


@pytest.mark.parametrize("side", ["server", "site"])
def test_unit_starts_a_folder_with_few_rights(side):
    path = FOLDER / f"nosology-federation-{side}.service"
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert {name: service[name] for name in HARDENING} == HARDENING
    program, *arguments = service["ExecStart"].split()
    assert program.endswith("/nosology") and arguments == ["federate", "start", f"/var/lib/{service['StateDirectory']}"]
    assert CliRunner().invoke(app, [*arguments[:2], "--help"]).exit_code == 0
    assert not SECRET.search(path.read_text())


def test_container_file_has_two_targets_without_root_and_secrets():
    text = (FOLDER / "Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    stages = [match[1] for line in lines if (match := re.fullmatch(r"FROM \S+ AS (\w+)", line))]
    assert stages == ["base", "server", "site"]
    assert "USER 10001" in lines and not any(line.startswith(("ARG", "ADD")) for line in lines)
    assert 'ENTRYPOINT ["nosology", "federate", "start", "/federation"]' in lines
    assert not SECRET.search(text)
