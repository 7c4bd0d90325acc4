"""How a server is set up."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from nosology.core import ConfigError

ROLES = ("coder", "reviewer", "admin")


@dataclass(frozen=True)
class OidcSettings:
    """An OpenID Connect provider; people it names get `role` at their first visit."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    role: str = "coder"

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"--oidc-role must be one of {', '.join(ROLES)}; got {self.role}")
        where = urlsplit(self.issuer)
        if where.scheme != "https" and not (where.scheme == "http" and is_loopback(where.hostname or "")):
            raise ConfigError(f"--oidc-issuer must be an https address; got {self.issuer}")


@dataclass(frozen=True)
class ServerSettings:
    """What `nosology serve` was told."""

    bundle: Path
    store: str
    host: str = "127.0.0.1"
    port: int = 8400
    release: str | None = None
    workers: int = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    oidc: OidcSettings | None = None
    demo: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key must be given together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise ConfigError(f"no such file: {path}")
        if not 1 <= self.workers <= 64:
            raise ConfigError(f"--workers must lie in 1 to 64; got {self.workers}")
        if not is_loopback(self.host) and self.tls_cert is None and not self.behind_proxy:
            raise ConfigError(
                f"--host must be a loopback address without TLS, for notes would travel in the clear; got {self.host}"
                " (give --tls-cert and --tls-key, or --behind-proxy if a proxy terminates TLS)"
            )

    @property
    def secure(self) -> bool:
        """Whether browsers reach the server by HTTPS."""
        return self.tls_cert is not None or self.behind_proxy


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
