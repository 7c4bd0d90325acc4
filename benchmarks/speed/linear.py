"""The linear coder's parts against scikit-learn's: python benchmarks/speed/linear.py [--notes 1000] [--codes 100]

Notes are simulated discharge summaries. Times are processor seconds of one process, so that a busy machine matters
less; the ratios are what to look at.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from nosology.core import Note
from nosology.core.label_space import LabelSpace, column_sums
from nosology.corpora.simulate import simulate_notes
from nosology.models.linear import linear_trainer
from nosology.models.linear.linear_trainer import Choice, LinearRecipe, fit_linear
from nosology.models.linear.tfidf import Tfidf, TfidfSettings

RESULTS = Path(__file__).parents[1] / "results" / "speed_linear.json"


def timed(work):
    """What the work gives, and the processor seconds it took."""
    started = time.process_time()
    return work(), time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, default=1000)
    parser.add_argument("--codes", type=int, default=100)
    words = parser.parse_args()
    linear_trainer._MIN_PARALLEL = float("inf")  # one process, so that its clock sees everything
    warnings.simplefilter("ignore", ConvergenceWarning)
    notes = list(islice(simulate_notes(words.notes, seed=0), words.notes))
    texts = [note.text for note in notes]
    ours_tfidf, tfidf_s = timed(lambda: Tfidf.fit(texts, TfidfSettings()))
    theirs = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
    their_vectors, their_tfidf_s = timed(lambda: theirs.fit_transform(texts))
    space = LabelSpace(sorted({code for note in notes for code in note.codes}))
    gold = space.encode([note.codes for note in notes])
    seen = column_sums(gold)
    columns = np.sort(np.random.default_rng(0).permutation(np.flatnonzero(seen < len(notes)))[: words.codes])
    labels = LabelSpace([space.codes[i] for i in columns])
    wanted = labels.encode([note.codes for note in notes])
    model, fit_s = timed(lambda: fit_linear(LinearRecipe(), labels, *ours_tfidf, wanted, Choice(1.0, 1000)))
    dense = wanted.toarray()
    fit = [timed(lambda y=y: LinearSVC().fit(their_vectors, y))[1] for y in dense.T]
    _, score_s = timed(lambda: model.scores(model.tfidf.transform(texts[:100])))
    _, evidence_s = timed(lambda: [model.evidence(Note("", text), range(min(15, len(labels)))) for text in texts[:50]])
    rows = {
        "tfidf, ms per note": (tfidf_s / len(texts) * 1e3, their_tfidf_s / len(texts) * 1e3),
        "fit, ms per code": (fit_s / len(columns) * 1e3, sum(fit) / len(columns) * 1e3),
        "score, ms per note": (score_s / 100 * 1e3, None),
        "evidence of 15 codes, ms per note": (evidence_s / 50 * 1e3, None),
    }
    print(f"{len(notes)} notes, {len(columns)} codes, {ours_tfidf[1].nnz / len(notes):.0f} features per note")
    for name, (ours, other) in rows.items():
        against = f"   scikit-learn {other:8.2f}   ratio {ours / other:.2f}" if other else ""
        print(f"{name:34}{ours:8.2f}{against}")
    RESULTS.write_text(json.dumps({"notes": len(notes), "codes": len(columns), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
