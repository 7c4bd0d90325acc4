"""A report folder: index.html, the plots as PNG, metrics.json, and tables of codes, strata and chapters as CSV.

It holds codes, counts and scores, and never a word of a note.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import Code
from nosology.core.files import atomic_folder, write_json
from nosology.evaluation import plots
from nosology.evaluation.metrics import Evaluation, Metrics
from nosology.evaluation.page import page
from nosology.evaluation.reliability import reliability
from nosology.evaluation.strata import Row, by_chapter, by_frequency

SHOWN = 25


def write_report(
    folder: str | Path,
    found: Evaluation,
    *,
    train_counts: Mapping[Code, int] | None = None,
    provenance: Mapping[str, Any] | None = None,
    title: str = "Evaluation",
) -> Metrics:
    """The metrics as written to metrics.json, after filling the folder, which appears whole or not at all.

    train_counts: how many training notes have each code; without it there are no strata. provenance: what made the
    result (recipe, corpus hash, version, seed, hardware); it is shown and stored in provenance.json.
    """
    calibrated = reliability(found.scored)
    metrics = found.metrics | {
        "ece": calibrated.ece,
        "ece_all": reliability(found.scored, bins="equal_width", floor=0).ece,
    }
    codes, in_chapters = per_code(found, train_counts), by_chapter(found)
    pictures = {
        "Precision and recall": ("Over all thresholds; the dot is the one in use.", plots.precision_recall(found)),
        "Reliability": (
            "Cells with a probability of 0.01 or more, in 15 bins of equal size.",
            plots.reliability_curve(calibrated),
        ),
        "Chapters": ("", plots.chapter_bars(in_chapters)),
    }
    tables: dict[str, tuple[str, Sequence[Row]]] = {}
    in_bands: list[Row] = []
    if train_counts is not None:
        seen = np.array([row["train_count"] for row in codes], dtype=np.int64)
        pictures["Frequency"] = (
            "Each code with a true note, and the mean of codes seen about as often.",
            plots.frequency(found, seen),
        )
        in_bands = by_frequency(found, train_counts)
        tables["By training frequency"] = ("The band 1-5 lies inside 1-9.", in_bands)
    tables["By chapter"] = ("", in_chapters)
    tables["Most frequent codes"] = (
        f"The first {SHOWN}; all are in per_code.csv.",
        _most_frequent(codes, nameable=True),
    )
    tables["True codes the model cannot name"] = (
        f"At most {SHOWN}, most frequent first; each of their notes counts as a miss.",
        [
            {k: row[k] for k in ("system", "code", "description", "support")}
            for row in _most_frequent(codes, nameable=False)
        ],
    )
    with atomic_folder(folder, marker="metrics.json") as aside:
        write_json(aside / "metrics.json", metrics)
        write_json(aside / "provenance.json", dict(provenance or {}))
        _write_csv(aside / "per_code.csv", codes)
        _write_csv(aside / "chapters.csv", in_chapters)
        if train_counts is not None:
            _write_csv(aside / "strata.csv", in_bands)
        for heading, (_, png) in pictures.items():
            (aside / f"{heading.lower().replace(' ', '_')}.png").write_bytes(png)
        html = page(title, metrics, pictures, tables, provenance or {})
        (aside / "index.html").write_text(html, encoding="utf-8")
    return metrics


def per_code(found: Evaluation, train_counts: Mapping[Code, int] | None = None) -> list[Row]:
    """One row a code of the space, the model's first; what is undefined is None."""
    from nosology.codes import describe

    counts, n_named = found.counts, found.scored.n_nameable
    kept = slice(None) if found.scored.columns is None else found.scored.columns
    given = np.broadcast_to(np.asarray(found.threshold, dtype=np.float64), found.scored.scores.shape[1])[kept]
    rows = []
    for j, code in enumerate(counts.space.codes):
        tp, fp, fn = int(counts.tp[j]), int(counts.fp[j]), int(counts.fn[j])
        rows.append(
            {
                "system": code.system,
                "code": code.code,
                "description": describe(code),
                "nameable": "yes" if j < n_named else "no",
                "train_count": None if train_counts is None else int(train_counts.get(code, 0)),
                "support": tp + fn,
                "tp": tp,
                "fp": fp,
                "fn": fn,
                "precision": tp / (tp + fp) if tp + fp else None,
                "recall": tp / (tp + fn) if tp + fn else None,
                "f1": 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else None,
                "auc": None if np.isnan(found.aucs[j]) else float(found.aucs[j]),
                "threshold": float(given[j]) if j < n_named else None,
            }
        )
    return rows


def _most_frequent(rows: Iterable[Row], *, nameable: bool) -> list[Row]:
    wanted = [row for row in rows if (row["nameable"] == "yes") == nameable and row["support"]]
    wanted.sort(key=lambda row: (-int(row["support"] or 0), row["system"], row["code"]))
    hidden = ("nameable", "threshold", "train_count")
    return [{name: value for name, value in row.items() if name not in hidden} for row in wanted[:SHOWN]]


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
