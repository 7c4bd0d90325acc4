"""Speed of `nosology gaps`: python benchmarks/speed/gaps.py [--encounters 400] [--workers 2] [--profile]

The discharge notes of audit.py, in the loop of the command: each encounter is coded, its claim is built, its gaps are
found with the groups of all their answers, and the record is stored; at the end the report is written. CPU
milliseconds of all processes and milliseconds by the clock per encounter, and what 10,000 encounters take at this
rate. On a busy machine only the CPU time says something. --profile: the functions that take most of the time of one
process instead.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from audit import WARM_UP, cpu_seconds, parse_arguments, run, simulated_encounters

from nosology.claims.gap_records import GapFinder, PlacedNote
from nosology.claims.gap_report import GapFolder
from nosology.core.forked_processes import forked_map
from nosology.serving.coder import Coder

RESULTS = Path(__file__).parents[1] / "results" / "speed_gaps.json"


def main() -> None:
    arguments = parse_arguments(__doc__)
    encounters = [PlacedNote(item.note, item.where) for item in simulated_encounters(arguments.encounters + WARM_UP)]
    coder = Coder.for_claims("day-one", systems=["icd10cm"])
    finder = GapFinder(lambda note: next(coder.code_all([note])), chooser=coder.model.siblings)
    run(finder, encounters, partial(measured, finder), arguments, RESULTS)


def measured(finder: GapFinder, encounters: Sequence[PlacedNote], workers: int) -> dict[str, float]:
    """Times of a run, report included."""
    with tempfile.TemporaryDirectory() as name:
        folder = GapFolder(Path(name) / "report", {})
        cpu, started = cpu_seconds(), time.perf_counter()
        for record in forked_map(finder, encounters, workers):
            folder.append(record)
        summary = folder.finish({"repeated_ids": 0})
        cpu, clock = cpu_seconds() - cpu, time.perf_counter() - started
        answers = sum(len(gap["answers"]) for record in folder.records() for gap in record["gaps"])
    count = len(encounters)
    return {
        "encounters": count,
        "workers": workers,
        "words_per_note": round(sum(len(item.note.text.split()) for item in encounters) / count),
        "gaps_per_encounter": round(summary["gaps"] / count, 1),
        "answers_per_encounter": round(answers / count, 1),
        "cpu_ms": round(1000 * cpu / count, 1),
        "clock_ms": round(1000 * clock / count, 1),
        "cpu_seconds_10000": round(10_000 * cpu / count),
        "cpu_minutes_10000": round(10_000 * cpu / count / workers / 60, 1),
    }


if __name__ == "__main__":
    main()
