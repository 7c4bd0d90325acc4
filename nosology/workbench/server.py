"""The server process: one-time password, TLS, and an end that finishes what is in flight."""

from __future__ import annotations

import logging
import sys

from nosology.core import ConfigError
from nosology.workbench.accounts import first_admin
from nosology.workbench.services import Services
from nosology.workbench.settings import Settings
from nosology.workbench.store.engine import open_store

GRACE = 30  # seconds that requests in flight may still take at the end


def serve(settings: Settings) -> None:
    """Serves until it is told to stop (Ctrl-C, SIGTERM)."""
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigError("the workbench needs its own packages: pip install nosology[workbench]") from error
    from nosology.workbench.app import create_app

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    engine = open_store(settings.store)
    password = first_admin(engine)
    engine.dispose()
    if password is not None:
        print(
            f"First start: sign in as admin with the one-time password {password} (it is shown only now).", flush=True
        )
    services = Services.start(settings)
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
        proxy_headers=settings.behind_proxy,
        forwarded_allow_ips="*" if settings.behind_proxy else None,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
