"""What follows a training on its dev notes and needs no GPU: python benchmarks/speed/dev_tuning.py

Calibration, probabilities and the threshold of all codes on random logits of notes of both ICD versions, with as many
codes as the train notes of a simulated MIMIC-IV (whole_run.py), and the hashes of the train notes in the provenance.
Milliseconds of CPU time per note at two sizes, and the memory beyond the logits, in matrices of their size.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import Code
from nosology.core.files import write_json
from nosology.core.label_space import LabelSpace
from nosology.corpora.seen_notes import note_hashes
from nosology.evaluation.decision import Decision, DecisionSettings
from nosology.models.neural import CalibratedNet
from nosology.models.train import probabilities_in_place
from nosology.training.calibration import EXCLUDED_LOGIT

RESULT = Path(__file__).parents[1] / "results" / "speed_dev_tuning.json"
CODES = {"icd10cm": 27_272, "icd9cm": 9_404}  # of the train notes of 274,882, in speed_whole_run_prepare.json
CODES_PER_NOTE = 15
CHARACTERS = 10_700  # of a note


def main() -> None:
    """Prints and writes the cost at each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notes", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    sizes = []
    for notes in arguments.notes:
        sizes.append(measured(notes))
        print(sizes[-1], flush=True)
    write_json(arguments.out, {"codes": CODES, "sizes": sizes})


def measured(notes: int) -> dict[str, Any]:
    """CPU milliseconds per note of each part, and the peak of memory of the tuning."""
    rng = np.random.default_rng(0)
    labels = LabelSpace([Code(system, f"{number:05d}") for system, count in CODES.items() for number in range(count)])
    logits, codes = np.full((notes, len(labels)), EXCLUDED_LOGIT, np.float32), []
    first = CODES["icd10cm"]
    for row in range(notes):
        columns = slice(0, first) if row % 2 else slice(first, len(labels))
        logits[row, columns] = rng.normal(-6, 2, columns.stop - columns.start)
        true = rng.choice(np.arange(columns.start, columns.stop), CODES_PER_NOTE, replace=False)
        logits[row, true] += 5
        codes.append(tuple(labels.codes[label] for label in true))
    gold, texts = labels.encode(codes), [f"{row:0{CHARACTERS}d}" for row in range(notes)]
    model: CalibratedNet = CalibratedNet()
    size = logits.nbytes
    tracemalloc.start()
    calibration, model = timed(lambda: model.calibrated(logits, gold))
    scaling, probabilities = timed(lambda: probabilities_in_place(model, logits))
    threshold, _ = timed(lambda: Decision.tune(DecisionSettings(threshold="global"), labels, codes, probabilities))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    hashing, _ = timed(lambda: note_hashes(texts))
    parts = {"calibration": calibration, "probabilities": scaling, "threshold": threshold, "hashing": hashing}
    per_note = {name: round(1000 * seconds / notes, 3) for name, seconds in parts.items()}
    return {
        "notes": notes,
        "cpu_ms_per_note": per_note,
        "matrix_gb": round(size / 1e9, 2),
        "matrices": round(peak / size, 2),
    }


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call in all threads, and its result."""
    started = time.process_time()
    result = function()
    return time.process_time() - started, result


if __name__ == "__main__":
    main()
