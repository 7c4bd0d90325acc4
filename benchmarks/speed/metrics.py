"""Time and memory of all metrics of a large test set; compared with scikit-learn on a smaller one.

python benchmarks/speed/metrics.py --notes 20000 --codes 26000
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from nosology.core import Code
from nosology.core.files import write_json
from nosology.core.label_space import LabelSpace
from nosology.evaluation import evaluate, tune_threshold

CODES_PER_NOTE = 15.7
SMALL = (2000, 1000)

T = TypeVar("T")


def make(n_notes: int, n_codes: int, seed: int = 0) -> tuple[LabelSpace, list[list[Code]], np.ndarray]:
    """Notes with codes of a long tail, and noisy scores that know something of them."""
    rng = np.random.default_rng(seed)
    labels = LabelSpace(Code("icd10cm", f"X{j:06d}") for j in range(n_codes))
    rate = 1 / np.arange(1, n_codes + 1)
    rate = np.minimum(rate * CODES_PER_NOTE / rate.sum(), 0.5)
    scores = np.empty((n_notes, n_codes), dtype=np.float32)
    gold = []
    for i in range(n_notes):
        row = rng.standard_normal(n_codes, dtype=np.float32)
        true = np.flatnonzero(rng.random(n_codes, dtype=np.float32) < rate)
        row += np.log(rate).astype(np.float32) - 1
        row[true] += 4
        scores[i] = 1 / (1 + np.exp(-row))
        gold.append([labels.codes[j] for j in true])
    return labels, gold, scores


def scikit_learn(labels: LabelSpace, gold: list[list[Code]], scores: np.ndarray, threshold: float) -> None:
    """The metrics that scikit-learn has, one by one, without intervals."""
    from sklearn import metrics

    true = labels.encode(gold).toarray()
    accepted = (scores >= np.float32(threshold)).astype(np.int8)
    for average in ("micro", "macro"):
        metrics.precision_recall_fscore_support(true, accepted, average=average, zero_division=0)
    mixed = true.any(0) & ~true.all(0)
    metrics.roc_auc_score(true[:, mixed], scores[:, mixed], average="micro")
    metrics.roc_auc_score(true[:, mixed], scores[:, mixed], average="macro")
    metrics.hamming_loss(true, accepted)
    metrics.accuracy_score(true, accepted)
    metrics.coverage_error(true, scores)
    metrics.label_ranking_average_precision_score(true, scores)


def timed(action: str, call: Callable[[], T], rows: dict[str, dict[str, float]]) -> T:
    """What the call returns; its wall-clock and CPU seconds are printed and added to rows."""
    start, busy = time.perf_counter(), time.process_time()
    result = call()
    rows[action] = {"wall": time.perf_counter() - start, "cpu": time.process_time() - busy}
    print(f"{action:<52}{rows[action]['wall']:>9.2f} s{rows[action]['cpu']:>9.2f} s of processor")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=int, default=20_000)
    parser.add_argument("--codes", type=int, default=26_000)
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "speed_metrics.json")
    wanted = parser.parse_args()

    rows: dict[str, dict[str, float]] = {}
    small = make(*SMALL)
    ours = f"ours, {SMALL[0]} x {SMALL[1]}, no intervals"
    theirs = f"scikit-learn, {SMALL[0]} x {SMALL[1]}"
    timed(ours, lambda: evaluate(*small, 0.3, replicates=0), rows)
    timed(theirs, lambda: scikit_learn(*small, 0.3), rows)
    print(f"{'ratio of processor time to scikit-learn':<52}{rows[ours]['cpu'] / rows[theirs]['cpu']:>9.2f}")

    labels, gold, scores = make(wanted.notes, wanted.codes)
    size = f"{wanted.notes} x {wanted.codes}"
    threshold = timed(f"tune the threshold, {size}", lambda: tune_threshold(labels, gold, scores), rows)
    name = f"all metrics, {wanted.replicates} replicates, {size}"
    evaluation = timed(name, lambda: evaluate(labels, gold, scores, threshold, replicates=wanted.replicates), rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{'peak memory, with the scores themselves':<52}{peak:>9.2f} GiB ({scores.nbytes / 2**30:.2f} the scores)")
    print(
        f"micro F1 {evaluation['micro_f1']:.3f}, macro F1 {evaluation['macro_f1']:.3f}, "
        f"micro AUC {evaluation['micro_auc']:.4f}"
    )
    result = {"seconds": rows, "peak_gib": peak, "scores_gib": scores.nbytes / 2**30}
    result["ratio_to_scikit_learn"] = rows[ours]["cpu"] / rows[theirs]["cpu"]
    write_json(wanted.out, result)


if __name__ == "__main__":
    main()
