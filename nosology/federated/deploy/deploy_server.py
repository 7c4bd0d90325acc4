"""The server's side of a deployed federation: a SuperLink over TLS that knows the sites' keys, and its runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nosology.core import FederationError
from nosology.federated.deploy.control import Control
from nosology.federated.deploy.credentials import ServerPapers, key_fingerprint
from nosology.federated.deploy.processes import Child, wait_until

START = 60.0  # seconds for the SuperLink to answer

Say = Callable[[str], None]


@dataclass
class Server:
    """A SuperLink in a process of its own; what it knows is in the state folder and outlives it."""

    papers: ServerPapers
    state: Path
    port: int
    listen: str = "0.0.0.0"

    def __enter__(self) -> Server:
        self.state.mkdir(parents=True, exist_ok=True)
        papers = self.papers.check()
        arguments = ["--ssl-ca-certfile", str(papers.root.resolve()), "--ssl-keyfile", str(papers.key.resolve())]
        arguments += ["--ssl-certfile", str(papers.certificate.resolve()), "--enable-supernode-auth"]
        arguments += ["--host", self.listen, "--port", str(self.port), "--isolation", "subprocess"]
        arguments += ["--database", str((self.state / "superlink.db").resolve())]
        arguments += ["--disable-runtime-dependency-installation"]
        home, log = self.state.resolve() / "flower", self.state / "superlink.log"
        self._child = Child("superlink", arguments, home=home, log=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    @property
    def ended(self) -> bool:
        """Whether the SuperLink has ended by itself."""
        return self._child.ended

    @property
    def here(self) -> str:
        """The address by which this machine reaches it."""
        return f"127.0.0.1:{self.port}"

    def admit(self, sites: dict[str, bytes], say: Say) -> None:
        """Lets in the sites with these public keys (PEM, by name) and no others, once the SuperLink answers."""
        with Control(self.here, self.papers.root) as control:
            wait_until(lambda: control.answers or self.ended, START)
            if self.ended or not control.answers:
                raise FederationError(
                    f"the SuperLink did not start on port {self.port}; its log, {self._child.log}, ends with:"
                    f" {self._child.last_words()}"
                )
            if stopped := control.stop_unfinished():
                say(f"{stopped} run(s) were under way when the server ended: start them again, and they go on")
            control.register(sites)
        for site, key in sites.items():
            say(f"site {site}: key {key_fingerprint(key)}")


ANSI = re.compile(r"\x1b\[[0-9;]*m")
FLOWERS = ("Start `flwr-serverapp` process", "Successfully installed ")  # lines that say nothing to a user


def follow(server: str, root: Path, config: dict[str, str], say: Say) -> None:
    """Runs the federation on a server, and returns when it has completed; an interruption stops the run there.

    config: what the ServerApp finds as its run's config. For Flower a run that failed is finished too, so how it ended
    is asked for.
    """
    with Control(server, root) as control:
        run = control.start(config | {"sites": json.dumps(control.names())})
        say(f"run {run} on {server}")
        try:
            for text in _told(control.logs(run)):
                say(text)
            wait_until(lambda: control.status(run).finished, 30.0, pause=0.5)
        except KeyboardInterrupt:
            control.stop(run)
            raise
        status = control.status(run)
        if not status.completed:
            end = status.end or status.status
            raise FederationError(f"run {run} did not complete ({end}): {_reason(status.details)}")


def _told(lines: Iterable[str]) -> Iterator[str]:
    """What the server app says, without Flower's colours, columns and traces."""
    for line in lines:
        text = re.sub(r"^\s*(INFO|WARNING|ERROR|DEBUG)\s*:\s*", "", ANSI.sub("", line)).rstrip()
        if text == "ServerApp raised an exception":  # what follows is a trace; the run's status has its sentence
            break
        if text and not text.startswith(FLOWERS):
            yield text


def _reason(details: str) -> str:
    """Why a run failed, in one line."""
    return " ".join(details.removeprefix("ServerApp failed with exception: ").split()) or "no reason was given"
