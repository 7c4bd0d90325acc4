"""The panel of payment groups: the DRG with its weight and the codes behind it, HCCs, what open codes would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nosology.claims.claim import Claim
from nosology.claims.drg_weights import DrgWeight
from nosology.claims.group_effects import DrgDriver, GroupChange, drg_drivers, group_change
from nosology.claims.grouping import DrgGroup, HccScore, PaymentGroups, group_drg, score_hcc
from nosology.core import Code, ConfigError, ReviewError
from nosology.workbench.cases import Case
from nosology.workbench.proposals import open_codes, propose_claim

Weights = Mapping[int, Mapping[int, DrgWeight]]


@dataclass(frozen=True, slots=True)
class ShownChange:
    """What an open code would change; weight: the difference, None if it is not known."""

    change: GroupChange
    weight: float | None

    @property
    def words(self) -> str:
        """The change in a few words, such as: would become DRG 291 (+0.4348)."""
        parts = []
        drg = self.change.drg
        if drg and drg.drg is not None:
            weight = "" if self.weight is None else f" ({self.weight:+.4f})"
            parts.append(f"would become DRG {drg.drg:03d}{weight}")
        elif drg:
            parts.append(f"no DRG: {drg.reason}")
        if self.change.added:
            parts.append(f"adds HCC {', '.join(self.change.added)}")
        if self.change.dropped:
            parts.append(f"drops HCC {', '.join(self.change.dropped)}")
        if self.change.risk:
            parts.append(f"risk {self.change.risk:+.3f}")
        return ", ".join(parts)


@dataclass(frozen=True)
class GroupPanel:
    """DRG and HCC of the chosen codes; changes: of open codes by key, in the order of the panel.

    proposed: the groups of the proposed claim, while it has open codes and another DRG.
    """

    drg: DrgGroup
    score: HccScore
    weight: DrgWeight | None = None
    weight_reason: str = ""
    drivers: list[DrgDriver] = field(default_factory=list)
    changes: Mapping[str, ShownChange] = field(default_factory=dict)
    proposed: PaymentGroups | None = None


def build_group_panel(case: Case, weights: Weights) -> GroupPanel | None:
    """The payment groups of a note; None if they are not known. The order of codes never depends on them."""
    review, encounter = case.review, case.note["encounter"]
    drg, score = group_drg(review, encounter), score_hcc(review, encounter)
    proposed = _proposed_groups(case, drg)
    if not (drg.drg or drg.reason or score.hcc or proposed):
        return None
    table = weights.get(drg.fiscal_year, {})
    reason = "" if drg.drg in table else _weight_reason(drg, weights)

    def shown(change: GroupChange) -> ShownChange:
        before, after = table.get(drg.drg or 0), table.get(change.drg.drg or 0) if change.drg else None
        return ShownChange(change, after.weight - before.weight if before and after else None)

    changes = [group_change(review, code, encounter) for code in _open_codes(case)]
    return GroupPanel(
        drg=drg,
        score=score,
        weight=table.get(drg.drg or 0),
        weight_reason=reason if drg.drg else "",
        drivers=drg_drivers(review, encounter),
        changes={str(change.code): shown(change) for change in changes if change},
        proposed=proposed,
    )


def _weight_reason(drg: DrgGroup, weights: Weights) -> str:
    if drg.fiscal_year in weights:
        return f"weight not known: CMS Table 5 of FY {drg.fiscal_year} has none"
    return f"weight not known: give CMS Table 5 of FY {drg.fiscal_year} with --drg-weights"


def _proposed_groups(case: Case, drg: DrgGroup) -> PaymentGroups | None:
    claim = _claim(case)
    groups = claim.groups if claim and open_codes(case, claim) else None
    return groups if groups and groups.drg and groups.drg != drg.drg else None


def _open_codes(case: Case) -> list[Code]:
    """The open suggestions above the threshold of the coder, then the other open codes of the proposed claim."""
    if case.review.status in ("done", "preaccepted"):
        return []
    decided = {*case.review.codes, *case.review.rejected}
    codes = [code for code, item in case.suggested.items() if item.accepted and code not in decided]
    if claim := _claim(case):
        codes += [Code(item.system, item.code) for item in open_codes(case, claim)]
    return list(dict.fromkeys(codes))


def _claim(case: Case) -> Claim | None:
    try:
        return propose_claim(case)
    except (ConfigError, ReviewError):  # no code set for the date, or not coded yet
        return None
