"""Start-up times: `import nosology`, `nosology --help`, and the first coded note.

    python benchmarks/speed/startup.py
    python benchmarks/speed/startup.py --tree 0.1=/path/to/another/checkout     # compares two versions in one run

Each command is a new process. Trees are measured in turns, so that other work on the machine affects them equally. The
table shows the smallest CPU time and the smallest wall-clock time of all repeats; caches are filled beforehand.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nosology.core import __version__
from nosology.core.files import write_json

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "speed_startup.json"
NOTE = ROOT / "examples" / "notes" / "pneumonia.txt"
TRAINING = (
    ("simulate", "--patients", "60", "--seed", "1", "--years", "2016-2019", "--layout", "mimic4", "--out", "hospital"),
    ("corpus", "prepare", "mimic4", "hospital", "--systems", "icd10cm", "--drop-uncoded", "--out", "notes"),
    ("corpus", "split", "notes", "--out", "corpus"),
    ("train", "linear", "--corpus", "corpus", "--out", "bundle"),
)
COMMANDS = {
    "import nosology": ("-c", "import nosology"),
    "import nosology.serving.coder": ("-c", "import nosology.serving.coder"),
    "nosology --help": ("-m", "nosology", "--help"),
    "nosology codes show I10": ("-m", "nosology", "codes", "show", "I10"),
    "nosology code day-one, one note": ("-m", "nosology", "code", "day-one", str(NOTE)),
    "nosology code BUNDLE (linear), one note": ("-m", "nosology", "code", "bundle", str(NOTE)),
}


def run(tree: Path, folder: Path, *arguments: str) -> tuple[float, float]:
    """CPU and wall-clock seconds of one Python process that imports nosology from this tree."""
    env = os.environ | {"PYTHONPATH": str(tree), "NOSOLOGY_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, env=env, check=True, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def measure(trees: dict[str, Path], repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    """For each command and tree the smallest CPU and wall-clock seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: Path(temporary) / name for name in trees}
        for name, tree in trees.items():
            folders[name].mkdir()
            for words in TRAINING:
                run(tree, folders[name], "-m", "nosology", *words)
        rows: dict[str, dict[str, dict[str, float]]] = {}
        for command, words in COMMANDS.items():
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
            for turn in range(repeats + 1):
                for name, tree in trees.items():
                    seconds = run(tree, folders[name], *words)
                    if turn:  # the first run fills caches
                        times[name].append(seconds)
            rows[command] = {
                name: {"cpu_s": round(min(c for c, _ in pairs), 3), "wall_s": round(min(w for _, w in pairs), 3)}
                for name, pairs in times.items()
            }
    return rows


def main() -> None:
    """Prints the table and writes it to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tree", action="append", default=[], help="NAME=PATH of another checkout to compare with")
    options = parser.parse_args()
    trees = {name: Path(path).resolve() for name, _, path in (value.partition("=") for value in options.tree)}
    trees[__version__] = ROOT
    rows = measure(trees, options.repeats)
    print(f"| CPU seconds (wall-clock) | {' | '.join(trees)} |")
    print("|---" * (len(trees) + 1) + "|")
    for command, row in rows.items():
        cells = (f"{row[name]['cpu_s']:.2f} ({row[name]['wall_s']:.2f})" for name in trees)
        print(f"| {command} | {' | '.join(cells)} |")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    write_json(RESULT, {"repeats": options.repeats, "machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
