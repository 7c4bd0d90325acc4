"""The documentation gaps of an encounter as a record, which runs of `nosology gaps` and the workbench store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from nosology.claims.claim import Claim, build_claim
from nosology.claims.documentation_gaps import Gap, Weights, find_gaps
from nosology.claims.encounter import stated_fields
from nosology.claims.gap_ranking import EncounterGap
from nosology.core import ConfigError, DataError, Note, Suggestion
from nosology.corpora.plain_text import check_text

if TYPE_CHECKING:
    from nosology.models.siblings.sibling_chooser import SiblingChooser

NOT_STATED = "not stated"  # the specialty of a note without one


class PlacedNote(NamedTuple):
    """A note, and its place in a file for messages."""

    note: Note
    where: str


@dataclass(frozen=True)
class GapFinder:
    """Finds the gaps of notes. suggest: the suggestions of a coder that was loaded for claims. weights: of the DRGs.

    chooser: of the coder, for the claims.
    """

    suggest: Callable[[Note], Sequence[Suggestion]]
    weights: Weights = field(default_factory=dict)
    chooser: SiblingChooser | None = None

    def __call__(self, item: PlacedNote) -> dict[str, Any]:
        """The record of an encounter; with an error in place of gaps if a field is wrong, or the note no plain text."""
        note = item.note
        head: dict[str, Any] = {"id": note.id, "specialty": specialty_of(note.extra)}
        try:
            check_text(note.text, "the note")
            suggestions = self.suggest(note)
            claim = build_claim(note.id, note.text, suggestions, stated_fields(note), chooser=self.chooser)
        except (ConfigError, DataError) as error:
            return head | {"error": f"{item.where}: {error}"}
        gaps = find_gaps(claim, self.weights)
        words = [[" ".join(text.split()) for text in claim.words(gap.evidence)] for gap in gaps]
        record = head | gap_record(claim, gaps)
        return record | {"gaps": [gap | {"words": found} for gap, found in zip(record["gaps"], words)]}


def specialty_of(fields: Mapping[str, Any]) -> str:
    """The specialty or service among the fields of an encounter."""
    return str(fields.get("specialty") or fields.get("service") or "").strip() or NOT_STATED


def gap_record(claim: Claim, gaps: Iterable[Gap]) -> dict[str, Any]:
    """The codes of a claim and its gaps, without words of the note."""
    return {"codes": [item.code for item in claim.codes], "gaps": [gap.to_json() for gap in gaps]}


@dataclass
class GapRecords:
    """What some records have: gaps, how often each code is in the claims, and encounters of each specialty.

    failed: the number of records with an error, whose encounters do not count.
    """

    found: list[EncounterGap] = field(default_factory=list)
    frequency: Counter[str] = field(default_factory=Counter)
    encounters: Counter[str] = field(default_factory=Counter)
    failed: int = 0

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> GapRecords:
        """The gaps of records in their order."""
        result = cls()
        for record in records:
            if "error" in record:
                result.failed += 1
                continue
            result.encounters[record["specialty"]] += 1
            result.frequency.update(record["codes"])
            for gap in record["gaps"]:
                words = tuple(gap.get("words", ()))
                result.found.append(EncounterGap(str(record["id"]), record["specialty"], Gap.of_json(gap), words))
        return result
