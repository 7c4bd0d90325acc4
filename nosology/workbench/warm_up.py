"""What a server loads at its start, so that the first requests do not wait for it."""

from __future__ import annotations

import gc
from contextlib import ExitStack

from sqlalchemy import Engine, select

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.claim import build_claim
from nosology.claims.code_search import ALL, search_codes
from nosology.claims.encounter_checks import check_encounter
from nosology.claims.grouping import payment_groups
from nosology.codes import release_on
from nosology.core import SYSTEMS, Code, CodeError, EvidenceSpan, Suggestion
from nosology.core.forked_processes import freeze_objects
from nosology.workbench.database import read_transaction
from nosology.workbench.store_tables import notes
from nosology.workbench.work_queue import TO_DO

CONNECTIONS = 8  # opened at the start, a few more than concurrent requests
_NOTES = 500  # newest ones whose dates say which releases are in use
_RELEASES = 4
_TEXT = "Admitted with acute on chronic systolic heart failure. No pneumonia. Father had diabetes. Past appendectomy."


def warm_up(engine: Engine) -> None:
    """Opens connections and loads tables, rules and groupers, also of the releases of the notes that are to do."""
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(engine.connect())
    codes = (Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ"))
    example = AssignedCodes(tuple(AssignedCode(code, "added") for code in codes))
    check_encounter(example, {"date": "2025-11-01", "kind": "inpatient"})
    payment_groups(example, {"sex": "F", "age": 70})
    for stated in ({}, *({"date": day, "setting": "inpatient"} for day in _days(engine))):
        build_claim("", _TEXT, [_suggestion("heart failure", "I50.9"), _suggestion("pneumonia", "J18.9")], stated)
    for system in SYSTEMS:
        search_codes("heart", system)
    search_codes("laparoscopic cholecystectmy", ALL)


def freeze_tables() -> None:
    """Excludes all objects that exist now from garbage collection: a search through the tables takes 0.3 s."""
    gc.collect()
    freeze_objects()


def _suggestion(words: str, code: str) -> Suggestion:
    start = _TEXT.index(words)
    evidence = (EvidenceSpan(start, start + len(words), words, 1.0),)
    return Suggestion("icd10cm", code, words, 0.9, True, evidence=evidence)


def _days(engine: Engine) -> list[str]:
    """A day in each release of the newest notes that are to do, newest release first."""
    query = select(notes.c.encounter).where(notes.c.status.in_(TO_DO)).order_by(notes.c.id.desc()).limit(_NOTES)
    with read_transaction(engine) as connection:
        stated = [encounter.get("discharged") or encounter.get("date") for encounter in connection.scalars(query)]
    days: dict[str, str] = {}
    for day in stated:
        try:
            days.setdefault(release_on(str(day)), str(day))
        except (CodeError, ValueError):  # no day, or none with a known code set
            continue
    return [days[release] for release in sorted(days, reverse=True)[:_RELEASES]]
