"""The decisions that a request asks for: one, or a step of several, which are undone together by their common key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from nosology.claims.checks import codes_without_poa
from nosology.core import ConfigError, ReviewError
from nosology.workbench.cases import Case
from nosology.workbench.document_import import withdrawal_details
from nosology.workbench.encounter_services import encounter_details
from nosology.workbench.proposals import claim_decision, open_codes, propose_claim
from nosology.workbench.review import ACTION_FIELDS, Details

Decision = tuple[str, Details]


def requested_decisions(case: Case, action: str, values: Mapping[str, Any]) -> list[Decision]:
    """The decisions (action, details) that a request asks for; of `values`, only the fields of the action are stored.

    A step has one decision for each code; ReviewError if there is none.
    """
    if action in STEPS:
        key = values.get("key") or uuid4().hex
        return [(each, {**details, "key": key}) for each, details in STEPS[action](case, values)]
    if action == "withdraw":
        details = withdrawal_details(case, values.get("document"))
    elif action == "encounter":
        details = encounter_details(case, values.get("encounter"))
    else:
        details = {name: values[name] for name in ACTION_FIELDS.get(action, ()) if name in values}
    return [(action, details | ({"key": values["key"]} if values.get("key") else {}))]


def shown_chances(case: Case) -> list[int]:
    """The probabilities in percent, as they are shown, of the codes among which the step accept_all chooses."""
    return [chance for chance, _, _ in _acceptable(case)]


def _acceptable(case: Case) -> list[tuple[int, str, Details]]:
    """(percent, action, details) of the open codes of the proposed claim; without a claim, of the open suggestions."""
    try:
        items = open_codes(case, propose_claim(case))
        return [(round(100 * item.probability), "claim", claim_decision(item)) for item in items]
    except ReviewError:
        return []  # not coded yet
    except ConfigError:  # a date without ICD-10-CM
        decided = {*case.review.codes, *case.review.rejected}
        return [
            (round(100 * item.probability), "accept", {"code": str(code)})
            for code, item in case.suggested.items()
            if code not in decided
        ]


def _accept_claim(case: Case, values: Mapping[str, Any]) -> list[Decision]:
    """Every open code of the proposed claim."""
    taken: list[Decision] = [("claim", claim_decision(item)) for item in open_codes(case, propose_claim(case))]
    if not taken:
        raise ReviewError("the proposed claim has no code that is still to be decided")
    return taken


def _accept_all(case: Case, values: Mapping[str, Any]) -> list[Decision]:
    """Every open code whose probability, rounded to percent as it is shown, is at least the threshold."""
    threshold = values.get("threshold")
    if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise ReviewError("threshold must be a number from 0 to 1")
    percent = round(100 * threshold)
    taken: list[Decision] = [
        (action, {**details, "threshold": percent / 100})
        for chance, action, details in _acceptable(case)
        if chance >= percent
    ]
    if not taken:
        raise ReviewError(f"no open code has a probability of {percent} % or more")
    return taken


def _set_poa(case: Case, values: Mapping[str, Any]) -> list[Decision]:
    """Present on admission Y for every diagnosis that has no indicator and is not exempt."""
    missing = codes_without_poa(case.review, case.note["encounter"])
    if not missing:
        raise ReviewError("every diagnosis has an indicator or is exempt")
    return [("poa", {"code": str(code), "poa": "Y"}) for code in missing]


STEPS: dict[str, Callable[[Case, Mapping[str, Any]], list[Decision]]] = {
    "claim": _accept_claim,
    "accept_all": _accept_all,
    "poa_all": _set_poa,
}
