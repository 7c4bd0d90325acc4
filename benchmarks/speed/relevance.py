"""Cost of the mutual information of words and codes: python benchmarks/speed/relevance.py [--notes 50000]

50,000 notes of 700 different words out of 60,000 and 16 codes out of 8,000, frequencies by Zipf's law.
Prints seconds, peak memory and the size of the result (1,000 words per code).
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
    """A 0/1 matrix (notes, size) with about `mean` ones per note; frequencies of columns: 1 / (rank + 10)."""
    chance = 1 / (np.arange(size) + 10)
    bounds = np.cumsum(chance / chance.sum())
    rows = np.repeat(np.arange(notes), rng.poisson(1.3 * mean, notes))  # some twice
    columns = np.searchsorted(bounds, rng.random(len(rows))).clip(max=size - 1)
    matrix = sparse.csr_matrix((np.ones(len(rows), np.int8), (rows, columns)), shape=(notes, size))
    matrix.data[:] = 1
    return matrix


def main() -> None:
    """Prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, default=50_000)
    parser.add_argument("--words", type=int, default=60_000)
    parser.add_argument("--codes", type=int, default=8_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    words, codes = drawn(arguments.notes, arguments.words, 700, rng), drawn(arguments.notes, arguments.codes, 16, rng)
    started, work = time.perf_counter(), time.process_time()
    relevance = Relevance.of(words, codes)
    results = {
        "notes": arguments.notes,
        "words": arguments.words,
        "codes": arguments.codes,
        "words per note": words.nnz / arguments.notes,
        "codes per note": codes.nnz / arguments.notes,
        "seconds": time.perf_counter() - started,
        "CPU seconds": time.process_time() - work,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "stored MB": sum(array.nbytes for array in relevance.arrays().values()) / 1e6,
        "stored pairs": len(relevance.words),
    }
    print("\n".join(f"{name:14}{value:14,.2f}" for name, value in results.items()))
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
