"""Benchmarks of quality use the data that they state, and keep the other results of their files."""

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

QUALITY = Path(__file__).parents[2] / "benchmarks/quality"


def test_hospital_of_mixed_versions_has_the_patients_that_were_asked_for(monkeypatch):
    hospital = runpy.run_path(str(QUALITY / "mixed_versions.py"))["hospital"]
    replaced = {"ProcessPoolExecutor": lambda workers, mp_context: ThreadPoolExecutor(1), "PART": 8}
    for name, value in replaced.items():
        monkeypatch.setitem(hospital.__globals__, name, value)
    few, more = ({note.patient for note in hospital(patients)} for patients in (10, 16))
    assert len(few) <= 10 < len(more) and few < more
