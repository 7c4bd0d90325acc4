"""Seconds for code look-ups from the shell, with an empty and a filled cache, and calls per second from Python."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nosology.core.files import write_json

RESULT = Path(__file__).parents[1] / "results" / "speed_codes.json"
LIMITS = {"--help": 0.5, "codes show I10": 1.5}
COMMANDS = (
    "--help",
    "codes show I10",
    "codes search heart-failure",
    "codes tree I50",
    "codes map 428.0 --to icd10cm",
    "codes diff 2024 2026",
    "codes follow M54.5",
    "codes show 02HV33Z",
)


def seconds(command: str, cache: str) -> tuple[float, float]:
    """Wall and CPU time of one process."""
    words = [word.replace("heart-failure", "heart failure") for word in command.split()]
    program = str(Path(sys.executable).with_name("nosology"))
    started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([program, *words], check=True, capture_output=True, env=os.environ | {"NOSOLOGY_CACHE": cache})
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def commands(repeats: int) -> dict[str, dict[str, float]]:
    """For each command the wall and CPU seconds of the first run, and of the best of the later ones."""
    results = {}
    for command in COMMANDS:
        with tempfile.TemporaryDirectory() as cache:
            first = seconds(command, cache)
            later = min(seconds(command, cache) for _ in range(repeats))
        times = dict(zip(("first_s", "first_cpu_s", "later_s", "later_cpu_s"), (*first, *later)))
        results[command] = {name: round(value, 2) for name, value in times.items()}
    return results


def rate(call: Callable[[str], object], items: list[str], passes: int = 1) -> int:
    """Calls per second."""
    started = time.perf_counter()
    for _ in range(passes):
        for item in items:
            call(item)
    return int(passes * len(items) / (time.perf_counter() - started))


def calls() -> dict[str, int]:
    """Calls per second of the functions that other packages call most, over all billable ICD-10-CM codes."""
    from nosology.codes import describe, map_code, normalise, table
    from nosology.core import Code

    newest = table("icd10cm")
    codes = newest.codes(billable=True)
    bare = [code.replace(".", "").lower() for code in codes]
    return {
        "normalise, new spelling": rate(lambda code: normalise(code, "icd10cm"), bare),
        "normalise, seen before": rate(lambda code: normalise(code, "icd10cm"), bare[:10_000], 20),
        "describe": rate(lambda code: describe(Code("icd10cm", code)), codes),
        "table.get": rate(newest.get, codes),
        "table.ancestors": rate(newest.ancestors, codes),
        "map_code to icd9cm": rate(lambda code: map_code(Code("icd10cm", code), "icd9cm"), codes),
        "search": rate(newest.search, ["heart failure", "fracture of radius", "type 2 diabetes"]),
    }


def main() -> None:
    """Prints both tables and writes the result file; exits with 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    timed, rates = commands(repeats), calls()
    print(f"{'command':30} {'first s':>8} {'(cpu)':>6} {'later s':>8} {'(cpu)':>6} {'limit s':>8}")
    for command, row in timed.items():
        cells = f"{row['first_s']:8.2f} {row['first_cpu_s']:6.2f} {row['later_s']:8.2f} {row['later_cpu_s']:6.2f}"
        print(f"{command:30} {cells} {LIMITS.get(command, ''):>8}")
    print(f"\n{'call':34} {'per second':>12}")
    for name, value in rates.items():
        print(f"{name:34} {value:12,}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    write_json(RESULT, {"commands": timed, "calls_per_second": rates, "machine": machine})
    if any(timed[command]["later_s"] > limit for command, limit in LIMITS.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
