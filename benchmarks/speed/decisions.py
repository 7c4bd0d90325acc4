"""CPU time of the server for one decision on the notes of examples/, with the panel that answers it.

python benchmarks/speed/decisions.py        # writes benchmarks/results/speed_decisions.json
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fastapi.testclient import TestClient
from sqlalchemy import Engine

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nosology.claims import grouping
from nosology.workbench.app import create_app
from nosology.workbench.cases import load_case
from nosology.workbench.database import read_transaction
from nosology.workbench.group_panel import build_group_panel
from nosology.workbench.server_settings import ServerSettings
from tests.workbench.conftest import ApiClient, browser, csrf, fill_people

ROOT = Path(__file__).resolve().parents[2]
STAY = {"setting": "inpatient", "date": "2025-11-03", "sex": "F", "age": 78}
ROUNDS = 5


def measure(page: TestClient, api: ApiClient, note: int) -> dict[str, float]:
    """Milliseconds per decision: each suggestion that the claim does not have is accepted, then undone."""
    token, version, spent = csrf(page), 0, []

    def decide(**values: str) -> str:
        nonlocal version
        start = time.process_time()
        form = {"version": str(version), **values}
        response = page.post(f"/notes/{note}/decide", data=form, headers={"x-csrf-token": token})
        spent.append(1000 * (time.process_time() - start))
        assert response.status_code == 200, response.status_code
        version = int(re.search(r'data-version="(\d+)"', response.text)[1])
        return response.text

    text = decide(action="claim")
    spent.clear()  # the first one builds the claim
    is_open = re.compile(r'data-key="([^"]+)" data-state="open"')
    codes = is_open.findall(text)
    for _ in range(ROUNDS):
        for code in codes:
            decide(action="accept", code=code)
            decide(action="undo")
    detail = api.get(f"/notes/{note}").json()
    return {
        "group_panel_ms": group_panel_ms(page.app.state.services.engine, note),
        "suggestions": len(detail["suggestions"]),
        "open": len(codes),
        "chosen": len(detail["codes"]),
        "decisions": len(spent),
        "first_round_ms": round(statistics.median(spent[: 2 * len(codes)]), 2),  # no set of codes is cached yet
        "median_ms": round(statistics.median(spent), 2),
        "mean_ms": round(statistics.mean(spent), 2),
    }


def group_panel_ms(engine: Engine, note: int) -> float:
    """Milliseconds for the panel of DRG and HCC alone, with nothing in its caches."""
    with read_transaction(engine) as connection:
        case = load_case(connection, note)
    spent = []
    for _ in range(20):
        grouping._drg.cache_clear()
        grouping._hcc.cache_clear()
        start = time.process_time()
        build_group_panel(case, {})
        spent.append(1000 * (time.process_time() - start))
    return round(statistics.median(spent), 2)


def main() -> None:
    """Prints a line per note."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    store = str(Path(tempfile.mkdtemp()) / "workbench.db")
    tokens = fill_people(store)
    results = {}
    with TestClient(create_app(ServerSettings(Path("day-one"), store)), base_url="http://localhost") as client:
        api, page = ApiClient(client, tokens["ann"]), browser((client, tokens), "ann")
        for path in sorted((ROOT / "examples" / "notes").glob("*.txt")):
            note = api.note(path.stem, path.read_text(encoding="utf-8"), **STAY)
            results[path.stem] = measure(page, api, note)
            print(path.stem, results[path.stem])
    out = ROOT / "benchmarks" / "results" / "speed_decisions.json"
    out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
