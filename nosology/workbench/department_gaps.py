"""Documentation gaps of finished encounters: what their documents leave open about the final codes.

The claim of an encounter gives the questions; final codes take the place of its codes, so that a gap which people have
closed with a code is none. Stored are offsets and codes, and no words of the note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine

from nosology.claims.checks import AssignedCode
from nosology.claims.claim import Claim, ClaimCode
from nosology.claims.documentation_gaps import Gap, Weights, find_gaps
from nosology.claims.gap_ranking import EncounterGap, RankedGap, rank_gaps
from nosology.claims.gap_records import GapRecords, gap_record, specialty_of
from nosology.codes import describe
from nosology.workbench.cases import Case
from nosology.workbench.coding import CoderPool
from nosology.workbench.finished_encounters import FinishedJob, check_claimable, select_finished
from nosology.workbench.proposals import claim_input
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import found_gaps, notes
from nosology.workbench.stored_claims import ClaimInput

MAX_ENCOUNTERS = 5000  # the newest ones, which the list is about


@dataclass(frozen=True)
class GapTask:
    """A finished encounter for a worker process. stored: its proposed claim, if there is one in the database."""

    note_id: int
    version: int
    lang: str
    specialty: str
    made_of: ClaimInput
    stored: str | None
    final: tuple[AssignedCode, ...]
    weights: Weights

    @classmethod
    def of(cls, coded: Case, weights: Weights) -> GapTask:
        """The task of a case."""
        note, evidence = coded.note, coded.evidence()
        made_of = claim_input(note["text"], note["encounter"], coded.current, coded.suggestions)
        final = tuple(replace(item, evidence=tuple(evidence[item.code])) for item in coded.review.chosen)
        fields = {str(name).lower(): value for name, value in note["encounter"].items()}
        about = (note["id"], coded.review.version, note["lang"] or "en", specialty_of(fields))
        return cls(*about, made_of, coded.coder["claim"] if coded.coder else None, final, weights)

    def result(self) -> tuple[int, dict[str, Any]]:
        """The number of gaps and their record; ConfigError for other languages, systems and dates than claims."""
        check_claimable(self.lang, (item.code for item in self.final))
        claim = (self.made_of.from_json(self.stored) if self.stored else None) or self.made_of.build()
        final = _with_codes(claim, self.final)
        gaps = [_without_words(gap) for gap in find_gaps(final, self.weights) if _is_open(gap, claim, final)]
        return len(gaps), {"specialty": self.specialty} | gap_record(final, gaps)


def _with_codes(claim: Claim, final: Iterable[AssignedCode]) -> Claim:
    """The claim with the final codes in place of its own."""
    codes, procedures = [], []
    for item in final:
        own = codes if item.code.system == "icd10cm" else procedures
        role = "secondary" if own else "principal"
        about = (describe(item.code), 1.0, role, item.poa, item.evidence, "mention", item.rule)
        own.append(ClaimCode(*item.code, *about))
    return replace(claim, codes=tuple(codes), procedures=tuple(procedures))


def _is_open(gap: Gap, claim: Claim, final: Claim) -> bool:
    """Whether the final codes do not answer a gap."""
    if gap.kind == "specificity":
        return bool(gap.code)
    if gap.kind == "diagnosis":
        return not {answer.code for answer in gap.answers} & {item.code for item in final.codes}
    if gap.kind == "procedure":  # which of the procedures was coded is not known
        return {item.code for item in final.procedures} <= {item.code for item in claim.procedures}
    return True


def _without_words(gap: Gap) -> Gap:
    """The gap; questions about procedures have words of the note."""
    return replace(gap, question=gap.title) if gap.kind == "procedure" else gap


class GapPlace(NamedTuple):
    """A gap and where it is; number: among the gaps of the encounter."""

    note_id: int
    ref: str
    number: int
    specialty: str
    gap: Gap


@dataclass(frozen=True)
class DepartmentGaps:
    """The gaps of the newest finished encounters. refs: of the encounters, by id."""

    records: GapRecords
    refs: dict[int, str]

    def ranked(self, specialty: str = "") -> list[RankedGap]:
        """The ranked list, of one specialty or of all; likely answers follow the codes of all."""
        found = (item for item in self.records.found if not specialty or item.specialty == specialty)
        return rank_gaps(found, self.records.frequency)

    def places(self) -> Iterator[GapPlace]:
        """The gaps with their places, those of the encounters that were finished last first."""
        numbers: Counter[str] = Counter()
        for item in self.records.found:
            note_id = int(item.id)
            yield GapPlace(note_id, self.refs[note_id], numbers[item.id], item.specialty, item.gap)
            numbers[item.id] += 1

    def of_group(self, specialty: str, kind: str, subject: str) -> tuple[RankedGap, list[GapPlace]]:
        """An entry of the ranked list and its gaps; NotFound if there is none."""
        found = [
            place
            for place in self.places()
            if (place.specialty, place.gap.kind, place.gap.subject) == (specialty, kind, subject)
        ]
        if not found:
            raise NotFound("there is no such gap any more")
        own = [EncounterGap(str(place.note_id), place.specialty, place.gap, ()) for place in found]
        return rank_gaps(own, self.records.frequency)[0], found


def load_gaps(connection: Connection, note_id: int | None = None) -> DepartmentGaps:
    """The gaps of the newest finished encounters, or of one of them."""
    query = select_finished(found_gaps, notes.c.id, notes.c.ref, found_gaps.c.findings)
    query = query.where(found_gaps.c.findings.is_not(None))
    if note_id is not None:
        query = query.where(notes.c.id == note_id)
    rows = connection.execute(query.order_by(notes.c.finished.desc(), notes.c.id).limit(MAX_ENCOUNTERS)).all()
    records = GapRecords.of({"id": row.id} | row.findings for row in rows)
    return DepartmentGaps(records, {row.id: row.ref for row in rows})


def find_gap(connection: Connection, note_id: int, number: int) -> GapPlace:
    """A gap of an encounter; NotFound if it has been coded again meanwhile."""
    for place in load_gaps(connection, note_id).places():
        if place.number == number:
            return place
    raise NotFound("there is no such gap any more")


class GapJob(FinishedJob):
    """Looks for the gaps of finished encounters when a reviewer asks for it."""

    results = found_gaps

    def __init__(self, engine: Engine, pool: CoderPool, weights: Weights):
        super().__init__(engine, pool)
        self._weights = weights

    def task(self, coded: Case) -> GapTask:
        """The task of a case."""
        return GapTask.of(coded, self._weights)
