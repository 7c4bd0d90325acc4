"""The server process: one-time password, TLS, and an end that finishes what is in flight."""

from __future__ import annotations

import logging
import socket
import sys

from nosology.core import ConfigError
from nosology.workbench.accounts import first_admin
from nosology.workbench.services import Services
from nosology.workbench.settings import ServerSettings

GRACE = 30  # seconds that requests in flight may still take at the end


def serve(settings: ServerSettings, *, new_admin: bool = False) -> None:
    """Serves until it is told to stop (Ctrl-C, SIGTERM); new_admin: gives the user admin a new one-time password."""
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigError("the workbench needs its own packages: pip install nosology[workbench]") from error
    from nosology.workbench.app import create_app

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    _check_port(settings.host, settings.port)
    services = Services.start(settings)
    password = first_admin(services.engine, again=new_admin)
    if password is not None:
        first = "New password" if new_admin else "First start"
        print(f"{first}: sign in as admin with the one-time password {password} (it is shown only now).", flush=True)
    scheme = "https" if settings.tls_cert is not None else "http"
    print(f"Workbench at {scheme}://{settings.host}:{settings.port}", flush=True)
    uvicorn.run(
        create_app(settings, services),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,  # the audit log says who read what; paths are nobody's business
        server_header=False,
        ws="none",
        proxy_headers=False,  # security.Door reads them
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def _check_port(host: str, port: int) -> None:
    """Raises ConfigError where nobody can listen: before a coder is loaded, which takes a while."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        why = error.strerror or "the address is not this machine's"
        raise ConfigError(f"--host and --port must be free to listen at; got {host}:{port} ({why})") from error
