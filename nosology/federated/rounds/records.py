"""What travels between server and sites, as Flower's records: names, arrays, JSON, errors."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

Arrays = dict[str, np.ndarray]

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # the records of a message

FACTS, STATISTICS, PREPARE = "query.facts", "query.statistics", "query.prepare"
TRAIN, EVALUATE = "train", "evaluate"

REFUSED = 1001  # error: a sentence for the user; it never holds data
FAILED = 1002  # error: an exception of which only the kind is told
UNPREPARED = 1003  # error: the site has lost (or never got) labels and scaler

_FLOWER = {  # what Flower's own errors mean; their reasons may quote data and are not shown
    1: "its app could not be loaded",
    2: "its app raised an exception",
    3: "the message did not reach it",
    4: "its reply was lost",
    5: "it cannot be reached",
    7: "its app is not the one that was sent",
    8: "its app crashed",
}


def to_record(arrays: Arrays) -> ArrayRecord:
    """Arrays by name as Flower's record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """The arrays that `to_record` took, each a copy of its own."""
    return {name: array.numpy() for name, array in record.items()}


def content(arrays: Arrays | ArrayRecord | None = None, **values: Any) -> RecordDict:
    """The content of a message: arrays, and values that are JSON or bytes."""
    records = RecordDict({CONFIG: ConfigRecord({name: _packed(value) for name, value in values.items()})})
    if arrays is not None:
        records[ARRAYS] = arrays if isinstance(arrays, ArrayRecord) else to_record(arrays)
    return records


def value(message_content: RecordDict, name: str) -> Any:
    """A value that `content` took."""
    packed = message_content[CONFIG][name]
    return packed if isinstance(packed, bytes) else json.loads(packed)


def _packed(given: Any) -> str | bytes:
    return given if isinstance(given, bytes) else json.dumps(given, ensure_ascii=False, allow_nan=False)


def reason_of(error: Error) -> str:
    """Why a site failed: its own sentence, or what kind of error it is; never what an exception quotes."""
    if error.code in (REFUSED, FAILED, UNPREPARED):
        return " ".join((error.reason or "no reason given").split())
    said = _FLOWER.get(error.code, f"error {error.code}")
    kind = re.match(r"<class '([\w.]+)'>", error.reason or "")
    return f"{said} ({kind[1].rpartition('.')[2]})" if kind else said


def failed(code: int, reason: str, message: Message) -> Message:
    """The reply of a site that cannot do what a message asks."""
    return Message(Error(code, reason), reply_to=message)
