"""Where the true codes of a note stand in its ranking, and what follows from that note by note."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nosology.evaluation.scored import Scored

CUTS = (5, 8, 15)


@dataclass(frozen=True)
class Ranks:
    """Ranks (from 1) of the true codes that can be named, in the order of `Scored.named_gold`.

    `place` breaks ties by column; a score of 0 is no place at all (infinity), nor has a code that cannot be named one.
    `worst` counts every code that scores as much, as scikit-learn does.
    """

    place: np.ndarray
    worst: np.ndarray
    grid_beats: np.ndarray  # (B,) see `rank`


def rank(scored: Scored, grid: np.ndarray) -> Ranks:
    """The ranks; and for each note, summed over `grid` (scores, ascending), how many of its cells a score beats.

    A tie with a grid score counts one half. One sort of a note serves both.
    """
    true, bounds = scored.true_scores, scored.named_gold.indptr
    columns = scored.named_gold.indices
    place, worst = np.empty(len(true)), np.empty(len(true), dtype=np.int64)
    grid_beats = np.zeros(scored.n_notes)

    def look(notes: slice, block: np.ndarray) -> None:
        for note, row, ascending in zip(range(notes.start, notes.stop), block, np.sort(block, axis=1)):
            mine = slice(bounds[note], bounds[note + 1])
            values = true[mine]
            above = len(row) - np.searchsorted(ascending, values, "right")
            worst[mine] = len(row) - np.searchsorted(ascending, values, "left")
            place[mine] = above + 1
            for i in np.flatnonzero((worst[mine] - above > 1) & (values > 0)):
                place[mine.start + i] += np.count_nonzero(row[: columns[mine.start + i]] == values[i])
            beats = np.searchsorted(ascending, grid, "left") + np.searchsorted(ascending, grid, "right")
            grid_beats[note] = beats.sum() / 2

    scored.over_notes(look)
    place[true == 0] = np.inf
    return Ranks(place, worst, grid_beats)


def note_values(scored: Scored, ranks: Ranks) -> dict[str, np.ndarray]:
    """Each ranking metric of each note (B,); NaN for a note without a true code."""
    n_true = np.diff(scored.gold.indptr)
    note = np.repeat(np.arange(scored.n_notes), np.diff(scored.named_gold.indptr))

    def per_note(values: np.ndarray) -> np.ndarray:
        return np.bincount(note, weights=values, minlength=scored.n_notes)

    safe = np.where(n_true > 0, n_true, np.nan)
    hits = {k: per_note(ranks.place <= k) for k in CUTS}
    found = {"map": per_note(_precision_at_own_rank(note, ranks.worst)) / safe}
    found |= {f"p@{k}": np.where(n_true > 0, hits[k] / k, np.nan) for k in CUTS}
    found["r@15"] = hits[15] / safe
    found["r_precision"] = per_note(ranks.place <= n_true[note]) / safe
    deepest = np.zeros(scored.n_notes)
    np.maximum.at(deepest, note, ranks.worst)
    deepest[n_true > np.diff(scored.named_gold.indptr)] = len(scored.space)
    found["coverage_error"] = np.where(n_true > 0, deepest, np.nan)
    return found


def _precision_at_own_rank(note: np.ndarray, worst: np.ndarray) -> np.ndarray:
    """For each true code the share of true codes among all that rank at least as high."""
    order = np.lexsort((worst, note))
    # A note's true codes are now neighbours, best first; codes of one tie all count up to the last of them.
    key = note[order].astype(np.int64) * (int(worst.max(initial=0)) + 1) + worst[order]
    upto = np.searchsorted(key, key, "right") - np.searchsorted(note, note[order], "left")
    precision = np.empty(len(worst))
    precision[order] = upto / worst[order]
    return precision
