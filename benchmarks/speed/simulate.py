"""Notes per second on one core for the simulated hospital.

    python benchmarks/speed/simulate.py --patients 3000

Counts discharge summaries only; the time includes their radiology reports, all tables and compression, and not the
start (loading the code tables), which is shown separately.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

from nosology.core.files import write_json
from nosology.corpora.simulate.hospital import Hospital, Mimic4Writer

RESULT = Path(__file__).parents[1] / "results" / "speed_simulate.json"


def main() -> None:
    """Prints the rate and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    started = time.process_time()
    hospital = Hospital()
    hospital.patient(0, 0)
    start = time.process_time() - started
    with tempfile.TemporaryDirectory() as folder, Mimic4Writer(Path(folder)) as writer:
        started = time.process_time()
        characters = 0
        for index in range(arguments.patients):
            patient, records = hospital.patient(0, index)
            writer.write_patient(patient, records, 0)
            characters += sum(len(record.text) for record in records if record.text)
        seconds = time.process_time() - started
        notes, reports = writer.counts["note/discharge"], writer.counts["note/radiology"]
    table = {
        "start_cpu_seconds": round(start, 2),
        "discharge_summaries": notes,
        "radiology_reports": reports,
        "characters_per_summary": round(characters / notes),
        "cpu_seconds": round(seconds, 2),
        "summaries_per_second": round(notes / seconds),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    for name, value in table.items():
        print(f"{name:24} {value}")
    write_json(arguments.out, table)


if __name__ == "__main__":
    main()
