"""The options of `nosology serve`, checked."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from nosology.core import ConfigError
from nosology.workbench.accounts import ROLES


@dataclass(frozen=True)
class OidcSettings:
    """An OpenID Connect provider; its users get `role` at their first visit."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    role: str = "coder"
    hosts: tuple[str, ...] = ()  # of the provider's endpoints, besides the issuer's

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"--oidc-role must be one of {', '.join(ROLES)}; got {self.role}")
        url = urlsplit(self.issuer)
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
            raise ConfigError(f"--oidc-issuer must be an https address; got {self.issuer}")


@dataclass(frozen=True)
class ServerSettings:
    """The options of `nosology serve`."""

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
    public_url: str | None = None
    drg_weights: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key must be given together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise ConfigError(f"no such file: {path}")
        if not 1 <= self.workers <= 64:
            raise ConfigError(f"--workers must lie in 1 to 64; got {self.workers}")
        if not is_loopback(self.host) and not self.secure:
            raise ConfigError(
                f"--host must be a loopback address without TLS, or notes would travel unencrypted; got {self.host}"
                " (give --tls-cert and --tls-key, or --behind-proxy if a proxy terminates TLS)"
            )

        if self.public_url is not None:
            url = urlsplit(self.public_url)
            if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query:
                raise ConfigError(f"--public-url must be an address such as https://name; got {self.public_url}")
            if self.secure and url.scheme != "https":
                raise ConfigError(f"--public-url must be an https address with TLS; got {self.public_url}")
        elif self.oidc is not None and (self.behind_proxy or not is_loopback(self.host)):
            raise ConfigError("--public-url must be given with --oidc-issuer: people return to it after they signed in")

    @property
    def address(self) -> str:
        """The address at which browsers reach the server; never what a request says."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        """The names of the server that requests may have; empty: any."""
        names = {urlsplit(self.public_url).hostname or ""} if self.public_url is not None else set()
        if is_loopback(self.host) and not self.behind_proxy:
            names |= {"localhost", "127.0.0.1", "::1", self.host}
        return frozenset(names)

    @property
    def secure(self) -> bool:
        """Whether browsers reach the server by HTTPS."""
        return self.tls_cert is not None or self.behind_proxy


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
