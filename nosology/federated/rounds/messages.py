"""Messages between server and sites as Flower records: build, read and validate them.

A reason for a refusal names arrays and numbers. It never contains data of a site.
"""

from __future__ import annotations

import json
import math
import re
import sys
from itertools import chain
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from nosology.core.errors import printable
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.compression import compressed_names, decompress
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.learner import HEAD_ROWS, LabelRows
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate
from nosology.models.heads.feature_statistics import FeatureStatistics

ARRAYS, CONFIG, METRICS, PACKED = "arrays", "config", "metrics", "packed"  # records of a message
NOTES, LOSS, LABEL_MASK = "num-examples", "loss", "label-mask"  # values in a training reply
INPUTS = "inputs"  # value in `PREPARE`: JSON values of the shared inputs

METADATA, STATISTICS, PREPARE = "query.metadata", "query.statistics", "query.prepare"  # message types
TRAIN, EVALUATE = "train", "evaluate"

REFUSED = 1001  # error code: the reason is a sentence for the user, without data
FAILED = 1002  # error code: the reason is the class of an exception
UNPREPARED = 1003  # error code: the site does not have the setup

APP_RAISED, UNREACHABLE = 2, 5  # Flower's error codes that a simulation uses
_FLOWER_ERRORS = {  # Flower's own error codes; their reasons may quote data and are not shown
    1: "its app could not be loaded",
    2: "its app raised an exception",
    3: "the message did not reach it",
    4: "its reply was lost",
    5: "it cannot be reached",
    7: "its app is not the one that was sent",
    8: "its app crashed",
}

_RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (ArrayRecord, MetricRecord, ConfigRecord)}
_MAX_NUMBER = sys.float_info.max  # a larger whole number is no float
MAX_REASON = 500  # characters of what a site says about itself
MAX_VALUE = 1e6  # of a weight, a loss or a feature; larger values cannot come from training
_MAX_DEPTH = 32  # of nested lists and dicts
_MAX_NOTES, _MAX_CODES_PER_NOTE = 10**9, 10**3  # of an evaluation


def to_record(arrays: Arrays) -> ArrayRecord:
    """Arrays as a Flower record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """Copies of the arrays of a Flower record."""
    return {name: array.numpy() for name, array in record.items()}


def get_arrays(content: RecordDict) -> Arrays:
    """The arrays of a message."""
    return from_record(content.array_records[ARRAYS])


def make_content(arrays: Arrays | ArrayRecord | None = None, **values: Any) -> RecordDict:
    """The content of a message: arrays, and values that are JSON or bytes."""
    packed = {
        name: value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        for name, value in values.items()
    }
    records = RecordDict({CONFIG: ConfigRecord({**packed})})
    if arrays is not None:
        records[ARRAYS] = arrays if isinstance(arrays, ArrayRecord) else to_record(arrays)
    return records


def get_value(content: RecordDict, name: str) -> Any:
    """A value of `make_content`; KeyError if there is none, ValueError for text that `make_content` does not write."""
    packed = content.config_records[CONFIG][name]
    if isinstance(packed, bytes):
        return packed
    try:
        value = json.loads(str(packed), parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("values must not be nested deeply") from error
    level = [value]
    for _ in range(_MAX_DEPTH):
        children = (
            each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
        )
        if not (level := list(chain.from_iterable(children))):
            return value
    raise ValueError("values must not be nested deeply")


def _finite(text: str) -> float:
    """The number of a text; ValueError for NaN and infinity."""
    if not math.isfinite(number := float(text)):
        raise ValueError("numbers must be finite")
    return number


def pack_message(content: RecordDict) -> RecordDict:
    """The content as a single array; packed content is returned unchanged.

    A SuperLink stores every array and record of a message as an object, each with several requests and a dozen database
    transactions. A head of 20 arrays has more than 40 objects, a packed message has four.
    """
    if PACKED in content:
        return content
    parts: list[bytes] = []  # data of arrays, and values that are bytes
    header = {name: _pack_record(record, parts) for name, record in content.items()}
    described = json.dumps(header).encode()
    data = np.frombuffer(b"".join([len(described).to_bytes(8, "big"), described, *parts]), dtype=np.uint8)
    return RecordDict({PACKED: ArrayRecord({PACKED: Array(data)})})


def _pack_record(record: ArrayRecord | MetricRecord | ConfigRecord, parts: list[bytes]) -> list[Any]:
    """The kind and the values of a record as JSON; bytes are appended to `parts`, and only their number is given."""
    values: dict[str, Any] = {}
    for name, value in record.items():
        is_array = isinstance(value, Array)
        if is_array or isinstance(value, bytes):
            parts.append(value.data if is_array else value)
            shape = [value.dtype, list(value.shape), value.stype] if is_array else []
            values[name] = {"bytes": len(parts[-1]), "array": shape}
        else:
            values[name] = {"value": value}
    return [type(record).__name__, values]


def unpack_message(content: RecordDict) -> RecordDict:
    """The content of a packed message; other content is returned unchanged. Damaged content is empty."""
    if PACKED not in content:
        return content
    try:
        data = content.array_records[PACKED][PACKED].numpy().tobytes()
        start = 8 + int.from_bytes(data[:8], "big")
        records: dict[str, Any] = {}
        for name, (kind, described) in json.loads(data[8:start]).items():
            values: dict[str, Any] = {}
            for key, value in described.items():
                values[key] = value.get("value")
                if "bytes" in value:
                    values[key] = data[start : (start := start + value["bytes"])]
                    if value["array"]:
                        dtype, shape, stype = value["array"]
                        values[key] = Array(dtype=dtype, shape=tuple(shape), stype=stype, data=values[key])
            records[name] = _RECORDS[kind](values)
        return RecordDict(records)
    except Exception:  # whoever reads it finds that a record is missing
        return RecordDict()


def error_reply(code: int, reason: str, message: Message) -> Message:
    """The reply of a site that cannot process a message."""
    return Message(Error(code, reason), reply_to=message)


def error_reason(error: Error) -> str:
    """Why a site failed: its own sentence or the kind of the error, never the text of an exception."""
    if error.code in (REFUSED, FAILED, UNPREPARED):
        return printable(" ".join((error.reason or "no reason given").split()))[:MAX_REASON]
    reason = _FLOWER_ERRORS.get(error.code, f"error {error.code}")
    exception = re.match(r"<class '([\w.]+)'>", error.reason or "")
    return f"{reason} ({exception[1].rpartition('.')[2]})" if exception else reason


def content_bytes(content: RecordDict) -> int:
    """The number of bytes of the arrays and values of a message."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    values = (value for record in content.config_records.values() for value in record.values())
    return arrays + sum(len(value) for value in values if isinstance(value, str | bytes))


def read_update(
    site: str,
    reply: Message,
    initial: Arrays,
    expected_notes: int | None = None,
    *,
    rows: LabelRows = HEAD_ROWS,
    settings: FederationSettings | None = None,
) -> SiteUpdate | str:
    """The update in a reply, or why it is invalid.

    initial: the weights at the start of the round. expected_notes: the number of notes that the site has reported.
    settings: say how the arrays are compressed.
    """
    if reply.has_error():
        return error_reason(reply.error)
    content = reply.content
    try:
        arrays, metrics = content.array_records[ARRAYS], content.metric_records[METRICS]
        notes, loss, packed_mask = metrics[NOTES], metrics[LOSS], content.config_records[CONFIG][LABEL_MASK]
    except KeyError as error:
        return f"its reply has no {error.args[0]}"
    for name, number in ((NOTES, notes), (LOSS, loss)):
        if not isinstance(number, int | float) or not abs(number) <= _MAX_NUMBER:  # not a number is not at most
            return f"{name} must be a finite number"
    assert isinstance(notes, int | float) and isinstance(loss, int | float)
    if notes <= 0:
        return f"{NOTES} must be positive; got {notes:g}"
    if expected_notes is not None and notes != expected_notes:
        return f"{NOTES} must be {expected_notes}, as reported before; got {notes:g}"
    if not 0 <= loss <= MAX_VALUE:
        return f"{LOSS} must be between 0 and {MAX_VALUE:g}; got {loss:g}"
    if settings is not None and settings.compression == "none":
        settings = None
    expected = set(initial) if settings is None else compressed_names(initial, settings)
    if wrong := sorted(set(arrays) ^ expected):
        names = printable(", ".join(wrong[:3]))[:MAX_REASON] + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        return f"arrays must be those of the model; {names} missing or not allowed"
    received: Arrays = {}
    for name in sorted(expected):
        try:
            received[name] = arrays[name].numpy()
        except Exception:  # numpy raises various exceptions for a damaged array
            return f"{name} cannot be read"
    weights: Arrays = {}
    for name, first in initial.items():
        weight = received[name] if settings is None else decompress(received, name, first, settings)
        if isinstance(weight, str):
            return weight
        weights[name] = weight
        if reason := _invalid_array(name, weights[name], first):
            return reason
    labels = rows.count(initial)
    if not isinstance(packed_mask, bytes) or len(packed_mask) != -(-labels // 8):
        return f"{LABEL_MASK} must have {labels} bits"
    label_mask = np.unpackbits(np.frombuffer(packed_mask, np.uint8), count=labels).astype(bool)
    return SiteUpdate(site, weights, float(notes), float(loss), label_mask)


def _invalid_array(name: str, array: np.ndarray, initial: np.ndarray) -> str:
    """Why an array is invalid; empty if it is valid."""
    if array.shape != initial.shape:
        return f"{name} must have shape {initial.shape}; got {array.shape}"
    if array.dtype != initial.dtype:
        return f"{name} must be {initial.dtype}; got {array.dtype}"
    if not np.isfinite(array).all():
        return f"{name} contains NaN or infinity"
    if (np.abs(array) > MAX_VALUE).any():
        return f"{name} contains values beyond {MAX_VALUE:g}"
    return f"{name} contains a negative variance" if has_negative_variance(name, array) else ""


def has_negative_variance(name: str, array: np.ndarray) -> bool:
    """Whether an array is a running variance with a negative value, which makes every logit NaN."""
    return name.endswith("running_var") and bool((array < 0).any())


def read_statistics(reply: Message | None, dim: int) -> FeatureStatistics | str:
    """The feature statistics in a reply, or why they are invalid."""
    if reply is None:
        return "it did not send its statistics in time"
    if reply.has_error():
        return error_reason(reply.error)
    try:
        arrays, count = get_arrays(reply.content), get_value(reply.content, "count")
        statistics = FeatureStatistics(int(count), arrays["total"], arrays["squares"])
    except Exception:  # a damaged reply raises various exceptions
        return "its statistics cannot be read"
    sums = (statistics.total, statistics.squares)
    valid = all(array.shape == (dim,) and array.dtype == np.float64 and np.isfinite(array).all() for array in sums)
    valid = (
        valid
        and 1 <= statistics.count <= _MAX_NOTES
        and bool((statistics.squares >= 0).all())
        and _consistent(statistics)
    )
    return statistics if valid else "its statistics are not count, sum and sum of squares of vectors"


def _consistent(statistics: FeatureStatistics) -> bool:
    """Whether vectors with these statistics can exist (Cauchy-Schwarz, with a tolerance for rounding)."""
    root, size = np.sqrt(statistics.squares), math.sqrt(statistics.count)
    return bool((np.abs(statistics.total) <= size * root * (1 + 1e-6)).all() and (root <= size * MAX_VALUE).all())


def read_counts(reply: Message, labels: LabelSpace) -> SiteCounts | str:
    """The evaluation counts in a reply, or why they are invalid."""
    if reply.has_error():
        return error_reason(reply.error)
    try:
        arrays = get_arrays(reply.content)
    except Exception:  # a damaged reply raises various exceptions
        return "its counts cannot be read"
    empty = SiteCounts.empty(labels).arrays()
    for name, expected in empty.items():
        array = arrays.get(name)
        if array is None or array.shape != expected.shape or array.dtype != expected.dtype:
            return f"{name} is missing or has another shape"
        if not np.isfinite(array).all() or (array < 0).any():
            return f"{name} contains values that are not counts"
    counts = SiteCounts(**{name: arrays[name] for name in empty})
    return counts if _possible_counts(counts) else "its counts are inconsistent"


def _possible_counts(counts: SiteCounts) -> bool:
    """Whether notes with these counts can exist."""
    notes, labels = int(counts.notes[0]), counts.hits.shape[1]
    tp, fp, fn = counts.hits
    return bool(
        notes <= _MAX_NOTES
        and counts.outside[0] <= notes * _MAX_CODES_PER_NOTE
        and (counts.true <= counts.cells).all()
        and counts.cells.max() <= notes * labels  # else the sum could overflow
        and counts.cells.sum() <= notes * labels
        and counts.hits.max(initial=0) <= notes
        and (tp + fp + fn).max(initial=0) <= notes
        and counts.precision[0] <= counts.precision[1] <= notes
        and counts.exact[0] <= notes
    )
