"""The end of a server's certificate: a warning before a run that may last longer, and the result of one that did.

After the end no new connection is made; open connections stay. So a run may complete its rounds and then be cut off.
"""

from __future__ import annotations

import datetime
import socket
import ssl
import time
from pathlib import Path

from nosology.core import BundleError, OutputError
from nosology.core.files import exclusive_output
from nosology.federated.deploy.flower_process import wait_until
from nosology.models.bundle import MANIFEST, Bundle

SHORT_VALIDITY = 30 * 86400.0  # seconds: a server warns at its start if its certificate ends earlier
CONNECT_TIMEOUT = 5.0


def server_certificate_end(address: str, root: Path) -> float:
    """When the certificate of a server ends, in seconds since 1970; 0 if the server cannot be reached."""
    host, _, port = address.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=str(root))
        connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT)
        with connection, context.wrap_socket(connection, server_hostname=host.strip("[]")) as secured:
            return float(ssl.cert_time_to_seconds(str((secured.getpeercert() or {})["notAfter"])))
    except OSError:  # the command that follows says why
        return 0.0


def expiry_warning(end: float, seconds: float, what: str) -> str:
    """A sentence if the certificate ends before now + seconds, else empty. what: that may take so long."""
    if not end or time.time() + seconds < end:
        return ""
    moment = datetime.datetime.fromtimestamp(end, datetime.UTC)
    return (
        f"caution: the certificate of the server expires on {moment:%Y-%m-%d %H:%M} UTC, {what}: renew it first with"
        " `nosology federate keys --host` and restart the server"
    )


def finished_bundle(out: Path, started: float, end: float, seconds: float) -> Bundle | None:
    """The bundle of a run that lost its connection because the certificate has ended; None if there is none.

    started: of the run; an older bundle does not count. The run may still be at work, on this machine: while it locks
    the bundle folder, it is given some seconds to write the bundle.
    """

    def load() -> Bundle | None:
        try:
            return Bundle.load(out) if (out / MANIFEST).stat().st_mtime >= started else None
        except (BundleError, OSError):
            return None

    if not end or time.time() < end:
        return None
    wait_until(lambda: load() is not None or not _is_locked(out), seconds, pause=0.5)
    return load()


def _is_locked(out: Path) -> bool:
    """Whether a process writes the bundle folder."""
    try:
        with exclusive_output(out):
            return False
    except OutputError:
        return True
