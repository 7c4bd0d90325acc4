"""A process with all its descendants, and whether they end."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for member in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{member}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end_of(processes: list[int], seconds: float = 20) -> list[int]:
    """The processes that still run after some seconds, without those that ended before; they are killed."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in processes if is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left
