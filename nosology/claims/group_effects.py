"""What codes do to the payment groups of an encounter: on which ones its DRG depends, what one more would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nosology.claims.checks import PROCEDURES, AssignedCode, AssignedCodes
from nosology.claims.grouping import DrgGroup, HccScore, group_drg, score_hcc
from nosology.core import Code


@dataclass(frozen=True, slots=True)
class DrgDriver:
    """Codes on which the DRG depends: without all of them it would be another one.

    Each driver has one code, unless several have the same effect and each of them suffices. role: principal diagnosis,
    MCC, CC, diagnosis or procedure. without: the DRG without them; None for the principal diagnosis.
    """

    codes: tuple[Code, ...]
    role: str
    without: DrgGroup | None = None


def drg_drivers(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> list[DrgDriver]:
    """The codes on which the DRG depends, by leaving out each; empty without a DRG."""
    group = group_drg(assigned, encounter)
    if group.drg is None or assigned.principal is None:
        return []
    others = [code for code in assigned.codes if code != assigned.principal]

    def role(code: Code) -> str:
        return "procedure" if code.system in PROCEDURES else group.severity.get(code, "diagnosis")

    drivers = [DrgDriver((assigned.principal,), "principal diagnosis")]
    for code in others:
        without = group_drg(_without(assigned, (code,)), encounter)
        if without.drg != group.drg:
            drivers.append(DrgDriver((code,), role(code), without))
    alone = {code for driver in drivers for code in driver.codes}
    explained: set[str] = set()
    for roles in (("MCC",), ("MCC", "CC"), ("procedure",)):
        codes = tuple(code for code in others if role(code) in roles and code not in alone)
        if len(codes) < 2 or explained & set(roles):
            continue
        without = group_drg(_without(assigned, codes), encounter)
        if without.drg != group.drg:
            drivers.append(DrgDriver(codes, " or ".join(roles), without))
            explained |= set(roles)
    return drivers


def _without(assigned: AssignedCodes, codes: tuple[Code, ...]) -> AssignedCodes:
    return AssignedCodes(tuple(item for item in assigned.chosen if item.code not in codes))


def drg_changed(
    before: AssignedCodes,
    after: AssignedCodes,
    encounter: Mapping[str, Any],
    encounter_after: Mapping[str, Any] | None = None,
) -> bool:
    """Whether two code sets of an encounter have different DRGs; a set without a DRG counts as changed.

    encounter_after: the data for the second set, if they differ.
    """
    drg = group_drg(before, encounter).drg
    return drg is None or drg != group_drg(after, encounter if encounter_after is None else encounter_after).drg


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The groups after a code is added as a secondary diagnosis or procedure; None: they stay the same.

    added, dropped: HCCs that count only after it, or only before it.
    """

    code: Code
    drg: DrgGroup | None
    risk: float = 0.0
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def group_change(assigned: AssignedCodes, code: Code, encounter: Mapping[str, Any]) -> GroupChange | None:
    """What a further code would change; None if it changes nothing, or if there is no principal diagnosis yet."""
    if assigned.principal is None:
        return None
    item = AssignedCode(code, "suggested")
    more = AssignedCodes((*assigned.chosen, item))
    before, after = group_drg(assigned, encounter), group_drg(more, encounter)
    changed = after if (after.drg, after.reason) != (before.drg, before.reason) else None
    risk, added, dropped = 0.0, (), ()
    if score_hcc(AssignedCodes((item,)), encounter).hcc:  # most codes have none
        old, new = score_hcc(assigned, encounter), score_hcc(more, encounter)
        risk = round((new.risk or 0.0) - (old.risk or 0.0), 4)
        added, dropped = _counted(new, old), _counted(old, new)
    return GroupChange(code, changed, risk, added, dropped) if changed or risk or added or dropped else None


def _counted(score: HccScore, other: HccScore) -> tuple[str, ...]:
    """The HCCs that count in one score and not in the other."""
    known = {it.number for it in other.categories if not it.dropped}
    return tuple(it.number for it in score.categories if not it.dropped and it.number not in known)
