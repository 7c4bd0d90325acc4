"""Decisions on a note, applied in order to the state of its review. Pure functions.

`apply_decision` returns the next state or says why there is none. `replay` applies a whole history. The database stores
decisions only, so state and history cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nosology.core import ReviewError
from nosology.workbench.review import CLOSED_STATUSES, EDITS, STATUSES, Details, Review, short_value
from nosology.workbench.review_actions import ACTIONS


def apply_decision(review: Review, action: str, details: Details, user: int | None, *, length: int) -> Review:
    """The state after a decision; ReviewError says why it is invalid. length: characters of the note's text."""
    if action not in ACTIONS:
        raise ReviewError(f"action must be one of {', '.join(ACTIONS)}; got {short_value(action)}")
    if action in EDITS and review.status in CLOSED_STATUSES:
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


def stored_decisions(rows: Iterable[Mapping[Any, Any]]) -> Iterator[tuple[str, Details, int | None]]:
    """(action, details, user) of rows of decisions."""
    return ((row["action"], row["details"], row["user_id"]) for row in rows)
