"""The metrics of groups of codes: by how often training saw them, and by chapter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nosology.core import Code
from nosology.evaluation.counts import macro, micro
from nosology.evaluation.metrics import Evaluation

# The last band lies inside the second: the few-shot codes of the literature.
BANDS = (("0", 0, 0), ("1-9", 1, 9), ("10-99", 10, 99), ("100-999", 100, 999), ("1000+", 1000, None), ("1-5", 1, 5))

Row = dict[str, str | int | float | None]


def by_frequency(found: Evaluation, train_counts: Mapping[Code, int]) -> list[Row]:
    """One row a band of training frequency; codes that the model cannot name are in the band of their own count."""
    seen = np.array([train_counts.get(code, 0) for code in found.scored.space.codes], dtype=np.int64)
    return [
        {"train_notes": name} | _measured(found, (seen >= low) & (seen <= (high if high is not None else seen.max())))
        for name, low, high in BANDS
    ]


def by_chapter(found: Evaluation) -> list[Row]:
    """One row a chapter that holds a code of the space, by system and in the order of the book."""
    places = [_chapter(code) for code in found.scored.space.codes]
    rows = []
    for system, order, chapter, title in sorted(set(places)):
        mask = np.array([place == (system, order, chapter, title) for place in places], dtype=bool)
        rows.append({"system": system, "chapter": chapter, "title": title} | _measured(found, mask))
    return rows


def _chapter(code: Code) -> tuple[str, int, str, str]:
    """System, position, name and title of a code's chapter; a retired code is placed by the longest prefix in force."""
    from nosology.codes import table

    book = table(code.system)
    for length in range(len(code.code), 0, -1):
        prefix = code.code[:length].rstrip(".")
        if prefix in book:
            chapter = book.chapter(prefix)
            return code.system, book.chapters().index(chapter), chapter, book.description(chapter)
    return code.system, len(book.chapters()), "?", "not in the code table"


def _measured(found: Evaluation, mask: np.ndarray) -> Row:
    counts = found.counts
    tp, fp, fn = (values[mask].astype(np.float64)[None, :] for values in (counts.tp, counts.fp, counts.fn))
    pooled, mean = micro(tp.sum(1), fp.sum(1), fn.sum(1)), macro(tp, fp, fn)
    aucs = found.aucs[mask]
    mean["macro_auc"] = np.array([aucs[~np.isnan(aucs)].mean() if not np.isnan(aucs).all() else np.nan])
    wanted = ("micro_f1", "micro_precision", "micro_recall", "macro_f1", "macro_f1_all", "macro_auc")
    values = {name: float((pooled | mean)[name][0]) for name in wanted}
    row: Row = {
        "codes": int(mask.sum()),
        "codes_with_true_note": int(np.sum(counts.support[mask] > 0)),
        "true_assignments": int(counts.support[mask].sum()),
    }
    return row | {name: None if np.isnan(value) else value for name, value in values.items()}
