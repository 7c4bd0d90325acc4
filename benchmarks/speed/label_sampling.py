"""Milliseconds per batch to sample labels and to build their targets.

python benchmarks/speed/label_sampling.py [--labels 8192] [--pool 26000] [--codes 16]

Codes of a note are long-tailed, as in a hospital. One core; the median of many batches and the time that 95% of
them stay under.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import numpy as np

from nosology.core.files import write_json
from nosology.training.label_sampling import label_targets, sample_labels

RESULT = Path(__file__).parents[1] / "results" / "speed_label_sampling.json"
LIMIT = 5.0  # ms per batch
BATCHES = (32, 256)


def milliseconds(batch: int, labels: int, pool: int, codes: int, rounds: int = 200) -> list[float]:
    """The time of each round, sorted."""
    rng = np.random.default_rng(0)
    ids = np.arange(pool)
    rate = np.cumsum(1 / np.arange(1, pool + 1))
    times = []
    for _ in range(rounds):
        counts = rng.poisson(codes, batch)
        positives = np.searchsorted(rate, rng.random(counts.sum()) * rate[-1])
        bounds = np.concatenate([[0], np.cumsum(counts)])
        started = time.perf_counter()
        chosen = sample_labels(positives, ids, labels, rng)
        targets = label_targets(chosen, positives, bounds)
        times.append((time.perf_counter() - started) * 1e3)
        assert targets.shape == (batch, max(labels, len(np.unique(positives))))
    return sorted(times)


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=8192)
    parser.add_argument("--pool", type=int, default=26_000)
    parser.add_argument("--codes", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULT)
    wanted = parser.parse_args()
    rows = {}
    for batch in BATCHES:
        times = milliseconds(batch, wanted.labels, wanted.pool, wanted.codes)
        rows[f"batch {batch}"] = {
            "median_ms": round(times[len(times) // 2], 2),
            "p95_ms": round(times[len(times) * 95 // 100], 2),
        }
    for name, row in rows.items():
        verdict = "ok" if row["median_ms"] < LIMIT else "TOO SLOW"
        print(f"{name:<12}{row['median_ms']:>8.2f} ms, 95% under {row['p95_ms']:.2f} ms  (limit {LIMIT} ms: {verdict})")
    settings = {"labels": wanted.labels, "pool": wanted.pool, "codes_per_note": wanted.codes, "limit_ms": LIMIT}
    write_json(
        wanted.out, settings | {"rows": rows, "machine": platform.machine(), "python": platform.python_version()}
    )


if __name__ == "__main__":
    main()
