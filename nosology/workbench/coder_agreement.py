"""The agreement of people who coded the same notes: in total, by chapter, by pair of people; frequent disagreements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Connection, and_, or_, select

from nosology.codes import describe
from nosology.core import Code
from nosology.evaluation.agreement import CoderAgreement, DoubleCodedNote, agreement_by_group, measure_agreement
from nosology.workbench.append_only import DELETED
from nosology.workbench.blind_access import CLOSED_PAIR
from nosology.workbench.code_differences import count_disagreements
from nosology.workbench.measures import chapter_of, rows_by_note
from nosology.workbench.replay import replay, stored_decisions
from nosology.workbench.review import ANY_LENGTH, EDITS, Review
from nosology.workbench.store_tables import codings, decisions, notes, users

MAX_PAIRS = 500  # the newest that are measured
MAX_DISAGREEMENTS = 25


@dataclass(frozen=True)
class DoubleCoding:
    """A note with two finished codings, and the names of the people."""

    codes: DoubleCodedNote[Code]
    coders: tuple[str, str]


@dataclass(frozen=True)
class NamedAgreement:
    """The agreement of one group: a chapter, or two people."""

    name: str
    title: str
    agreement: CoderAgreement


@dataclass(frozen=True)
class FrequentDisagreement:
    """What one person coded and what the other coded instead; no other code: nothing of its category."""

    code: Code
    description: str
    other: Code | None
    other_description: str
    notes: int


@dataclass(frozen=True)
class AgreementTables:
    """The tables of the page of agreement."""

    total: CoderAgreement
    chapters: list[NamedAgreement]
    coders: list[NamedAgreement]
    disagreements: list[FrequentDisagreement]


def load_double_codings(connection: Connection) -> list[DoubleCoding]:
    """The newest notes with two finished codings, each as it was before adjudication."""
    copy, original = notes.alias("copy"), notes.alias("original")
    both_done = and_(copy.c.status == "done", original.c.status == "done")
    rows = connection.execute(
        select(copy.c.id, copy.c.double_of)
        .join(original, original.c.id == copy.c.double_of)
        .where(copy.c.double_of > 0, original.c.status != DELETED, or_(copy.c.status == CLOSED_PAIR, both_done))
        .order_by(copy.c.id.desc())
        .limit(MAX_PAIRS)
    ).all()
    originals = [row.double_of for row in rows]
    query = select(decisions, users.c.name.label("user")).join(users, users.c.id == decisions.c.user_id, isouter=True)
    query = query.where(decisions.c.note_id.in_([*originals, *(row.id for row in rows)]))
    decided = rows_by_note(connection, query.order_by(decisions.c.version))
    query = select(codings.c.note_id, codings.c.suggestions).where(codings.c.note_id.in_(originals))
    coded = rows_by_note(connection, query.order_by(codings.c.id.desc()))
    found = []
    for row in rows:
        closing = next((item for item in decided[row.id] if item["action"] == "close"), None)
        last = closing["details"]["compared"] if closing else None
        first = [item for item in decided[row.double_of] if last is None or item["version"] <= last]
        second = [item for item in decided[row.id] if item is not closing]
        suggested = coded[row.double_of][0]["suggestions"] if row.double_of in coded else ()
        found.append(_double_coding(first, second, [Code(item["system"], item["code"]) for item in suggested]))
    return found


def _double_coding(first: Sequence, second: Sequence, suggested: Sequence[Code]) -> DoubleCoding:
    """The two codings of decisions; people are in alphabetical order, so that two of them are always the same pair."""
    sides = sorted(((_coder(rows), _state(rows)) for rows in (first, second)), key=lambda side: side[0])
    (name, one), (other_name, two) = sides
    mine, theirs = frozenset(one.codes), frozenset(two.codes)
    candidates = mine | theirs | frozenset(suggested)
    return DoubleCoding(DoubleCodedNote(mine, theirs, candidates, (one.principal, two.principal)), (name, other_name))


def _state(rows: Sequence) -> Review:
    return replay(stored_decisions(rows), length=ANY_LENGTH, stored=True)


def _coder(rows: Sequence) -> str:
    """The name of the person who decided last on a code of the note."""
    return next((row["user"] for row in reversed(rows) if row["user"] and row["action"] in EDITS), "triage")


@lru_cache(maxsize=4)
def agreement_tables(found: tuple[DoubleCoding, ...]) -> AgreementTables:
    """The tables; cached, because the intervals take a second for hundreds of notes."""
    codes = [item.codes for item in found]
    chapters = [NamedAgreement(*group, value) for group, value in agreement_by_group(codes, chapter_of).items()]
    pairs: dict[tuple[str, str], list[DoubleCodedNote[Code]]] = {}
    for item in found:
        pairs.setdefault(item.coders, []).append(item.codes)
    people = [NamedAgreement(" and ".join(names), "", measure_agreement(part)) for names, part in pairs.items()]
    disagreements = count_disagreements((item.first, item.second) for item in codes)[:MAX_DISAGREEMENTS]
    return AgreementTables(
        measure_agreement(codes),
        sorted(chapters, key=lambda row: (-row.agreement.units, row.name)),
        sorted(people, key=lambda row: (-row.agreement.notes, row.name)),
        [
            FrequentDisagreement(code, describe(code) or "", other, (describe(other) or "") if other else "", number)
            for code, other, number in disagreements
        ],
    )
