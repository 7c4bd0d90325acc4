"""Speed of audits: python benchmarks/speed/audit.py [--encounters 400] [--workers 2] [--profile]

Discharge notes of the simulated hospital, as in day_one.py, with their own codes as bills, in the loop of `nosology
audit`: each encounter is coded, its claim is built, bill and claim are compared with effects on DRG and HCC, and the
record is stored; at the end the report is written. CPU milliseconds of all processes and milliseconds by the clock per
encounter, and the minutes that 10,000 encounters take. On a busy machine only the CPU time says something:
`cpu_minutes_10000` is the CPU time divided by the workers. --profile: the functions that take most of the time of one
process instead.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from nosology.audit.audit_folder import AuditFolder
from nosology.audit.auditor import Auditor, BilledEncounter, load_auditor
from nosology.audit.billed_codes import Bill
from nosology.audit.finding import BilledCode
from nosology.core import Note
from nosology.corpora.prepare import prepare
from nosology.corpora.simulate import simulate

T = TypeVar("T")

RESULTS = Path(__file__).parents[1] / "results" / "speed_audit.json"
WARM_UP = 16  # encounters before the measurement
STATED = {"setting": "inpatient", "sex": "F", "age": 60, "date": "2025-11-01"}  # all that the groupers need


def main() -> None:
    arguments = parse_arguments(__doc__)
    encounters = simulated_encounters(arguments.encounters + WARM_UP)
    auditor = load_auditor("day-one", "claim", 0.5, {})
    run(auditor, encounters, partial(measured, auditor), arguments, RESULTS)


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The options of a benchmark that works on encounters one by one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encounters", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


def run(
    function: Callable[[T], object],
    encounters: Sequence[T],
    measure: Callable[[Sequence[T], int], dict[str, float]],
    arguments: argparse.Namespace,
    results: Path,
) -> None:
    """Prints the profile of a function of encounters, or prints and stores what `measure` returns.

    The first encounters load what is loaded once; `measure` gets the others and the number of workers.
    """
    for item in encounters[:WARM_UP]:
        function(item)
    gc.collect()
    gc.freeze()  # as the commands do
    if arguments.profile:
        with cProfile.Profile() as profile:
            for item in encounters[WARM_UP:]:
                function(item)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    found = measure(encounters[WARM_UP:], arguments.workers)
    print(json.dumps(found))
    results.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def simulated_encounters(n: int) -> list[BilledEncounter]:
    """Discharge notes of the simulated hospital with their ICD-10-CM codes as bills."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulate(2 * n, 3, folder / "hospital", layout="mimic4", years=(2016, 2019))
        corpus = prepare("mimic4", [folder / "hospital"], folder / "corpus")
        notes = [note for note in corpus.notes() if any(code.system == "icd10cm" for code in note.codes)][:n]
    return [
        BilledEncounter(Note(note.id, note.text, extra=STATED), Bill(_billed(note)), f"note {number}")
        for number, note in enumerate(notes, 1)
    ]


def _billed(note: Note) -> tuple[BilledCode, ...]:
    return tuple(BilledCode(code, "Y") for code in note.codes if code.system == "icd10cm")


def measured(auditor: Auditor, encounters: Sequence[BilledEncounter], workers: int) -> dict[str, float]:
    """Times of an audit, report included."""
    with tempfile.TemporaryDirectory() as name:
        folder = AuditFolder(Path(name) / "report", {})
        cpu, started = cpu_seconds(), time.perf_counter()
        for record in auditor.audit_all(encounters, workers):
            folder.append(record)
        summary = folder.finish({})
        cpu, clock = cpu_seconds() - cpu, time.perf_counter() - started
    count = len(encounters)
    return {
        "encounters": count,
        "workers": workers,
        "words_per_note": round(sum(len(item.note.text.split()) for item in encounters) / count),
        "codes_per_bill": round(summary["codes"] / count, 1),
        "findings_per_encounter": round(sum(summary["kinds"].values()) / count, 1),
        "cpu_ms": round(1000 * cpu / count, 1),
        "clock_ms": round(1000 * clock / count, 1),
        "cpu_minutes_10000": round(10_000 * cpu / count / workers / 60, 1),
        "clock_minutes_10000": round(10_000 * clock / count / 60, 1),
    }


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main()
