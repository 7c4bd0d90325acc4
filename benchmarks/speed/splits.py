"""How many CPU seconds a split and the search for near-duplicates take, and what they find.

python benchmarks/speed/splits.py [--notes 120000 --codes 8000 --texts 50000 --words 1500]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nosology.core import Code
from nosology.core.files import write_json
from nosology.corpora.duplicates import near_pairs, shingle_fingerprint
from nosology.corpora.group_splits import NoteSummary
from nosology.corpora.splits import assign_sites, stratified_splits

SHARED = 0.3  # of every note's words are one template
PLANTED = 200  # near-duplicates, each with 1 % of its words changed


def coded(notes: int, codes: int, seed: int = 0) -> list[NoteSummary]:
    """Notes with MIMIC-like codes: about 15 per note, long-tailed, nearly two notes per patient."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, codes + 1)
    labels = [Code("icd10cm", f"{'ACEFGIJKMNRSZ'[n % 13]}{n:05d}") for n in range(codes)]
    drawn = rng.choice(codes, p=frequency / frequency.sum(), size=(notes, 20))
    patients = rng.integers(0, notes * 55 // 100, notes)
    return [
        NoteSummary(f"n{n:06d}", f"p{patients[n]}", None, None, tuple(labels[c] for c in np.unique(drawn[n])), None)
        for n in range(notes)
    ]


def written(notes: int, words: int, seed: int = 0) -> Iterator[str]:
    """Texts of long-tailed words with a template in each, the last ones near-duplicates of the first."""
    rng = np.random.default_rng(seed)
    vocabulary = np.array([f"w{number}" for number in range(30_000)], dtype=object)
    frequency = np.cumsum(1 / np.arange(1, len(vocabulary) + 1))
    template = rng.integers(0, len(vocabulary), int(words * SHARED))
    first = []
    for number in range(notes):
        drawn = np.searchsorted(frequency, rng.random(words - len(template)) * frequency[-1])
        whole = np.concatenate([template, drawn])
        if number < PLANTED:
            first.append(whole)
        elif number >= notes - PLANTED:
            whole = first[number - notes + PLANTED].copy()
            whole[rng.choice(words, words // 100, replace=False)] = 0
        yield " ".join(vocabulary[whole])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=int, default=120_000)
    parser.add_argument("--codes", type=int, default=8_000)
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--words", type=int, default=1_500)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "speed_splits.json")
    arguments = parser.parse_args()
    results: dict[str, float] = {name: value for name, value in vars(arguments).items() if name != "out"}

    def report(name: str, seconds: float) -> None:
        results[f"{name}, CPU s"] = round(seconds, 1)
        print(f"{name:40} {seconds:>9,.1f} CPU s", flush=True)

    roster = coded(arguments.notes, arguments.codes)
    for name, work in (
        ("split 70/15/15, stratified", lambda: stratified_splits(roster)),
        ("20 equal sites", lambda: assign_sites(roster, 20)),
        ("20 sites, dirichlet 0.1", lambda: assign_sites(roster, 20, skew="dirichlet", alpha=0.1)),
    ):
        start = time.process_time()
        work()
        report(name, time.process_time() - start)
    prints, seconds = [], 0.0
    for text in written(arguments.texts, arguments.words):
        start = time.process_time()
        prints.append(shingle_fingerprint(text))
        seconds += time.process_time() - start
    report("fingerprints", seconds)
    start = time.process_time()
    pairs, _ = near_pairs(prints)
    report("near-duplicates", time.process_time() - start)
    planted = {(number, arguments.texts - PLANTED + number) for number in range(PLANTED)}
    results |= {"planted": PLANTED, "found": len(planted & set(map(tuple, pairs.tolist()))), "pairs": len(pairs)}
    results["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    print(
        f"near-duplicates found {results['found']} of {PLANTED} planted, {results['pairs'] - results['found']} others"
    )
    print(f"peak memory {results['peak_gib']} GiB")
    write_json(arguments.out, results)


if __name__ == "__main__":
    main()
