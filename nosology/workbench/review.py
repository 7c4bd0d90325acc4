"""The review of a note: all decisions about it, applied in order to one state. Pure functions.

A decision is an action with details. `apply_decision` returns the next state or says why there is none. `replay`
applies a whole history. The database stores decisions only, so state and history cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nosology.claims.checks import PROCEDURES, AssignedCode, AssignedCodes
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
FIELDS = {  # the details of each action that a client sends; the other actions have none
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
_CLOSED = ("done", "preaccepted", "closed")


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


def apply_decision(review: Review, action: str, details: Details, user: int | None, *, length: int) -> Review:
    """The state after a decision; ReviewError says why it is invalid. length: characters of the note's text."""
    if action not in ACTIONS:
        raise ReviewError(f"action must be one of {', '.join(ACTIONS)}; got {_short(action)}")
    if action in EDITS and review.status in _CLOSED:
        raise ReviewError(f"the note is {STATUSES[review.status]}: reopen it before you change its codes")
    after = ACTIONS[action](review, details, user, length)
    if action in EDITS:
        status = "open" if review.status == "new" else review.status
        after = replace(after, status=status, assignee=user if review.assignee is None else review.assignee)
    if action != "undo":
        after = replace(after, action=action, user=user, step=str(details.get("key", "")), previous=review)
    keys = review.keys | {details["key"]} if details.get("key") else review.keys
    return replace(after, version=review.version + 1, keys=keys)


def apply_stored(review: Review, action: str, details: Details, user: int | None, *, length: int) -> Review:
    """The state after a decision that was valid when it was made.

    One that the present rules refuse, such as the approval of a second review in a store of an older version, changes
    nothing but the version: the note must stay readable.
    """
    try:
        return apply_decision(review, action, details, user, length=length)
    except ReviewError:
        return replace(review, version=review.version + 1)


def replay(decisions: Iterable[tuple[str, Details, int | None]], *, length: int, stored: bool = False) -> Review:
    """The state after decisions (action, details, user) in order; stored: see apply_stored."""
    review, step = Review(), apply_stored if stored else apply_decision
    for action, details, user in decisions:
        review = step(review, action, details, user, length=length)
    return review


def parse_code(details: Details, name: str = "code") -> Code:
    """The code in a field of details, such as "icd10cm:I50.9"; ReviewError if it is invalid."""
    value = details.get(name)
    system, colon, raw = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or system not in SYSTEMS:
        raise ReviewError(f"{name} must be a system and a code such as icd10cm:I50.9; got {_short(value)}")
    try:
        return parse(raw, system).code
    except CodeError as error:
        raise ReviewError(f"{name} must be a code of {system}; got {_short(value)}") from error


def _short(value: object) -> str:
    """A value for a message. Long strings are not shown: they might be text of a note."""
    return repr(value) if isinstance(value, str) and len(value) <= 24 else f"a value of type {type(value).__name__}"


def _known_code(details: Details, name: str = "code") -> Code:
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


def _without(rejected: Mapping[Code, str], code: Code) -> dict[Code, str]:
    return {other: reason for other, reason in rejected.items() if other != code}


def _choose(review: Review, item: AssignedCode) -> Review:
    if review.find(item.code):
        raise ReviewError(f"{item.code.code} is chosen already")
    return replace(review, chosen=(*review.chosen, item), rejected=_without(review.rejected, item.code))


def _accept(review: Review, details: Details, user: int | None, length: int) -> Review:
    return _choose(review, AssignedCode(_known_code(details), "suggested"))


def _add(review: Review, details: Details, user: int | None, length: int) -> Review:
    return _choose(review, AssignedCode(_known_code(details), "added", evidence=evidence_spans(details, length)))


def _claim(review: Review, details: Details, user: int | None, length: int) -> Review:
    """A code of the proposed claim: suggested by the coder, or added by a rule."""
    rule = str(details.get("rule", ""))
    pairs = ({"start": start, "end": end} for start, end in details.get("evidence", ()))
    evidence = tuple(span for pair in pairs for span in evidence_spans(pair, length))
    origin, poa = "rule" if rule else "suggested", str(details.get("poa", ""))
    return _choose(review, AssignedCode(_known_code(details), origin, poa, evidence, rule=rule))


def _reject(review: Review, details: Details, user: int | None, length: int) -> Review:
    code, reason = parse_code(details), details.get("reason", "")
    if reason not in REASONS:
        raise ReviewError(f"reason must be one of {', '.join(REASONS)}; got {_short(reason)}")
    chosen = tuple(item for item in review.chosen if item.code != code)
    return replace(review, chosen=chosen, rejected={**_rejected_without(review, code), code: reason})


def _past(review: Review) -> Iterator[Review]:
    """The state and those before it, the newest first."""
    state: Review | None = review
    while state is not None:
        yield state
        state = state.previous


def _rejected_without(review: Review, code: Code) -> dict[Code, str]:
    """The rejected codes if a code is not chosen any more: those that it had replaced are open again."""
    gone, item = {code}, review.find(code)
    if item and item.instead_of:
        steps = (other for state in _past(review) for other in state.chosen if other.instead_of == item.instead_of)
        gone |= {item.instead_of, *(other.code for other in steps)}
    return {other: reason for other, reason in review.rejected.items() if other not in gone}


def _change(review: Review, details: Details, user: int | None, length: int) -> Review:
    """The old code is rejected as too unspecific if the new one is below it, else as replaced, or as `reason` says.

    A code that is changed again still stands for the first one. Changing it back to that one undoes the change.
    """
    code, to = parse_code(details), _known_code(details, "to")
    if review.find(to) or code == to:
        raise ReviewError(f"{to.code} is chosen already")
    reason = details.get("reason") or ("unspecific" if to.code.startswith(code.code) else "replaced")
    if reason not in REASONS:
        raise ReviewError(f"reason must be one of {', '.join(REASONS)}; got {_short(reason)}")
    old = review.find(code)
    first = old.instead_of if old and old.instead_of else code
    if first == to:
        origin = next((it.origin for state in _past(review) if (it := state.find(to))), "suggested")
        new = replace(old or AssignedCode(to, origin), code=to, origin=origin, instead_of=None, rule="")
        rejected = _rejected_without(review, code)
    else:
        new = replace(old or AssignedCode(code, "suggested"), code=to, origin="changed", instead_of=first, rule="")
        rejected = _without(review.rejected, to) | {code: reason}
    chosen = tuple(new if item is old else item for item in review.chosen) if old else (*review.chosen, new)
    return replace(review, chosen=chosen, rejected=rejected)


def _clear(review: Review, details: Details, user: int | None, length: int) -> Review:
    """The code is open again, and so are the codes that it had replaced."""
    code = parse_code(details)
    if code not in review.rejected and not review.find(code):
        raise ReviewError(f"nothing has been decided about {code.code}")
    chosen = tuple(other for other in review.chosen if other.code != code)
    return replace(review, chosen=chosen, rejected=_rejected_without(review, code))


def _undo(review: Review, details: Details, user: int | None, length: int) -> Review:
    """The state before the last edit of the same person; decisions of one step are undone together."""
    if review.previous is None or review.action not in EDITS:
        raise ReviewError("there is no decision on a code to undo")
    if review.user != user:
        raise ReviewError("the last decision is another person's: change the code instead")
    before = review.previous
    while before.user == user and before.previous is not None and _is_one_step(before, review):
        before = before.previous
    return replace(before, status=review.status, assignee=review.assignee)


def _is_one_step(first: Review, last: Review) -> bool:
    """Whether two decisions were taken at once: they share a key, or are codes of a claim stored without keys."""
    if first.step != last.step:
        return False
    return bool(last.step) or first.action == last.action == "claim"


def _edit(review: Review, code: Code, **changes: Any) -> Review:
    """The review with one chosen entry changed."""
    if not review.find(code):
        raise ReviewError(f"{code.code} is not chosen")
    chosen = tuple(replace(item, **changes) if item.code == code else item for item in review.chosen)
    return replace(review, chosen=chosen)


def _evidence(review: Review, details: Details, user: int | None, length: int) -> Review:
    code, spans = parse_code(details), evidence_spans(details, length)
    if not spans:
        raise ReviewError("evidence needs start and end")
    item = review.find(code)
    marked = _edit(review, code, evidence=tuple(dict.fromkeys((*(item.evidence if item else ()), *spans))))
    left = tuple(it for it in review.removed.get(code, ()) if it.end <= spans[0].start or spans[0].end <= it.start)
    return replace(marked, removed={**review.removed, code: left})


def _unmark(review: Review, details: Details, user: int | None, length: int) -> Review:
    """Takes evidence away: every marked span of a chosen code that overlaps the given one, the coder's too."""
    code, spans = parse_code(details), evidence_spans(details, length)
    if not spans:
        raise ReviewError("unmark needs start and end")
    [gone], item = spans, review.find(code)
    kept = tuple(it for it in (item.evidence if item else ()) if it.end <= gone.start or gone.end <= it.start)
    removed = {**review.removed, code: (*review.removed.get(code, ()), gone)}
    return replace(_edit(review, code, evidence=kept), removed=removed)


def _poa(review: Review, details: Details, user: int | None, length: int) -> Review:
    code, poa = parse_code(details), details.get("poa")
    if poa not in POA:
        raise ReviewError(f"poa must be one of {', '.join(filter(None, POA))} or empty; got {_short(poa)}")
    if code.system in PROCEDURES:
        raise ReviewError("present on admission applies to diagnoses, not to procedures")
    return _edit(review, code, poa=poa)


def _order(review: Review, details: Details, user: int | None, length: int) -> Review:
    raw = details.get("codes")
    order = [parse_code({"code": value}) for value in raw] if isinstance(raw, list) else []
    if sorted(order) != sorted(review.codes):
        raise ReviewError("codes must be the chosen codes, each once, in their new order")
    by_code = {item.code: item for item in review.chosen}
    return replace(review, chosen=tuple(by_code[code] for code in order))


def _assign(review: Review, details: Details, user: int | None, length: int) -> Review:
    assignee = details.get("user")
    if assignee is not None and type(assignee) is not int:
        raise ReviewError("user must be the id of a user, or null for unassigned")
    return replace(review, assignee=assignee)


def _status_change(before: tuple[str, ...], after: str) -> Action:
    """An action that changes the status from one of `before` to `after`."""

    def act(review: Review, details: Details, user: int | None, length: int) -> Review:
        if review.status not in before:
            allowed = " or ".join(STATUSES[status] for status in before)
            raise ReviewError(f"that is for notes that are {allowed}; this one is {STATUSES[review.status]}")
        return replace(review, status=after, finished_by=user if after in ("second", "done") else None)

    return act


def _hold(review: Review, details: Details, user: int | None, length: int) -> Review:
    held = _status_change(("new", "open", "second"), "held")(review, details, user, length)
    query = details.get("query")
    return replace(held, held_from=review.status, finished_by=review.finished_by, held_for=query)


def _resume(review: Review, details: Details, user: int | None, length: int) -> Review:
    """A second review on hold stays one, and the person who asked for it still cannot approve it."""
    status = "second" if review.held_from == "second" else "open"
    resumed = _status_change(("held",), status)(review, details, user, length)
    return replace(resumed, held_from="", held_for=None, finished_by=review.finished_by)


def _second(review: Review, details: Details, user: int | None, length: int) -> Review:
    """Whose codes are reviewed cannot approve them: who asked first, or who had finished the note."""
    asked = _status_change(("new", "open", "preaccepted", "done"), "second")(review, details, user, length)
    coded_by = review.coded_by if review.status == "done" else user
    second_of = next((it for it in (review.second_of, review.finished_by) if it is not None), user)
    return replace(asked, second_of=second_of, coded_by=coded_by, sent_back="", sent_back_by=None)


def _finish(review: Review, details: Details, user: int | None, length: int) -> Review:
    """A note whose second review is still due goes back to it."""
    _check_override(details)
    after = "done" if review.second_of is None else "second"
    finished = _status_change(("new", "open"), after)(review, details, user, length)
    return replace(finished, coded_by=user, sent_back="", sent_back_by=None)


def _approve(review: Review, details: Details, user: int | None, length: int) -> Review:
    _check_override(details)
    if review.status == "second" and user is not None and user in (review.finished_by, review.second_of):
        raise ReviewError("a second review is another person's task: you coded this note or asked for the review")
    done = _status_change(("second", "preaccepted"), "done")(review, details, user, length)
    return replace(done, second_of=None)


def _return(review: Review, details: Details, user: int | None, length: int) -> Review:
    """The note is its coder's again, with the reason. Its second review stays due."""
    reason = details.get("explanation", "")
    if not isinstance(reason, str) or not reason.strip() or len(reason) > MAX_OVERRIDE:
        raise ReviewError(f"a note is sent back with an explanation of 1 to {MAX_OVERRIDE} characters")
    if user is not None and user in (review.finished_by, review.second_of):
        raise ReviewError("a second review is another person's task: you asked for this one")
    opened = _status_change(("second",), "open")(review, details, user, length)
    coder = review.coded_by if review.coded_by is not None else review.second_of
    return replace(opened, assignee=coder, sent_back=reason.strip(), sent_back_by=user)


def _check_override(details: Details) -> None:
    reason = details.get("override", "")
    if not isinstance(reason, str) or len(reason) > MAX_OVERRIDE or (reason and not reason.strip()):
        raise ReviewError(f"override must be a reason of 1 to {MAX_OVERRIDE} characters")


def _document(review: Review, details: Details, user: int | None, length: int) -> Review:
    """A document that came later, or a corrected one: `replaces` is the document whose text it corrects."""
    if "replaces" not in details:
        return _reopened(review)
    return _without_document(review, details["replaces"], "corrected", details)


def _withdraw(review: Review, details: Details, user: int | None, length: int) -> Review:
    return _without_document(review, details.get("document"), "withdrawn", details)


def _without_document(review: Review, document: object, state: str, details: Details) -> Review:
    """The review without a document whose characters are start to end; evidence in it does not count any more."""
    if type(document) is not int or document in review.documents or not evidence_spans(details, length=1 << 60):
        raise ReviewError("the encounter has no such document, or it was withdrawn or corrected already")
    start, end = details["start"], details["end"]
    chosen = tuple(
        replace(item, evidence=tuple(it for it in item.evidence if it.end <= start or end <= it.start))
        for item in review.chosen
    )
    return _reopened(replace(review, chosen=chosen, documents={**review.documents, document: state}))


def _encounter(review: Review, details: Details, user: int | None, length: int) -> Review:
    """New data of the encounter; see encounter_data.changed_fields, which has checked them."""
    changes = details.get("encounter")
    if not isinstance(changes, Mapping) or not changes:
        raise ReviewError("encounter needs the data that change")
    return _reopened(replace(review, encounter={**review.encounter, **changes}))


def _reopened(review: Review) -> Review:
    """The review in work again if it was closed: the codes were chosen for other documents or data."""
    return replace(review, status="open", finished_by=None) if review.status in ("done", "preaccepted") else review


def _preaccept(review: Review, details: Details, user: int | None, length: int) -> Review:
    if review.status != "new" or review.assignee is not None:
        raise ReviewError("only a note without decisions can be pre-accepted")
    codes = dict.fromkeys(_known_code({"code": value}) for value in details.get("codes") or ())
    return replace(review, chosen=tuple(AssignedCode(code, "triage") for code in codes), status="preaccepted")


def _adjudicate(review: Review, details: Details, user: int | None, length: int) -> Review:
    """The final codes of a note that two people have coded; `choices` of the details say who was right about what."""
    _check_override(details)
    if review.status != "done":
        raise ReviewError("only a finished note is adjudicated")
    chosen = tuple(_final_code(value, length) for value in details.get("final", ()))
    if len({item.code for item in chosen}) < len(chosen):
        raise ReviewError("final must have each code once")
    rejected = {code: reason for code, reason in review.rejected.items() if all(code != it.code for it in chosen)}
    return replace(review, chosen=chosen, rejected=rejected, finished_by=user)


def _final_code(value: Details, length: int) -> AssignedCode:
    pairs = ({"start": start, "end": end} for start, end in value.get("evidence", ()))
    spans = tuple(span for pair in pairs for span in evidence_spans(pair, length))
    instead_of = parse_code(value, "instead_of") if value.get("instead_of") else None
    origin, poa, rule = (str(value.get(name, "")) for name in ("origin", "poa", "rule"))
    return AssignedCode(_known_code(value), origin, poa, spans, instead_of, rule)


ACTIONS: dict[str, Action] = {
    "accept": _accept,
    "reject": _reject,
    "change": _change,
    "add": _add,
    "claim": _claim,
    "clear": _clear,
    "evidence": _evidence,
    "unmark": _unmark,
    "undo": _undo,
    "order": _order,
    "poa": _poa,
    "assign": _assign,
    "hold": _hold,
    "resume": _resume,
    "second": _second,
    "finish": _finish,
    "approve": _approve,
    "return": _return,
    "reopen": _status_change(("done", "preaccepted", "second"), "open"),
    "preaccept": _preaccept,
    "document": _document,
    "withdraw": _withdraw,
    "encounter": _encounter,
    "adjudicate": _adjudicate,
    "close": _status_change(("done",), "closed"),
}
