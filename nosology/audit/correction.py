"""What the correction of a finding does to the payment groups of a bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nosology.audit.finding import BilledCode, Finding, GroupEffect
from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.drg_weights import DrgWeight
from nosology.claims.grouping import DrgGroup, HccScore, group_drg, score_hcc
from nosology.core import Code

Weights = Mapping[int, Mapping[int, DrgWeight]]  # by fiscal year and DRG


def with_effects(
    findings: Sequence[Finding], billed: Sequence[BilledCode], encounter: Mapping[str, Any], weights: Weights
) -> list[Finding]:
    """The findings with their effects on DRG and HCC, each corrected alone."""
    before = assigned_codes(billed)
    drg, hcc = group_drg(before, encounter), score_hcc(before, encounter)
    if drg.drg is None and hcc.risk is None:
        return list(findings)
    result = []
    for item in findings:
        after = corrected(billed, item)
        if after != tuple(billed):
            codes = assigned_codes(after)
            effect = _effect(drg, group_drg(codes, encounter), hcc, score_hcc(codes, encounter), weights)
            item = replace(item, effect=effect)
        result.append(item)
    return result


def assigned_codes(billed: Sequence[BilledCode]) -> AssignedCodes:
    """The bill in the form that checks and groupers read."""
    return AssignedCodes(tuple(AssignedCode(item.code, "added", item.poa) for item in billed))


def corrected(billed: Sequence[BilledCode], finding: Finding) -> tuple[BilledCode, ...]:
    """The bill after the correction that a finding proposes; a conflict proposes none."""
    code = finding.code
    if finding.kind == "unsupported":
        return tuple(item for item in billed if item.code != code)
    if finding.kind == "not_billed":
        return (*billed, BilledCode(code))
    if finding.kind == "poa" and finding.instead:
        return tuple(replace(item, poa=finding.instead) if item.code == code else item for item in billed)
    if finding.kind == "sequencing":
        first = Code(code.system, finding.instead)
        return (
            *(item for item in billed if item.code == first),
            *(item for item in billed if item.code != first),
        )
    if finding.kind in ("less_specific", "more_specific", "other_code"):
        right = Code(code.system, finding.instead)
        return tuple(replace(item, code=right) if item.code == code else item for item in billed)
    return tuple(billed)


def _effect(old: DrgGroup, new: DrgGroup, before: HccScore, after: HccScore, weights: Weights) -> GroupEffect:
    earlier, later = (_weight(group, weights) for group in (old, new))
    counted = [{it.number for it in score.categories if not it.dropped} for score in (before, after)]
    return GroupEffect(
        drg=old.drg,
        drg_after=new.drg,
        weight=None if earlier is None or later is None else round(later - earlier, 4),
        risk=round(_risk_of_codes(after) - _risk_of_codes(before), 4),
        added=tuple(sorted(counted[1] - counted[0])),
        dropped=tuple(sorted(counted[0] - counted[1])),
    )


def _risk_of_codes(score: HccScore) -> float:
    """The risk score without its demographic part, which a bill without any diagnosis has, too."""
    return 0.0 if score.risk is None else score.risk - score.demographic


def _weight(group: DrgGroup, weights: Weights) -> float | None:
    found = weights.get(group.fiscal_year, {}).get(group.drg or 0)
    return found.weight if found else None
