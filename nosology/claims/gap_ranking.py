"""The documentation gaps of many encounters as a ranked list: specialty, what is missing, what it could change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from nosology.claims.documentation_gaps import Gap


class EncounterGap(NamedTuple):
    """A gap with the id and specialty of its encounter; words: of the note, as evidence."""

    id: str
    specialty: str
    gap: Gap
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EffectRange:
    """Sums over encounters of the least, the likely and the greatest change; encounters: those with a known change."""

    encounters: int
    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class RankedGap:
    """A kind of gap in one specialty.

    drg_can_change: encounters in which an answer gives another DRG; drg_likely: how many of them are to be expected.
    """

    specialty: str
    kind: str
    subject: str
    title: str
    encounters: int
    drg_can_change: int
    drg_likely: float
    weight: EffectRange
    risk: EffectRange

    def to_json(self) -> dict[str, Any]:
        """The values as one JSON object."""
        return asdict(self)


def rank_gaps(found: Iterable[EncounterGap], frequency: Mapping[str, int]) -> list[RankedGap]:
    """The gaps by specialty and subject, those with the largest likely change of DRG weight first.

    Without weights, those that are likely to change most DRGs; then by the likely change of the risk score, the
    encounters whose DRG can change, and all encounters. frequency: of the codes in the claims, see `answer_shares`.
    """
    groups: dict[tuple[str, str, str], list[EncounterGap]] = {}
    for item in found:
        groups.setdefault((item.specialty, item.gap.kind, item.gap.subject), []).append(item)
    ranked = [
        RankedGap(
            specialty=specialty,
            kind=kind,
            subject=subject,
            title=items[0].gap.title,
            encounters=len({item.id for item in items}),
            drg_can_change=len({item.id for item in items if item.gap.can_change_drg}),
            drg_likely=round(_drg_changes(items, frequency), 4),
            weight=_summed(items, "weight", frequency),
            risk=_summed(items, "risk", frequency),
        )
        for (specialty, kind, subject), items in groups.items()
    ]
    return sorted(ranked, key=_rank)


def _rank(item: RankedGap) -> tuple[Any, ...]:
    size = (-abs(item.weight.likely), -item.drg_likely, -abs(item.risk.likely), -item.drg_can_change)
    return (*size, -item.encounters, item.specialty, item.subject)


def answer_shares(gap: Gap, frequency: Mapping[str, int]) -> list[float]:
    """How likely each answer is: in proportion to the claims that have its code; empty if nothing is known.

    The answers of a query are usual ones, and each counts once more. Those of other gaps are all codes beside the open
    one, also very rare ones.
    """
    counts = [frequency.get(answer.code, 0) + bool(gap.question) for answer in gap.answers]
    return [count / total for count in counts] if (total := sum(counts)) else []


def likely_change(gap: Gap, of: Literal["weight", "risk"], frequency: Mapping[str, int]) -> float | None:
    """The mean change over the answers by `answer_shares`; None if changes or shares are not known."""
    known = [
        (value, share)
        for answer, share in zip(gap.answers, answer_shares(gap, frequency))
        if share and (value := getattr(answer, of)) is not None
    ]
    return sum(value * share for value, share in known) / sum(share for _, share in known) if known else None


def _drg_changes(items: Sequence[EncounterGap], frequency: Mapping[str, int]) -> float:
    """The likely number of encounters whose DRG an answer changes."""
    return sum(
        share
        for item in items
        for answer, share in zip(item.gap.answers, answer_shares(item.gap, frequency))
        if item.gap.changes_drg(answer)
    )


def _summed(items: Sequence[EncounterGap], of: Literal["weight", "risk"], frequency: Mapping[str, int]) -> EffectRange:
    low, likely, high, encounters = 0.0, 0.0, 0.0, 0
    for item in items:
        values = [value for answer in item.gap.answers if (value := getattr(answer, of)) is not None]
        if values:
            likely += likely_change(item.gap, of, frequency) or 0.0
            low, high, encounters = low + min(values), high + max(values), encounters + 1
    return EffectRange(encounters, round(low, 4), round(likely, 4), round(high, 4))


def summarise_specialties(found: Iterable[EncounterGap], encounters: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Encounters, encounters with gaps, and gaps of each kind, by specialty; encounters: of each specialty."""
    with_gaps: dict[str, set[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    for item in found:
        with_gaps.setdefault(item.specialty, set()).add(item.id)
        kinds.setdefault(item.specialty, Counter())[item.gap.kind] += 1
    return {
        name: {"encounters": count, "with_gaps": len(with_gaps.get(name, ())), **kinds.get(name, {})}
        for name, count in sorted(encounters.items())
    }
