"""Benchmarks of quality use the data that they state, and keep the other results of their files."""

import json
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


def test_rows_of_a_federation_keep_others_that_were_measured_in_the_same_way(tmp_path):
    add_rows, file = runpy.run_path(str(QUALITY / "federated.py"))["add_rows"], tmp_path / "results.json"
    about = {"recipe": "heads-mlp", "seeds": 2}
    add_rows(file, "codiesp", about, {"iid": 1, "size": 2})
    add_rows(file, "codiesp", about, {"size": 3})
    add_rows(file, "hospital", about, {"iid": 4})
    assert json.loads(file.read_text())["codiesp"] == about | {"rows": {"iid": 1, "size": 3}}
    add_rows(file, "codiesp", about | {"seeds": 3}, {"size": 5})
    stored = json.loads(file.read_text())
    assert stored == {"codiesp": about | {"seeds": 3, "rows": {"size": 5}}, "hospital": about | {"rows": {"iid": 4}}}
