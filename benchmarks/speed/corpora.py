"""Measures `corpus prepare` on synthetic MIMIC-IV discharge summaries: notes per second and peak memory.

python benchmarks/speed/corpora.py --notes 300000
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULT = Path(__file__).parents[1] / "results" / "speed_corpora.json"
CODES = [f"{letter}{number:02d}{last}" for letter in "EIJKN" for number in range(10, 90) for last in "0129"]


def write_dataset(folder: Path, notes: int, words: int) -> int:
    """Writes discharge, diagnoses_icd and procedures_icd as gzipped CSV; returns the characters of all notes."""
    rng = np.random.default_rng(0)
    vocabulary = np.array(["".join(rng.choice(list("abcdefghij"), size=n)) for n in rng.integers(2, 10, size=4000)])
    lines = [" ".join(words) for words in rng.choice(vocabulary, size=(50_000, 10))]
    paragraphs = ["\n".join(lines[start : start + 10]) for start in range(0, len(lines), 10)]
    characters = 0
    with (
        gzip.open(folder / "discharge.csv.gz", "wt", compresslevel=1, newline="", encoding="utf-8") as discharge,
        gzip.open(folder / "diagnoses_icd.csv.gz", "wt", compresslevel=1, newline="", encoding="utf-8") as diagnoses,
        gzip.open(folder / "procedures_icd.csv.gz", "wt", compresslevel=1, newline="", encoding="utf-8") as procedures,
    ):
        rows = csv.writer(discharge)
        rows.writerow(["note_id", "subject_id", "hadm_id", "note_type", "note_seq", "charttime", "storetime", "text"])
        codes = csv.writer(diagnoses)
        codes.writerow(["subject_id", "hadm_id", "seq_num", "icd_code", "icd_version"])
        csv.writer(procedures).writerow(["subject_id", "hadm_id", "seq_num", "chartdate", "icd_code", "icd_version"])
        for number in range(notes):
            text = "\n\n".join(paragraphs[index] for index in rng.integers(len(paragraphs), size=words // 100))
            characters += len(text)
            patient, admission = 10_000_000 + number // 2, 20_000_000 + number
            when = "2150-01-01 00:00:00"
            rows.writerow([f"{patient}-DS-{number}", patient, admission, "DS", number, when, when, text])
            for rank, index in enumerate(rng.zipf(1.3, size=15) % len(CODES), start=1):
                codes.writerow([patient, admission, rank, CODES[index], 10])
    return characters


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--notes", type=int, default=300_000)
    arguments.add_argument("--words", type=int, default=1_500)
    arguments.add_argument("--recipe", help="a corpus recipe; one with min_count reads the notes twice")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        characters = write_dataset(folder / "data", options.notes, options.words)
        command = [sys.executable, "-c", "from nosology.cli import main; main()", "corpus", "prepare", "mimic4"]
        command += [str(folder / "data"), "--out", str(folder / "corpus")]
        command += ["--recipe", options.recipe] if options.recipe else []
        start = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    result = {
        "notes": options.notes,
        "words_per_note": options.words,
        "gigabytes_of_text": round(characters / 1e9, 2),
        "recipe": options.recipe,
        "wall_seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "notes_per_cpu_second": round(options.notes / cpu),
        "peak_memory_gb": round(used.ru_maxrss / 2**20, 2),  # ru_maxrss is in kilobytes on Linux
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for key, value in result.items():
        print(f"{key:20} {value}")


if __name__ == "__main__":
    main()
