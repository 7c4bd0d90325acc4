"""Speed of the lexicon: python benchmarks/speed/day_one.py [--notes 300]

Start: a fresh process until the first note is coded, with the terms already in the cache; `build` is what the first use
of a release costs, once. Then notes per second on one core, for discharge notes of the simulated hospital, with codes
and evidence. Then batches as `nosology code --json` codes them, with 1 and with --workers processes, for whole notes
and for their first 150 words: notes per second by the clock, CPU milliseconds per note of all processes, and the memory
that a worker does not share. On a busy machine only the CPU time says something.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nosology.codes import table
from nosology.codes.terms import terms
from nosology.core.forked_processes import forked_map
from nosology.corpora.prepare import prepare
from nosology.corpora.simulate import simulate
from nosology.models.lexicon.lexicon_model import day_one
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.serving.coder import Coder

RESULTS = Path(__file__).parents[1] / "results" / "speed_day_one.json"
SHORT = 150  # words
START = """
from time import perf_counter, process_time
began = perf_counter(), process_time()
from nosology import load
coder = load("day-one")
print(perf_counter() - began[0], process_time() - began[1])
began = perf_counter(), process_time()
coder.code("Admitted with COPD exacerbation and pneumonia.")
print(perf_counter() - began[0], process_time() - began[1])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    coder = Coder(day_one())  # fills the cache
    started = time.process_time()
    newest = table("icd10cm")
    Terms.build(terms(newest), newest.release)
    build = time.process_time() - started
    texts = simulated_texts(arguments.notes)
    results = {
        "build_s": build,
        **_started(),
        "notes": len(texts),
        "words_per_note": sum(len(text.split()) for text in texts) / len(texts),
        "notes_per_second": _rate(coder, texts),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one used but for batches",
    }
    short = [" ".join(text.split(" ")[:SHORT]) for text in texts]
    for name, notes in (("long", texts), ("short", short)):
        for workers in (1, arguments.workers):
            for key, value in batch(coder, notes, workers).items():
                results[f"batch_{name}_{workers}_workers_{key}"] = value
    for key, value in results.items():
        print(f"{key:44}{value:>12.2f}" if isinstance(value, float) else f"{key:44}{value:>12}")
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


def _started() -> dict[str, float]:
    """Seconds until the coder is there and until its first note is coded, by the clock and of the processor: the best
    of three processes, since others may be using the machine."""
    runs = [subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True) for _ in range(3)]
    start, start_cpu, first, first_cpu = min(tuple(map(float, run.stdout.split())) for run in runs)
    return {"start_s": start, "start_cpu_s": start_cpu, "first_note_s": first, "first_note_cpu_s": first_cpu}


def simulated_texts(n: int) -> list[str]:
    """Discharge notes of the simulated hospital."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulate(n, 3, folder / "hospital", layout="mimic4", years=(2016, 2019))
        corpus = prepare("mimic4", [folder / "hospital"], folder / "corpus")
        return [note.text for note in corpus.notes()][:n]


def _rate(coder: Coder, texts: Sequence[str]) -> float:
    """Notes per second of CPU time, suggestions and evidence included."""
    started = time.process_time()
    for _ in coder.code_all(texts):
        pass
    return len(texts) / (time.process_time() - started)


def batch(coder: Coder, texts: Sequence[str], workers: int) -> dict[str, float]:
    """The speed of coding texts with some workers, and the memory of a worker that it does not share, in MB."""

    def coded(item: tuple[int, str]) -> float:
        json.dumps([suggestion.to_json() for suggestion in coder.code(item[1])])
        return _private_mb() if item[0] >= len(texts) - workers else 0.0

    gc.collect()
    gc.freeze()  # as the command does: otherwise garbage collection copies the shared pages
    cpu, started = _cpu_seconds(), time.perf_counter()
    memory = max(forked_map(coded, enumerate(texts), workers))
    seconds = time.perf_counter() - started
    return {
        "notes_per_second": len(texts) / seconds,
        "cpu_ms_per_note": 1000 * (_cpu_seconds() - cpu) / len(texts),
        "private_mb": memory if workers > 1 else 0.0,
    }


def _cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _private_mb() -> float:
    """The memory that this process shares with no other (Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    main()
