"""The actions of decisions on a note, by name: each gives the next state of the review. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nosology.claims.checks import PROCEDURES, AssignedCode
from nosology.core import Code, ReviewError
from nosology.workbench.review import (
    ANY_LENGTH,
    EDITS,
    MAX_OVERRIDE,
    POA,
    REASONS,
    STATUSES,
    Action,
    Details,
    Review,
    evidence_spans,
    known_code,
    parse_code,
    short_value,
    spans_outside,
)


def _without(rejected: Mapping[Code, str], code: Code) -> dict[Code, str]:
    return {other: reason for other, reason in rejected.items() if other != code}


def _choose(review: Review, item: AssignedCode) -> Review:
    if review.find(item.code):
        raise ReviewError(f"{item.code.code} is chosen already")
    return replace(review, chosen=(*review.chosen, item), rejected=_without(review.rejected, item.code))


def _accept(review: Review, details: Details, user: int | None, length: int) -> Review:
    return _choose(review, AssignedCode(known_code(details), "suggested"))


def _add(review: Review, details: Details, user: int | None, length: int) -> Review:
    return _choose(review, AssignedCode(known_code(details), "added", evidence=evidence_spans(details, length)))


def _claim(review: Review, details: Details, user: int | None, length: int) -> Review:
    """A code of the proposed claim: suggested by the coder, or added by a rule."""
    rule = str(details.get("rule", ""))
    pairs = ({"start": start, "end": end} for start, end in details.get("evidence", ()))
    evidence = tuple(span for pair in pairs for span in evidence_spans(pair, length))
    origin, poa = "rule" if rule else "suggested", str(details.get("poa", ""))
    return _choose(review, AssignedCode(known_code(details), origin, poa, evidence, rule=rule))


def _reject(review: Review, details: Details, user: int | None, length: int) -> Review:
    code, reason = parse_code(details), details.get("reason", "")
    if reason not in REASONS:
        raise ReviewError(f"reason must be one of {', '.join(REASONS)}; got {short_value(reason)}")
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
    code, to = parse_code(details), known_code(details, "to")
    if review.find(to) or code == to:
        raise ReviewError(f"{to.code} is chosen already")
    reason = details.get("reason") or ("unspecific" if to.code.startswith(code.code) else "replaced")
    if reason not in REASONS:
        raise ReviewError(f"reason must be one of {', '.join(REASONS)}; got {short_value(reason)}")
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
    return replace(marked, removed={**review.removed, code: spans_outside(review.removed.get(code, ()), spans)})


def _unmark(review: Review, details: Details, user: int | None, length: int) -> Review:
    """The review without evidence: every marked span of a code that overlaps the given one, the coder's too."""
    code, spans = parse_code(details), evidence_spans(details, length)
    if not spans:
        raise ReviewError("unmark needs start and end")
    item = review.find(code)
    removed = {**review.removed, code: (*review.removed.get(code, ()), *spans)}
    return replace(_edit(review, code, evidence=spans_outside(item.evidence if item else (), spans)), removed=removed)


def _poa(review: Review, details: Details, user: int | None, length: int) -> Review:
    code, poa = parse_code(details), details.get("poa")
    if poa not in POA:
        raise ReviewError(f"poa must be one of {', '.join(filter(None, POA))} or empty; got {short_value(poa)}")
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
    gone = evidence_spans(details, ANY_LENGTH)
    if type(document) is not int or document in review.documents or not gone:
        raise ReviewError("the encounter has no such document, or it was withdrawn or corrected already")
    chosen = tuple(replace(item, evidence=spans_outside(item.evidence, gone)) for item in review.chosen)
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
    codes = dict.fromkeys(known_code({"code": value}) for value in details.get("codes") or ())
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
    return AssignedCode(known_code(value), origin, poa, spans, instead_of, rule)


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
