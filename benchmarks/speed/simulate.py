"""Notes per second of the simulated hospital with one process and with several.

    python benchmarks/speed/simulate.py --patients 8000 --workers 1 2

Counts discharge summaries only; the time includes their radiology reports, all tables and compression, and not the
start (loading the code tables and starting processes), which is shown separately. Numbers of processes take turns,
`--repeats` times, and the fastest turn counts. CPU seconds are those of all processes, and those of the first one,
which several processes do not divide; if other work shares the machine, the ratio by the clock says little.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from nosology.core.files import write_json
from nosology.core.forked_processes import freeze_objects
from nosology.corpora.simulate import simulate
from nosology.corpora.simulate.hospital import Hospital

RESULT = Path(__file__).parents[1] / "results" / "speed_simulate.json"


def main() -> None:
    """Prints the rates and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=8000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    started = time.process_time()
    Hospital().patient(0, 0)
    start = time.process_time() - started
    freeze_objects()
    turns = [(workers, measured(arguments.patients, workers)) for workers in arguments.workers * arguments.repeats]
    fastest = [min((turn for workers, turn in turns if workers == n), key=_seconds) for n in arguments.workers]
    table = {
        "start_cpu_seconds": round(start, 2),
        "patients": arguments.patients,
        "processes": [{"workers": n} | row for n, row in zip(arguments.workers, fastest)],
        "ratio": round(fastest[0]["seconds"] / fastest[-1]["seconds"], 2),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    for name, value in table.items():
        print(f"{name:24} {value}")
    write_json(arguments.out, table)


def _seconds(row: dict[str, Any]) -> float:
    return row["seconds"]


def measured(patients: int, workers: int) -> dict[str, Any]:
    """Notes, seconds by the clock and CPU seconds of one simulation."""
    with tempfile.TemporaryDirectory() as folder:
        first, cpu, started = time.process_time(), cpu_seconds(), time.perf_counter()
        rows = simulate(patients, 0, Path(folder) / "hospital", workers=workers)["rows"]
        cpu, seconds = cpu_seconds() - cpu, time.perf_counter() - started
        first = time.process_time() - first
    notes, reports = rows["note/discharge"], rows["note/radiology"]
    rates: dict[str, Any] = {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "first_cpu_seconds": round(first, 2),
    }
    rates["summaries_per_second"] = round(notes / seconds)
    return {"discharge_summaries": notes, "radiology_reports": reports} | rates


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main()
