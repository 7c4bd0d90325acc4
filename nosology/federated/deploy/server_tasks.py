"""The executor of the server: starts a process for every run, whose token is in a file that only its owner can read.

Flower's own executor passes the token of a run on the command line of the process, which every user of the machine can
read. The token allows to act as the server of the run.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from nosology.federated.deploy.credentials import read_certificate, write_private
from nosology.federated.deploy.federation_status import ENVIRONMENT
from nosology.federated.deploy.flower_process import environment, stop_process
from nosology.federated.deploy.flower_shims import TaskQueue, TaskType, server_app_command


@dataclass
class ServerAppExecutor:
    """Starts the ServerApps of a SuperLink."""

    address: str  # of the SuperLink, on this machine
    root: Path  # certificate of the authority
    secret: bytes  # the SuperLink gives tasks only to those who know it
    folder: Path  # for token files; only its owner may read it
    home: Path  # of Flower
    log: Path
    _apps: dict[Path, subprocess.Popen] = field(default_factory=dict)  # by token file

    def __post_init__(self) -> None:
        self._queue = TaskQueue(self.address, self.secret, read_certificate(self.root))
        self._count = 0

    def run_next(self) -> bool:
        """Whether there was a run to start. Removes the token files of runs that have ended."""
        for token_file in [path for path, app in self._apps.items() if app.poll() is not None]:
            del self._apps[token_file]
            token_file.unlink(missing_ok=True)
        if not (token := self._queue.acquire(TaskType.SERVER_APP)):
            return False
        self._count += 1
        token_file = self.folder / f"token-{self._count}"
        write_private(token_file, token.encode())
        command = server_app_command(self.address, self.root.resolve(), token_file, os.getpid())
        variables = environment(self.home) | {ENVIRONMENT: str(self.log.parent.resolve())}
        with self.log.open("ab") as file:
            self._apps[token_file] = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        return True

    def close(self) -> None:
        """Stops all ServerApps."""
        for app in self._apps.values():
            stop_process(app)
        self._queue.close()
