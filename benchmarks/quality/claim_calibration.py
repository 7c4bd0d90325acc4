"""Fits the calibration of claims and measures it crosswise: ECE, and micro F1 with and without the threshold.

python benchmarks/quality/claim_calibration.py FILE... [--write]

FILE: as for claims.py. ece_before: of the coder's probabilities; ece_shipped: of the weights in the package;
ece_crosswise: of weights fitted on the other notes. Folds are whole notes. --write stores the weights of all notes in
the package.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from claims import read_cases, stated_fields
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from nosology.claims import calibration as calibration_module
from nosology.claims.calibration import default_calibration, features, probability
from nosology.claims.claim import build_draft
from nosology.serving.coder import Coder

_FOLDS, _STRENGTH, _BINS = 10, 1.0, 10
_THRESHOLD = 0.35  # the micro F1, crosswise, is flat from 0.3 to 0.5
_OUT = Path(calibration_module.__file__).parent / "data/calibration.json"


def examples(cases: list[dict[str, Any]]) -> tuple[list[dict[str, float]], np.ndarray, np.ndarray, int]:
    """Features, labels and case number of each code that is neither optional; number of gold codes in all."""
    coder = Coder.for_claims("day-one")
    rows, labels, groups, gold_codes = [], [], [], 0
    for number, (case, suggested) in enumerate(zip(cases, coder.code_all([case["text"] for case in cases]))):
        gold = {code["code"] for code in case["codes"]}
        optional = {code["code"] for code in case.get("optional", ())}
        gold_codes += len(gold)
        draft = build_draft(case["text"], suggested, stated_fields(case), off=["calibration"])
        for code, entry in draft.entries.items():
            if code not in optional or code in gold:
                rows.append(features(draft, entry))
                labels.append(code in gold)
                groups.append(number)
    return rows, np.array(labels), np.array(groups), gold_codes


def ece(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Expected calibration error over bins of equal width."""
    bins = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    parts = [(labels[bins == b], probabilities[bins == b]) for b in range(_BINS) if (bins == b).any()]
    return sum(len(real) * abs(real.mean() - stated.mean()) for real, stated in parts) / len(labels)


def f1(labels: np.ndarray, accepted: np.ndarray, gold_codes: int) -> float:
    """Micro F1 if the accepted codes stay."""
    return 2 * (labels & accepted).sum() / (accepted.sum() + gold_codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases = read_cases(arguments.files)
    rows, labels, groups, gold_codes = examples(cases)
    vectorizer = DictVectorizer(sparse=False)
    matrix = vectorizer.fit_transform(rows)
    model = LogisticRegression(C=_STRENGTH, max_iter=2000, fit_intercept=False)
    fold = np.random.default_rng(0).permutation(len(cases))[groups] % _FOLDS
    crosswise = np.zeros(len(labels))
    for number in range(_FOLDS):
        crosswise[fold == number] = model.fit(matrix[fold != number], labels[fold != number]).predict_proba(
            matrix[fold == number]
        )[:, 1]
    thresholds = np.arange(0.05, 0.6, 0.05)
    scores = {round(float(t), 2): round(f1(labels, crosswise >= t, gold_codes), 3) for t in thresholds}
    stated = np.array([1 / (1 + np.exp(-row["coder"])) for row in rows])
    weights = default_calibration().weights
    shipped = np.array([probability(row, weights) for row in rows])
    print(json.dumps({
        "codes": len(labels),
        "right": round(float(labels.mean()), 3),
        "ece_before": round(ece(labels, stated), 3),
        "ece_shipped": round(ece(labels, shipped), 3),
        "ece_crosswise": round(ece(labels, crosswise), 3),
        "micro_f1_all": round(f1(labels, labels | True, gold_codes), 3),
        "micro_f1_by_threshold": scores,
    }))  # fmt: skip
    if arguments.write:
        model.fit(matrix, labels)
        weights = {name: round(float(weight), 4) for name, weight in zip(vectorizer.feature_names_, model.coef_[0])}
        _OUT.write_text(json.dumps({"weights": weights, "threshold": _THRESHOLD}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
