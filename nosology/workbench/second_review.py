"""What second review changed: the codes that a coder finished against those that were approved. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nosology.claims.checks import AssignedCode
from nosology.core import Code
from nosology.workbench.replay import apply_stored
from nosology.workbench.review import ANY_LENGTH, EDITS, Details, Review, parse_code

REVIEW_CHANGES = {
    "added": "code added",
    "removed": "code removed",
    "changed": "code changed",
    "reordered": "order changed",
    "poa": "present on admission changed",
}


@dataclass(frozen=True, slots=True)
class ReviewChange:
    """A change of a kind of REVIEW_CHANGES; before, after: the code, its POA indicator, or the codes in their order."""

    kind: str
    code: Code | None
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SecondReview:
    """A second review that was approved: by whom, of whose codes, what it changed, and how often it sent them back.

    version: of the approval.
    """

    version: int
    coder: int | None
    reviewer: int | None
    returns: int
    changes: tuple[ReviewChange, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of changes that occur."""
        return frozenset(change.kind for change in self.changes)


def second_reviews(decisions: Iterable[tuple[str, Details, int | None]]) -> list[SecondReview]:
    """The approved second reviews in a history of (action, details, user).

    The coder's state is that of the last hand-over before another person changed codes or sent the note back, so
    what the coder corrects after that counts as a change by second review, too.
    """
    review, found = Review(), []
    base: Review | None = None  # as the coder handed it over
    replaced: dict[Code, Code] = {}  # code -> the code that it stands for, since then
    touched, returns = False, 0
    for action, details, user in decisions:
        before, review = review, apply_stored(review, action, details, user, length=ANY_LENGTH)
        if action in ("finish", "second") and review.status == "second" and (base is None or not touched):
            base, replaced, touched, returns = review, {}, False, 0
        elif action == "approve" and before.status == "second" and base is not None:
            changes = review_changes(base.chosen, review.chosen, replaced)
            found.append(SecondReview(review.version, base.coded_by, user, returns, changes))
            base = None
        elif base is not None:
            touched = touched or (user != base.coded_by and (action in EDITS or action == "return"))
            returns += action == "return"
            if action == "change":
                code = parse_code(details)
                replaced[parse_code(details, "to")] = replaced.get(code, code)
    return found


def review_changes(
    before: Sequence[AssignedCode], after: Sequence[AssignedCode], replaced: Mapping[Code, Code] | None = None
) -> tuple[ReviewChange, ...]:
    """The changes between two lists of codes; replaced: the code that a new code stands for."""
    old, new = {item.code: item for item in before}, {item.code: item for item in after}
    stands_for = _pairs(old, new, replaced or {})
    added = [code for code in new if code not in old and code not in stands_for]
    removed = [code for code in old if code not in new and code not in stands_for.values()]
    changes = [ReviewChange("added", code, "", code.code) for code in added]
    changes += [ReviewChange("removed", code, code.code, "") for code in removed]
    changes += [ReviewChange("changed", code, was.code, code.code) for code, was in stands_for.items()]
    kept = {code: stands_for.get(code, code) for code in new if code not in added}  # new code -> old code
    for code, was in kept.items():
        if new[code].poa != old[was].poa:
            changes.append(ReviewChange("poa", code, old[was].poa, new[code].poa))
    order = [code for code in old if code not in removed]
    if list(kept.values()) != order:
        names = {was: code.code for code, was in kept.items()}
        words = (", ".join(names[code] for code in codes) for codes in (order, kept.values()))
        changes.append(ReviewChange("reordered", None, *words))
    return tuple(changes)


def _pairs(old: Mapping[Code, object], new: Mapping[Code, object], replaced: Mapping[Code, Code]) -> dict[Code, Code]:
    """New code -> old code that it replaced; each old code is replaced once."""
    pairs: dict[Code, Code] = {}
    for code in new:
        was = replaced.get(code)
        if code not in old and was in old and was not in new and was not in pairs.values():
            pairs[code] = was
    return pairs
