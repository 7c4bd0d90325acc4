"""Tests of the simulated reports of benchmarks/quality/short_reports.py."""

import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

from nosology.codes import describe

_SIMULATOR = Path(__file__).parents[2] / "benchmarks/quality/report_simulator.py"
short_reports = runpy.run_path(str(_SIMULATOR))["short_reports"]
_PRINT_HASH = """
import hashlib, runpy, sys
reports = runpy.run_path(sys.argv[1])["short_reports"](3000)
lines = (f"{report.text} {[str(code) for code in report.codes]}" for report in reports)
print(hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


def test_reports_do_not_depend_on_the_order_of_a_set():
    """Python orders the strings of a set by PYTHONHASHSEED. The order matters in few of 3,000 reports."""
    hashes = []
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", _PRINT_HASH, str(_SIMULATOR)], cwd=_SIMULATOR.parents[2],
            env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        hashes.append(run.stdout)
    assert len(hashes[0].strip()) == 64 and hashes[0] == hashes[1]


def test_the_first_reports_do_not_depend_on_their_number():
    notes = list(short_reports(300, seed=2))
    assert notes[:50] == list(short_reports(50, seed=2)) != list(short_reports(50, seed=3))


def test_reports_are_short_and_coded():
    notes = list(short_reports(300, seed=2))
    assert all(note.text.startswith("History: ") and "\nImpression: " in note.text for note in notes)
    assert 10 < sum(len(note.text.split()) for note in notes) / len(notes) < 25
    assert all(note.codes for note in notes)


def test_codes_are_real_and_have_a_long_tail():
    counts = Counter(code for note in short_reports(978) for code in note.codes)
    assert all(describe(code) for code in counts)
    assert 40 <= len(counts) <= 50 and min(counts.values()) == 1 and max(counts.values()) > 100
