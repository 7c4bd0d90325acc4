"""Federated linear coder and lexicon: python benchmarks/quality/federated_lexicon.py FOLDER [--kind linear]

FOLDER holds codiesp_en_train.jsonl and codiesp_en_dev.jsonl. The train notes are dealt to ten sites, and each coder is
measured on dev, with diagnosis codes only. Rows: `pooled` is `nosology train` on all notes; `federated` shares
everything, in the clear; `thresholds` shares only words and phrases of three patients at two sites; `secure` is
`thresholds` with secure sums. The threshold of the linear coder is tuned on dev in all rows, that of a lexicon on
held-out train notes. `mb` are the megabytes of all messages to and from all sites, `cpu` the CPU seconds, of
federations only: pooled training uses several processes.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from nosology.config import load_federated_recipe, load_recipe
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.evaluation.measure import measure
from nosology.federated.rounds.simulation import partition_sites, run_simulation
from nosology.models.bundle import Bundle
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_federated_lexicon.json"
SHOWN = ("micro_f1", "macro_f1", "map")
ALL = ["federation.min_site_notes=1", "federation.min_notes=1", "federation.min_sites=3", "federation.quorum=3"]
CLEAR = ["federation.privacy.secure=false"]
NO_THRESHOLD = ["statistics.min_patients=1", "statistics.min_sites=1"]
ROWS: dict[str, list[str]] = {
    "pooled": [],
    "federated": [*ALL, *CLEAR, *NO_THRESHOLD],
    "thresholds": [*ALL, *CLEAR],
    "secure": ALL,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", dest="kinds", action="append", choices=["linear", "lexicon"])
    parser.add_argument("--row", dest="rows", action="append", choices=list(ROWS))
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--skew", default="iid")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology federate")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        corpus = _corpus(options.folder, Path(name) / "corpus")
        for kind in options.kinds or ["linear", "lexicon"]:
            for row in options.rows or ROWS:
                values = _row(kind, row, corpus, options, Path(name) / f"{kind} {row}")
                shown = "".join(f"  {key} {value:.4f}" for key, value in values.items() if value is not None)
                print(f"{kind:8} {row:11}{shown}", flush=True)
                named = [] if options.skew == "iid" else [options.skew]
                _write(" ".join([kind, row, f"{options.sites} sites", *named, *options.settings]), values)


def _corpus(folder: Path, out: Path) -> Corpus:
    """Train and dev notes with their diagnosis codes."""
    notes = [note for split in ("train", "dev") for note in read_notes(folder / f"codiesp_en_{split}.jsonl")]
    coded = [replace(note, codes=tuple(code for code in note.codes if code.system == "icd10cm")) for note in notes]
    return write_corpus(coded, out, source={"kind": "benchmark"}, filters=[], counts={})


def _row(kind: str, row: str, corpus: Corpus, options: argparse.Namespace, folder: Path) -> dict[str, float | None]:
    seconds, cpu, traffic = time.perf_counter(), time.process_time(), None
    if row == "pooled":
        bundle = train(load_recipe(kind, options.settings), [corpus], folder / "bundle")
    else:
        recipe = load_federated_recipe(kind, [*ROWS[row], *options.settings])
        site_of = partition_sites([corpus], options.sites, options.skew, 0.5, 0)
        run_simulation([corpus], site_of, recipe, folder / "bundle", "flower", print)
        bundle, traffic = Bundle.load(folder / "bundle"), _megabytes(folder / "bundle" / "history.csv")
    times = {"seconds": round(time.perf_counter() - seconds, 1)}
    if traffic:
        times["cpu"] = round(time.process_time() - cpu, 1)
    metrics = measure(bundle, corpus, "dev", folder / "report", systems=["icd10cm"]).evaluation.metrics
    megabytes = {"mb_to_sites": traffic[0], "mb_from_sites": traffic[1]} if traffic else {}
    return {key: metrics[key] for key in SHOWN} | megabytes | times


def _megabytes(history: Path) -> tuple[float, float]:
    with history.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    sent, received = (sum(float(row[name]) for row in rows) / 1e6 for name in ("bytes_to_sites", "bytes_from_sites"))
    return round(sent, 1), round(received, 1)


def _write(key: str, values: dict[str, float | None]) -> None:
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    results[key] = values
    RESULT.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
