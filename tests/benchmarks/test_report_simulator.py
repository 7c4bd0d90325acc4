"""Tests of the simulated reports of benchmarks/quality/short_reports.py."""

import runpy
from collections import Counter
from pathlib import Path

from nosology.codes import describe

_SIMULATOR = Path(__file__).parents[2] / "benchmarks/quality/report_simulator.py"
short_reports = runpy.run_path(str(_SIMULATOR))["short_reports"]


def test_reports_are_short_coded_and_the_same_each_time():
    notes = list(short_reports(300, seed=2))
    assert notes[:50] == list(short_reports(50, seed=2)) != list(short_reports(50, seed=3))
    assert all(note.text.startswith("History: ") and "\nImpression: " in note.text for note in notes)
    assert 10 < sum(len(note.text.split()) for note in notes) / len(notes) < 25
    assert all(note.codes for note in notes)


def test_codes_are_real_and_have_a_long_tail():
    counts = Counter(code for note in short_reports(978) for code in note.codes)
    assert all(describe(code) for code in counts)
    assert 40 <= len(counts) <= 50 and min(counts.values()) == 1 and max(counts.values()) > 100
