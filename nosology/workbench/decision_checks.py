"""Checks of a decision before it is recorded: who may take it, and whether the codes can be finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nosology.claims.encounter_checks import check_encounter
from nosology.core import ReviewError
from nosology.workbench.accounts import Forbidden, User
from nosology.workbench.cases import Case

INTERNAL_ACTIONS = {  # that no client sends as a decision, and why
    "preaccept": "only the triage rule pre-accepts notes",
    "document": "only an import adds documents",
    "adjudicate": "two codings become one on the page of their adjudication",
    "close": "a copy is closed when its double coding is",
}
REVIEWER_ACTIONS = {  # that only reviewers take
    "approve": "a second review is for people with the role reviewer",
    "return": "a second review is for people with the role reviewer",
    "withdraw": "documents are withdrawn by people with the role reviewer",
}


def check_role(user: User, action: str) -> None:
    """Raises Forbidden for an action that no client sends, or for which the user has not the role."""
    if action in INTERNAL_ACTIONS:
        raise Forbidden(INTERNAL_ACTIONS[action])
    if action in REVIEWER_ACTIONS and not user.has_role("reviewer"):
        raise Forbidden(REVIEWER_ACTIONS[action])


def check_assignee(user: User, case: Case) -> None:
    """Raises Forbidden if the note is somebody else's and the user is no reviewer."""
    if case.review.assignee not in (None, user.id) and not user.has_role("reviewer"):
        raise Forbidden("the note is assigned to somebody else; a reviewer can change it or assign it to you")


class UnfinishedCodes(ReviewError):
    """The codes of a note have errors; an override with a reason finishes it all the same."""


def check_finished(case: Case, details: Mapping[str, Any], *, is_asked: bool = False) -> None:
    """Raises UnfinishedCodes for a note without codes, or with codes that cannot be billed or exclude each other.

    is_asked: whether a physician has not answered a query yet, which is a reason, too.
    """
    if details.get("override"):
        return
    if is_asked:
        raise UnfinishedCodes("a query to a physician is open: wait for the answer, withdraw it, or give a reason")
    if not case.review.chosen:
        raise UnfinishedCodes("the note has no code: code it, or finish it with a reason")
    issues = check_encounter(case.review, case.note["encounter"], case.note["text"], case.evidence())
    errors = [issue.message for issue in issues if issue.level == "error"]
    if errors:
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise UnfinishedCodes(
            f"the codes cannot be billed as they are: {errors[0]}{more}; correct them, or give a reason"
        )
