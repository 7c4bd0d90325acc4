"""ASGI middleware of the SuperLink: over the network only the API of the sites is reachable.

That API requires a node key for every call. The APIs that start runs, register keys and distribute tasks answer only
this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

PUBLIC_PATHS = ("/v1/fleet/", "/health")  # the API of the sites


class LocalhostMiddleware:
    """ASGI middleware: requests over the network reach only `PUBLIC_PATHS`."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        """Passes a request on, or answers 404."""
        if scope["type"] == "lifespan" or scope.get("path", "").startswith(PUBLIC_PATHS) or _is_local(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


def _is_local(scope: dict[str, Any]) -> bool:
    """Whether a request comes from this machine: from a loopback address, or from the address that it was sent to.

    A server that listens on one address only is reached by its own machine from that address.
    """
    client, server = scope.get("client"), scope.get("server")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
        return address.is_loopback or (server is not None and address == ipaddress.ip_address(server[0]))
    except ValueError:
        return False


def run_uvicorn(run: Callable[..., None], **settings: Any) -> None:
    """Runs uvicorn without an access log (several requests per second) and without proxy headers.

    A header must not change the client address, which `LocalhostMiddleware` relies on.
    """
    run(**settings | {"access_log": False, "proxy_headers": False})
