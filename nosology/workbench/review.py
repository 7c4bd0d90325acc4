"""The state of a note's review, the words for it, and the values in the details of a decision.

A decision is an action with details; see replay.py, which applies decisions, and review_actions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from nosology.claims.checks import AssignedCodes
from nosology.codes import is_known, parse
from nosology.core import SYSTEMS, Code, CodeError, ReviewError, Span

STATUSES = {
    "new": "new",
    "open": "in work",
    "held": "on hold",
    "second": "second review",
    "preaccepted": "pre-accepted",
    "done": "done",
    "closed": "closed",  # a copy for double coding, once both codings are one
}
REASONS = {
    "not_documented": "not documented in the note",
    "negated": "negated or ruled out",
    "history": "history only, not treated now",
    "integral": "integral to another code",
    "unspecific": "too unspecific",
    "replaced": "replaced by another code",
    "wrong": "wrong code for what is documented",
    "other": "another reason",
}
POA = {"": "not set", "Y": "yes", "N": "no", "U": "unknown", "W": "undetermined", "1": "exempt"}
EDITS = ("accept", "reject", "change", "add", "clear", "evidence", "unmark", "order", "poa", "claim", "undo")
ACTION_FIELDS = {  # the details of each action that a client sends; the other actions have none
    "accept": ("code",),
    "reject": ("code", "reason"),
    "change": ("code", "to", "reason"),
    "add": ("code", "start", "end"),
    "clear": ("code",),
    "evidence": ("code", "start", "end"),
    "unmark": ("code", "start", "end"),
    "poa": ("code", "poa"),
    "order": ("codes",),
    "assign": ("user",),
    "finish": ("override",),
    "approve": ("override",),
    "withdraw": ("document",),
    "encounter": ("encounter",),
    "return": ("explanation",),
}
SHARED_ACTIONS = ("document", "withdraw", "encounter")  # about an encounter, whoever codes it
MAX_OVERRIDE = 500  # characters of a reason
ANY_LENGTH = 1 << 60  # in place of the length of a text that was not read
CLOSED_STATUSES = ("done", "preaccepted", "closed")


class NotFound(ReviewError):
    """The requested note, user, batch or page does not exist."""


@dataclass(frozen=True, slots=True)
class Review(AssignedCodes):
    """The state of a note: chosen codes in order, rejected codes with reasons, status, assignee and version.

    removed: evidence that a person took away, by code. held_from: the status to which a note on hold returns;
    held_for: the query for whose answer it waits. coded_by: who finished it, before second review.
    sent_back: why second review sent it back, until it is finished again.
    second_of: whose codes wait for a second review that nobody has approved yet. keys: of decisions; a decision that is
    sent again has the same key. documents: the state of those that are not current, by id. encounter: the data of the
    encounter that people have set; None: that they have cleared. action, user and previous: the last action, whose it
    was, and the state before it. step: the key of the last decision, which those of one request share.
    """

    rejected: Mapping[Code, str] = field(default_factory=dict)
    removed: Mapping[Code, tuple[Span, ...]] = field(default_factory=dict)
    status: str = "new"
    assignee: int | None = None
    version: int = 0
    finished_by: int | None = None
    held_from: str = ""
    held_for: int | None = None
    coded_by: int | None = None
    sent_back: str = ""
    sent_back_by: int | None = None
    second_of: int | None = None
    documents: Mapping[int, str] = field(default_factory=dict)
    encounter: Mapping[str, Any] = field(default_factory=dict)
    keys: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    action: str = field(default="", compare=False)
    user: int | None = field(default=None, compare=False)
    step: str = field(default="", compare=False)
    previous: Review | None = field(default=None, compare=False, repr=False)


Details = Mapping[str, Any]
Action = Callable[[Review, Details, int | None, int], Review]  # (review, details, user, length of the note's text)


def parse_code(details: Details, name: str = "code") -> Code:
    """The code in a field of details, such as "icd10cm:I50.9"; ReviewError if it is invalid."""
    value = details.get(name)
    system, colon, raw = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or system not in SYSTEMS:
        raise ReviewError(f"{name} must be a system and a code such as icd10cm:I50.9; got {short_value(value)}")
    try:
        return parse(raw, system).code
    except CodeError as error:
        raise ReviewError(f"{name} must be a code of {system}; got {short_value(value)}") from error


def short_value(value: object) -> str:
    """A value for a message. Long strings are not shown: they might be text of a note."""
    return repr(value) if isinstance(value, str) and len(value) <= 24 else f"a value of type {type(value).__name__}"


def known_code(details: Details, name: str = "code") -> Code:
    """The code in a field of details; ReviewError if no release has it."""
    code = parse_code(details, name)
    if not is_known(code):
        raise ReviewError(f"no release of {code.system} has {code.code}")
    return code


def evidence_spans(details: Details, length: int) -> tuple[Span, ...]:
    """The span of start and end in details, or none."""
    if "start" not in details and "end" not in details:
        return ()
    start, end = details.get("start"), details.get("end")
    if not (type(start) is int and type(end) is int and 0 <= start < end <= length):
        raise ReviewError(f"evidence must be characters start < end within the note's {length:,}; got something else")
    return (Span(start, end),)


class HasSpan(Protocol):
    """Something with a place in the text of a note."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


S = TypeVar("S", bound=HasSpan)


def spans_outside(spans: Iterable[S], others: Iterable[HasSpan]) -> tuple[S, ...]:
    """The spans that overlap none of the others."""
    others = tuple(others)
    return tuple(it for it in spans if all(it.end <= other.start or other.end <= it.start for other in others))
