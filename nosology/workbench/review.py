"""What has become of a note: its suggestions and everything people decided, folded into one state. Pure functions.

A decision is an action with details. `decide` gives the next state or says why there is none; `replay` folds a whole
history. The store keeps decisions only, so that a state can never disagree with its history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nosology.claims.assigned_codes import PROCEDURES, AssignedCode, AssignedCodes
from nosology.codes import is_known, parse
from nosology.core import SYSTEMS, Code, CodeError, ReviewError, Span

STATUSES = {
    "new": "new",
    "open": "in work",
    "held": "on hold",
    "second": "second review",
    "preaccepted": "pre-accepted",
    "done": "done",
}
REASONS = {
    "not_documented": "not documented in the note",
    "negated": "negated or ruled out",
    "history": "history only, not treated now",
    "integral": "integral to another code",
    "unspecific": "too unspecific",
    "wrong": "wrong code for what is documented",
    "other": "another reason",
}
POA = {"": "not set", "Y": "yes", "N": "no", "U": "unknown", "W": "undetermined", "1": "exempt"}
EDITS = ("accept", "reject", "change", "add", "clear", "evidence", "order", "poa")
FIELDS = {  # the details that each action reads; the others have none
    "accept": ("code",),
    "reject": ("code", "reason"),
    "change": ("code", "to"),
    "add": ("code", "start", "end"),
    "clear": ("code",),
    "evidence": ("code", "start", "end"),
    "poa": ("code", "poa"),
    "order": ("codes",),
    "assign": ("user",),
}
_CLOSED = ("done", "preaccepted")


class Missing(ReviewError):
    """There is no such thing."""


@dataclass(frozen=True, slots=True)
class Review(AssignedCodes):
    """A note's state: `chosen` in their order, rejected codes with their reason, and where the note stands."""

    rejected: Mapping[Code, str] = field(default_factory=dict)
    status: str = "new"
    assignee: int | None = None
    version: int = 0
    finished_by: int | None = None
    held_from: str = ""  # the status to which a note on hold goes back


def decide(review: Review, action: str, details: Mapping[str, Any], user: int | None, *, length: int) -> Review:
    """The state after a decision; ReviewError says why it cannot be made. length: characters of the note's text."""
    if action not in ACTIONS:
        raise ReviewError(f"action must be one of {', '.join(ACTIONS)}; got {_short(action)}")
    if action in EDITS and review.status in _CLOSED:
        raise ReviewError(f"the note is {STATUSES[review.status]}: reopen it before you change its codes")
    after = ACTIONS[action](review, details, user, length)
    if action in EDITS:
        status = "open" if review.status == "new" else review.status
        after = replace(after, status=status, assignee=user if review.assignee is None else review.assignee)
    return replace(after, version=review.version + 1)


def replay(decisions: Iterable[tuple[str, Mapping[str, Any], int | None]], *, length: int) -> Review:
    """The state after (action, details, user) each in turn."""
    review = Review()
    for action, details, user in decisions:
        review = decide(review, action, details, user, length=length)
    return review


def code_in(details: Mapping[str, Any], name: str = "code") -> Code:
    """The code that details name, as "icd10cm:I50.9"; ReviewError if it is none."""
    value = details.get(name)
    system, colon, raw = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or system not in SYSTEMS:
        raise ReviewError(f"{name} must be a system and a code such as icd10cm:I50.9; got {_short(value)}")
    try:
        return parse(raw, system).code
    except CodeError as error:
        raise ReviewError(f"{name} must be a code of {system}; got {_short(value)}") from error


def _short(value: object) -> str:
    """A value as a message may show it: nothing long, for it might be text of a note."""
    return repr(value) if isinstance(value, str) and len(value) <= 24 else f"a value of type {type(value).__name__}"


def _existing(details: Mapping[str, Any], name: str = "code") -> Code:
    code = code_in(details, name)
    if not is_known(code):
        raise ReviewError(f"no release of {code.system} has {code.code}")
    return code


def _spans(details: Mapping[str, Any], length: int) -> tuple[Span, ...]:
    """The stretch that details name by start and end, if any."""
    if "start" not in details and "end" not in details:
        return ()
    start, end = details.get("start"), details.get("end")
    if not (type(start) is int and type(end) is int and 0 <= start < end <= length):
        raise ReviewError(f"evidence must be characters start < end within the note's {length:,}; got something else")
    return (Span(start, end),)


def _add(review: Review, chosen: AssignedCode) -> Review:
    if review.of(chosen.code):
        raise ReviewError(f"{chosen.code.code} is chosen already")
    rejected = {code: reason for code, reason in review.rejected.items() if code != chosen.code}
    return replace(review, chosen=(*review.chosen, chosen), rejected=rejected)


def _accept(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    return _add(review, AssignedCode(_existing(details), "suggested"))


def _add_code(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    return _add(review, AssignedCode(_existing(details), "added", evidence=_spans(details, length)))


def _reject(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    code, reason = code_in(details), details.get("reason", "")
    if reason not in REASONS:
        raise ReviewError(f"reason must be one of {', '.join(REASONS)}; got {_short(reason)}")
    chosen = tuple(item for item in review.chosen if item.code != code)
    return replace(review, chosen=chosen, rejected={**review.rejected, code: reason})


def _change(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    code, to = code_in(details), _existing(details, "to")
    if review.of(to) or code == to:
        raise ReviewError(f"{to.code} is chosen already")
    old = review.of(code) or AssignedCode(code, "suggested")
    new = replace(old, code=to, origin="changed", instead_of=code)
    rejected = {**{kept: why for kept, why in review.rejected.items() if kept != to}, code: "unspecific"}
    if review.of(code):
        chosen = tuple(new if item.code == code else item for item in review.chosen)
    else:
        chosen = (*review.chosen, new)
    return replace(review, chosen=chosen, rejected=rejected)


def _clear(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    code = code_in(details)
    if code not in review.rejected and not review.of(code):
        raise ReviewError(f"nothing has been decided about {code.code}")
    return replace(
        review,
        chosen=tuple(item for item in review.chosen if item.code != code),
        rejected={kept: reason for kept, reason in review.rejected.items() if kept != code},
    )


def _edited(review: Review, code: Code, **changes: Any) -> Review:
    """The review with one chosen entry changed."""
    if not review.of(code):
        raise ReviewError(f"{code.code} is not chosen")
    return replace(
        review, chosen=tuple(replace(item, **changes) if item.code == code else item for item in review.chosen)
    )


def _evidence(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    code, spans = code_in(details), _spans(details, length)
    if not spans:
        raise ReviewError("evidence needs start and end")
    item = review.of(code)
    return _edited(review, code, evidence=tuple(dict.fromkeys((*(item.evidence if item else ()), *spans))))


def _poa(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    code, poa = code_in(details), details.get("poa")
    if poa not in POA:
        raise ReviewError(f"poa must be one of {', '.join(filter(None, POA))} or empty; got {_short(poa)}")
    if code.system in PROCEDURES:
        raise ReviewError("present on admission is said of diagnoses, not of procedures")
    return _edited(review, code, poa=poa)


def _order(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    raw = details.get("codes")
    wanted = [code_in({"code": value}) for value in raw] if isinstance(raw, list) else []
    if sorted(wanted) != sorted(review.codes):
        raise ReviewError("codes must be the chosen codes, each once, in their new order")
    by_code = {item.code: item for item in review.chosen}
    return replace(review, chosen=tuple(by_code[code] for code in wanted))


def _assign(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    to = details.get("user")
    if to is not None and type(to) is not int:
        raise ReviewError("user must be the number of a user, or null for nobody")
    return replace(review, assignee=to)


def _move(before: tuple[str, ...], after: str) -> Any:
    """An action that takes a note from one of some statuses to another."""

    def act(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
        if review.status not in before:
            allowed = " or ".join(STATUSES[status] for status in before)
            raise ReviewError(f"that is for notes that are {allowed}; this one is {STATUSES[review.status]}")
        return replace(review, status=after, finished_by=user if after in ("second", "done") else None)

    return act


def _hold(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    held = _move(("new", "open", "second"), "held")(review, details, user, length)
    return replace(held, held_from=review.status, finished_by=review.finished_by)


def _resume(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    """A second review that was put on hold is one still, and still not for the person who asked for it."""
    back = _move(("held",), "second" if review.held_from == "second" else "open")(review, details, user, length)
    return replace(back, held_from="", finished_by=review.finished_by)


def _approve(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    if review.status == "second" and user is not None and user == review.finished_by:
        raise ReviewError("a second review is another person's: you asked for this one")
    return _move(("second", "preaccepted"), "done")(review, details, user, length)


def _preaccept(review: Review, details: Mapping[str, Any], user: int | None, length: int) -> Review:
    if review.version:
        raise ReviewError("only a note that nobody has touched can be pre-accepted")
    codes = dict.fromkeys(_existing({"code": value}) for value in details.get("codes") or ())
    return replace(review, chosen=tuple(AssignedCode(code, "triage") for code in codes), status="preaccepted")


ACTIONS = {
    "accept": _accept,
    "reject": _reject,
    "change": _change,
    "add": _add_code,
    "clear": _clear,
    "evidence": _evidence,
    "order": _order,
    "poa": _poa,
    "assign": _assign,
    "hold": _hold,
    "resume": _resume,
    "second": _move(("new", "open", "preaccepted", "done"), "second"),
    "finish": _move(("new", "open"), "done"),
    "approve": _approve,
    "reopen": _move(("done", "preaccepted", "second"), "open"),
    "preaccept": _preaccept,
}
