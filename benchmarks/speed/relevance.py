"""What words tell which codes at MIMIC's size: python benchmarks/speed/relevance.py [--notes 50000]

50,000 notes of 700 different words out of 60,000 and 16 codes out of 8,000, words and codes as frequent as Zipf has it.
Prints seconds, the peak of memory and the size of what is kept (1,000 words a code).
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
from scipy import sparse

from nosology.models.plant.relevance import Relevance

RESULT = Path(__file__).parents[1] / "results" / "speed_relevance.json"


def drawn(notes: int, size: int, mean: int, rng: np.random.Generator) -> sparse.csr_matrix:
    """A 0/1 matrix (notes, size) with about `mean` ones a note, columns as frequent as 1 / (rank + 10)."""
    chance = 1 / (np.arange(size) + 10)
    bounds = np.cumsum(chance / chance.sum())
    rows = np.repeat(np.arange(notes), rng.poisson(1.3 * mean, notes))  # some are drawn twice
    columns = np.searchsorted(bounds, rng.random(len(rows))).clip(max=size - 1)
    found = sparse.csr_matrix((np.ones(len(rows), np.int8), (rows, columns)), shape=(notes, size))
    found.data[:] = 1
    return found


def main() -> None:
    """Prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, default=50_000)
    parser.add_argument("--words", type=int, default=60_000)
    parser.add_argument("--codes", type=int, default=8_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    words, codes = drawn(asked.notes, asked.words, 700, rng), drawn(asked.notes, asked.codes, 16, rng)
    started, work = time.perf_counter(), time.process_time()
    found = Relevance.of(words, codes)
    told = {
        "notes": asked.notes,
        "words": asked.words,
        "codes": asked.codes,
        "words a note": words.nnz / asked.notes,
        "codes a note": codes.nnz / asked.notes,
        "seconds": time.perf_counter() - started,
        "CPU seconds": time.process_time() - work,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "kept MB": sum(array.nbytes for array in found.arrays().values()) / 1e6,
        "pairs kept": len(found.words),
    }
    print("\n".join(f"{name:14}{value:14,.2f}" for name, value in told.items()))
    asked.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
