"""Validation of server settings."""

import pytest

from nosology.core import ConfigError
from nosology.workbench.server_settings import OidcSettings, ServerSettings, is_loopback


def make(tmp_path, **changes):
    return ServerSettings(bundle=tmp_path, store="x.db", **changes)


def test_only_loopback_without_tls(tmp_path):
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert is_loopback(host) and not make(tmp_path, host=host).secure
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(ConfigError, match=rf"--host must be a loopback address without TLS.*got {host}"):
            make(tmp_path, host=host)
        assert make(tmp_path, host=host, behind_proxy=True).secure


def test_tls_needs_both_files(tmp_path):
    cert = tmp_path / "c.pem"
    cert.write_text("x")
    with pytest.raises(ConfigError, match="must be given together"):
        make(tmp_path, tls_cert=cert)
    with pytest.raises(ConfigError, match="no such file"):
        make(tmp_path, tls_cert=cert, tls_key=tmp_path / "k.pem")
    assert make(tmp_path, host="0.0.0.0", tls_cert=cert, tls_key=cert).secure


def test_oidc_settings_need_https_and_a_known_role():
    for issuer in ("http://idp.example.org", "idp.example.org", "ftp://x", ""):
        with pytest.raises(ConfigError, match="--oidc-issuer must be an https address"):
            OidcSettings(issuer, "us", "secret")
    with pytest.raises(ConfigError, match="--oidc-role must be one of coder, reviewer, admin, physician; got king"):
        OidcSettings("https://idp.example.org", "us", "secret", "king")
    assert OidcSettings("http://127.0.0.1:9", "us", "secret").role == "coder"
