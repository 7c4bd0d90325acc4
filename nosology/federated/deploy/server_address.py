"""The address of a server, HOST:PORT, as sites and commands on the server's machine use it."""

from __future__ import annotations

import re

from nosology.core import ConfigError

_NAME = r"(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}\.?"  # also an IPv4 address
_ADDRESS = re.compile(rf"(?:{_NAME}|\[[0-9A-Fa-f:.]+\]):([0-9]{{1,5}})")


def check_address(address: str) -> str:
    """The address, if it is HOST:PORT; an IPv6 address is in brackets."""
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[1]) < 65536:
        raise ConfigError(f"the address of a server must be HOST:PORT; got {address!r}")
    return address


def local_address(listen: str, port: int) -> str:
    """The address at which programs on the server's machine reach a server that listens on an address."""
    host = "127.0.0.1" if listen in ("", "0.0.0.0", "::", "[::]") else listen
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
