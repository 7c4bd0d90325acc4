"""The demo: fictional encounters, of which some are reviewed already, and a user of each role."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import Engine, insert, select, update

from nosology.core import Code, ConfigError, __version__
from nosology.core.files import cache_folder
from nosology.serving.coder import Coder
from nosology.workbench import cases
from nosology.workbench.accounts import create_user
from nosology.workbench.coding import save_codings
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.demo_encounters import DemoEncounter, load_encounters
from nosology.workbench.document_import import add_notes, create_batch
from nosology.workbench.documents import current_documents
from nosology.workbench.note_coding import CodedNote, WaitingNote, code_notes
from nosology.workbench.passwords import hash_password
from nosology.workbench.proposals import claim_decision, propose_claim
from nosology.workbench.services import register_coder
from nosology.workbench.store_tables import audit, batches, notes, users

BUNDLE = Path("day-one")
PASSWORD = "demo-demo-demo"  # of a local database with fictional patients only
USERS = (("coder", "coder"), ("reviewer", "reviewer"), ("admin", "admin"), ("physician", "physician"))
PAST_BATCH, TODAY_BATCH = "demo encounters of last week", "demo encounters of today"
REVIEWED = {  # day of the review before today, by encounter
    **{"E-1160": 7, "E-1080": 6, "E-1110": 5, "E-1133": 5, "E-1101": 4, "E-1140": 3, "E-1190": 2, "E-1146": 1},
    "E-1127": 1,
}
APPROVED, WAITING = "E-1101", "E-1127"  # second reviews: one is done, one is due
DAY = 86_400
Action = tuple[str, dict[str, Any]]  # name and details of a decision


def demo_store() -> str:
    """The file of the demo's store in the cache folder; a new version has a new one."""
    return str(cache_folder() / f"demo-{__version__}.db")


def prepare_demo(store: str) -> None:
    """Fills the store, unless that is done."""
    _check_demo_store(store)
    print("Preparing the demo ...", flush=True)
    fill_demo(store)
    print(f"Sign in as coder, reviewer, admin or physician with the password {PASSWORD}", flush=True)


def _check_demo_store(store: str) -> None:
    """ConfigError if the store has users of its own: the demo's password is known to everybody."""
    engine = open_database(store)
    with read_transaction(engine) as connection:
        is_used = connection.scalar(select(users.c.id).limit(1)) is not None
        is_demo = connection.scalar(select(batches.c.id).where(batches.c.name == PAST_BATCH).limit(1)) is not None
    engine.dispose()
    if is_used and not is_demo:
        raise ConfigError("--demo needs a new store, or one that it has made; the store has users already")


def fill_demo(store: str, encounters: Sequence[DemoEncounter] | None = None) -> None:
    """Fills an empty store: users, encounters to review, and encounters that the users reviewed in the last days."""
    engine = open_database(store)
    with read_transaction(engine) as connection:
        if connection.scalar(select(notes.c.id).limit(1)):
            engine.dispose()
            return
    encounters = load_encounters() if encounters is None else encounters
    past = sorted((item for item in encounters if item.id in REVIEWED), key=lambda item: -REVIEWED[item.id])
    today = [item for item in encounters if item.id not in REVIEWED]
    now = time.time()
    with write_transaction(engine) as connection:
        people = {name: create_user(connection, name, role, None) for name, role in USERS}
        # Everybody knows this password, which the rules of passwords refuse.
        connection.execute(update(users).values(password=hash_password(PASSWORD)))
        for name, items, received in ((PAST_BATCH, past, now - 9 * DAY), (TODAY_BATCH, today, now)):
            batch = create_batch(connection, name, people["admin"], len(items), now=received)
            add_notes(connection, [note for item in items for note in item.notes], batch, now=received)
        ids = {row.ref: row.id for row in connection.execute(select(notes.c.ref, notes.c.id))}
    coder_id = register_coder(engine, BUNDLE, None)
    coder = Coder.for_claims(BUNDLE)
    for item in (
        *past,
        *today[:1],
    ):  # the guided tour starts with the first one; the others are coded in the background
        result = _code(engine, ids[item.id], coder)
        made = now - 9 * DAY if item.id in REVIEWED else now
        save_codings(engine, coder_id, [ids[item.id]], [result], now=made)
    for item in past:
        _review(engine, ids[item.id], item, people, now - REVIEWED[item.id] * DAY)
    engine.dispose()


def _code(engine: Engine, note_id: int, coder: Coder) -> CodedNote:
    """The coder's result for an encounter."""
    with read_transaction(engine) as connection:
        case, parts = cases.load_case(connection, note_id), current_documents(connection, [note_id])
    waiting = WaitingNote(note_id, case.note["encounter"], parts[note_id])
    return waiting.merge(code_notes(coder, waiting.notes))


def _review(engine: Engine, note_id: int, encounter: DemoEncounter, people: Mapping[str, int], at: float) -> None:
    """Records a review that ends with the final codes of the encounter, from the time `at` on."""
    rng, version = Random(encounter.id), 0
    with read_transaction(engine) as connection:
        case = cases.load_case(connection, note_id)
    for name, actions in _shares(case, encounter).items():
        row = {"at": at, "user_id": people[name], "what": "note", "note_id": note_id, "address": "demo", "object": ""}
        with write_transaction(engine) as connection:
            connection.execute(insert(audit).values(**row))
        for action, details in actions:
            at += 4 + rng.expovariate(1 / 12)
            cases.record_decision(engine, note_id, action, details, user=people[name], version=version, at=at)
            version += 1
        at += 3_600  # a second review comes later


def _shares(case: cases.Case, encounter: DemoEncounter) -> dict[str, list[Action]]:
    """What the coder decides, and then the reviewer. Before a second review the coder forgets the last diagnosis."""
    taken, codes = list(_coder_actions(case, encounter.final)), [str(code) for code in encounter.final]
    if encounter.id not in (APPROVED, WAITING):
        return {"coder": [*taken, _order(codes), ("finish", {})]}
    forgotten = [code for code in codes if code.startswith("icd10cm")][-1]
    first = [step for step in taken if step[1]["code"] != forgotten]
    shares = {"coder": [*first, _order([code for code in codes if code != forgotten]), ("second", {})]}
    if encounter.id == APPROVED:
        added = [step for step in taken if step[1]["code"] == forgotten]
        shares["reviewer"] = [*added, _order(codes), ("approve", {})]
    return shares


def _coder_actions(case: cases.Case, final: Mapping[Code, str]) -> Iterator[Action]:
    """The decisions of a coder who starts from the proposed claim and wants the final codes."""
    claim = propose_claim(case)
    proposed = {Code(item.system, item.code): item for item in claim.codes}
    for code, item in proposed.items():
        if code in final:
            yield "claim", claim_decision(item)
        else:
            yield "reject", {"code": str(code), "reason": _reason(code, final)}
    for code, poa in final.items():
        if code not in proposed:
            yield "accept" if code in case.suggested else "add", {"code": str(code)}
        if poa and (code not in proposed or proposed[code].poa != poa):
            yield "poa", {"code": str(code), "poa": poa}


def _reason(code: Code, final: Mapping[Code, str]) -> str:
    """Why a coder rejects a code: another code of its category is final, it is a symptom, or it is wrong."""
    if any(other.code[:3] == code.code[:3] for other in final):
        return "replaced"
    return "integral" if code.code.startswith("R") else "wrong"


def _order(codes: Sequence[str]) -> Action:
    return "order", {"codes": list(codes)}
