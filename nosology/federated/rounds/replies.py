"""What a site's reply holds, or why it cannot be taken: a reason names arrays and numbers, never data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flwr.app import Message

from nosology.core.label_space import LabelSpace
from nosology.federated.rounds.records import ARRAYS, CONFIG, METRICS, Arrays, from_record, reason_of, value
from nosology.federated.rounds.site_counts import SiteCounts
from nosology.models.heads.feature_statistics import Moments

NOTES, LOSS, KNOWN = "num-examples", "loss", "known"
LARGEST = 1e6  # of a weight, a loss or a vector's value: what is larger was not learned from notes
_MOST_NOTES, _MOST_CODES = 10**9, 10**3  # of an evaluation; of a note


@dataclass(frozen=True, eq=False)
class SiteUpdate:
    """A site's reply that the guard has let through."""

    site: str
    arrays: Arrays
    notes: float  # its weight
    loss: float
    known: np.ndarray  # (L,) bool: codes that the site codes with


def read_update(site: str, reply: Message, start: Arrays, told: int | None = None) -> SiteUpdate | str:
    """The update in a reply, or why it cannot be taken; told: the notes that the site has said it has."""
    if reply.has_error():
        return reason_of(reply.error)
    try:
        arrays, metrics, config = (reply.content[name] for name in (ARRAYS, METRICS, CONFIG))
        notes, loss, packed = metrics[NOTES], metrics[LOSS], config[KNOWN]
    except KeyError as error:
        return f"its reply has no {error.args[0]}"
    for name, number in ((NOTES, notes), (LOSS, loss)):
        if not isinstance(number, int | float) or not math.isfinite(number):
            return f"{name} must be a finite number"
    if notes <= 0:
        return f"{NOTES} must be positive; got {notes:g}"
    if told is not None and notes != told:
        return f"{NOTES} must be {told}, as it said before; got {notes:g}"
    if not 0 <= loss <= LARGEST:
        return f"{LOSS} must lie between 0 and {LARGEST:g}; got {loss:g}"
    if set(arrays) != set(start):
        return f"arrays must be those of the model; {_some(set(arrays) ^ set(start))} must not be there or is missing"
    read: Arrays = {}
    for name, first in start.items():
        try:
            read[name] = arrays[name].numpy()
        except Exception:  # whatever a damaged array makes numpy raise
            return f"{name} cannot be read"
        if read[name].shape != first.shape:
            return f"{name} must be of shape {first.shape}; got {read[name].shape}"
        if read[name].dtype != first.dtype:
            return f"{name} must be {first.dtype}; got {read[name].dtype}"
        if not np.isfinite(read[name]).all():
            return f"{name} holds NaN or infinity"
        if (np.abs(read[name]) > LARGEST).any():
            return f"{name} holds numbers beyond {LARGEST:g}"
        if not possible(name, read[name]):
            return f"{name} holds a variance below 0"
    labels = len(start["out.bias"])
    if not isinstance(packed, bytes) or len(packed) != -(-labels // 8):
        return f"{KNOWN} must be {labels} bits"
    known = np.unpackbits(np.frombuffer(packed, np.uint8), count=labels).astype(bool)
    return SiteUpdate(site, read, float(notes), float(loss), known)


def possible(name: str, array: np.ndarray) -> bool:
    """Whether a tensor of this name may have these numbers: one variance below 0 makes every logit NaN."""
    return not name.endswith("running_var") or bool((array >= 0).all())


def read_moments(reply: Message | None, dim: int) -> Moments | str:
    """The statistics in a reply, or why there are none."""
    if reply is None:
        return "it did not tell its statistics in time"
    if reply.has_error():
        return reason_of(reply.error)
    try:
        arrays, count = from_record(reply.content[ARRAYS]), value(reply.content, "count")
        found = Moments(int(count), arrays["total"], arrays["squares"])
    except Exception:  # whatever a damaged reply makes of it
        return "its statistics cannot be read"
    sums = (found.total, found.squares)
    sound = all(array.shape == (dim,) and array.dtype == np.float64 and np.isfinite(array).all() for array in sums)
    sound = sound and found.count >= 1 and (found.squares >= 0).all() and _possible(found)
    if not sound:
        return "its statistics are not count, sum and sum of squares of its vectors"
    return found


def _possible(moments: Moments) -> bool:
    """Whether there are vectors with these moments (Cauchy and Schwarz; a little is left to rounding)."""
    root, size = np.sqrt(moments.squares), math.sqrt(moments.count)
    return bool((np.abs(moments.total) <= size * root * (1 + 1e-6)).all() and (root <= size * LARGEST).all())


def read_counts(reply: Message, labels: LabelSpace) -> SiteCounts | str:
    """The counts in a reply, or why they cannot be taken."""
    if reply.has_error():
        return reason_of(reply.error)
    no_notes = np.zeros((0, len(labels)), np.float32)
    none = SiteCounts.of(labels, no_notes, no_notes, [], np.ones(len(labels), bool), None)
    try:
        arrays = from_record(reply.content[ARRAYS])
    except Exception:
        return "its counts cannot be read"
    for name, empty in none.arrays().items():
        given = arrays.get(name)
        if given is None or given.shape != empty.shape or given.dtype != empty.dtype:
            return f"{name} is missing or of another shape"
        if not np.isfinite(given).all() or (given < 0).any():
            return f"{name} holds what is no count"
    found = SiteCounts(**{name: arrays[name] for name in none.arrays()})
    return found if _add_up(found) else "its counts do not fit together"


def _add_up(found: SiteCounts) -> bool:
    """Whether notes can have these counts."""
    notes, every = int(found.notes[0]), int(found.notes[0]) * found.hits.shape[1]
    tp, fp, fn = found.hits
    return bool(
        notes <= _MOST_NOTES
        and found.outside[0] <= notes * _MOST_CODES
        and (found.true <= found.cells).all()
        and found.cells.max() <= every  # else their sum might overflow
        and found.cells.sum() <= every
        and found.hits.max(initial=0) <= notes
        and (tp + fp + fn).max(initial=0) <= notes
        and found.precision[0] <= found.precision[1] <= notes
        and found.exact[0] <= notes
    )


def _some(names: set[str], most: int = 3) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")
