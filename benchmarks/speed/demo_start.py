"""Seconds until the demo answers: the first start, with an empty cache folder, and the second one.

    python benchmarks/speed/demo_start.py

CPU seconds are those of the server and its worker until it is ready; wall-clock depends on what else the machine does.
The first start builds two indexes of the code tables, which every later start of any command reads from the cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nosology.core.files import write_json
from tests.workbench.processes import Server

RESULTS = Path(__file__).resolve().parents[1] / "results"


def cpu_seconds(group: int) -> float:
    """CPU seconds of all processes of a group, and of the children for which they have waited."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, name: str) -> dict[str, float | str]:
    """Wall-clock and CPU seconds of a start with a new store."""
    started = time.monotonic()
    server = Server("--demo", str(folder / f"{name}.db"), log=folder / "log").start(600)
    wall, cpu = time.monotonic() - started, cpu_seconds(server.process.pid)
    server.stop()
    return {"start": name, "wall": round(wall, 1), "cpu": round(cpu, 1)}


def main() -> None:
    """Measures both starts, prints them and writes a file."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NOSOLOGY_CACHE"] = str(Path(folder) / "cache")
        rows = []
        for name in ("first", "second"):
            rows.append(measure(Path(folder), name))
            print(f"{name} start: {rows[-1]['cpu']} s CPU, {rows[-1]['wall']} s wall-clock", flush=True)
    machine = {"cores": os.cpu_count(), "load_average": os.getloadavg(), "python": platform.python_version()}
    write_json(RESULTS / "speed_demo_start.json", {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
