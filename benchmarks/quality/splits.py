"""How evenly a 70/15/15 split spreads codes: by nosology, by the package iterative-stratification, and by chance.

python benchmarks/quality/splits.py CORPUS [--seeds 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from iterstrat.ml_stratifiers import IterativeStratification
from scipy import sparse

from nosology.core.files import write_json
from nosology.core.label_space import column_sums
from nosology.corpora.corpus import Corpus
from nosology.corpora.group_splits import group_label_counts, stratify, summarize_notes

SHARES = np.array([0.7, 0.15, 0.15])
METHODS = {
    "random": lambda labels, seed: np.random.default_rng(seed).choice(3, p=SHARES, size=labels.shape[0]),
    "iterative-stratification": lambda labels, seed: IterativeStratification(
        labels.toarray().astype(bool), SHARES.copy(), np.random.RandomState(seed)
    ),
    "nosology": lambda labels, seed: stratify(
        labels, np.ones(labels.shape[0]), SHARES, np.random.default_rng([seed, 0])
    ),
}


def measure(labels: sparse.csr_matrix, part: np.ndarray) -> np.ndarray:
    """The mean difference of a code's frequency, three shares, codes per note, and the share of unseen codes (8)."""
    parts = [labels[part == number] for number in range(3)]
    overall = labels.mean(axis=0)
    difference = np.mean([np.abs(one.mean(axis=0) - overall) for one in parts])
    held_out = column_sums(parts[1]) + column_sums(parts[2])
    unseen = held_out[column_sums(parts[0]) == 0].sum() / held_out.sum()
    sizes = np.array([one.shape[0] for one in parts])
    return np.array([difference, *sizes / sizes.sum(), *(one.sum() / one.shape[0] for one in parts), unseen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "quality_splits.json")
    arguments = parser.parse_args()
    roster = summarize_notes(Corpus.open(arguments.corpus).notes(text=False), texts=False)
    labels, _, names = group_label_counts(roster, np.arange(len(roster)), within="site")
    print(f"{len(roster):,} notes, {len(names):,} codes; means over {arguments.seeds} seeds")
    print(f"{'':26}{'difference':>11}   {'train':>6}{'dev':>6}{'test':>6}   {'codes per note':>18}   {'unseen':>7}")
    results = {"notes": len(roster), "codes": len(names), "seeds": arguments.seeds}
    for name, method in METHODS.items():
        got = np.mean([measure(labels, method(labels, seed)) for seed in range(arguments.seeds)], axis=0)
        results[name] = [round(float(value), 6) for value in got]
        shares = "".join(f"{value:>6.3f}" for value in got[1:4])
        codes = "".join(f"{value:>6.1f}" for value in got[4:7])
        print(f"{name:26}{got[0]:>11.5f}   {shares}   {codes}   {got[7]:>7.1%}")
    write_json(arguments.out, results)


if __name__ == "__main__":
    main()
