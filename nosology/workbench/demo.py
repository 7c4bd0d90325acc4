"""The demo: simulated patients, a coder trained on others of them, and notes that are reviewed already."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import Engine, insert, select, update

from nosology.config import load_recipe
from nosology.core import ConfigError, Note, __version__
from nosology.core.files import cache_folder
from nosology.corpora.corpus import write_corpus
from nosology.corpora.simulate.hospital import Hospital, subject_id
from nosology.serving.coder import Coder
from nosology.workbench import cases
from nosology.workbench.accounts import create_user
from nosology.workbench.coding import code_notes, save_codings
from nosology.workbench.database import audit, batches, notes, open_database, read_transaction, users, write_transaction
from nosology.workbench.passwords import hash_password
from nosology.workbench.services import register_coder

YEARS = (2023, 2025)
TRAINING_PATIENTS, QUEUE_PATIENTS, REVIEWED_NOTES = 2_000, 70, 48
MIN_CODE_COUNT = 20  # training notes that a code needs
PASSWORD = "demo-demo-demo"  # of a local database with simulated notes only
USERS = (("coder", "coder"), ("reviewer", "reviewer"), ("admin", "admin"))
PAST_BATCH = "simulated notes of last week"
SYSTEMS = ("icd10cm", "icd10pcs")


def prepare_demo(store: str) -> None:
    """Trains the demo's coder and fills the store, unless that is done."""
    _check_demo_store(store)
    print("Preparing the demo: simulating patients and training a coder (once, about a minute) ...", flush=True)
    fill_demo(store, demo_bundle())
    print(f"Sign in as coder, reviewer or admin with the password {PASSWORD}", flush=True)


def _check_demo_store(store: str) -> None:
    """ConfigError if the store has users of its own: the demo's password is known to everybody."""
    engine = open_database(store)
    with read_transaction(engine) as connection:
        is_used = connection.scalar(select(users.c.id).limit(1)) is not None
        is_demo = connection.scalar(select(batches.c.id).where(batches.c.name == PAST_BATCH).limit(1)) is not None
    engine.dispose()
    if is_used and not is_demo:
        raise ConfigError("--demo needs a new store, or one that it has made; the store has users already")


def demo_bundle(folder: Path | None = None) -> Path:
    """The bundle of a coder trained on simulated patients, cached."""
    from nosology.models.train import train

    folder = folder or demo_folder()
    bundle = folder / "bundle"
    if not (bundle / "bundle.json").is_file():
        corpus = write_corpus(_training_notes(), folder / "corpus", source={"kind": "demo"}, filters=[], counts={})
        train(load_recipe("linear", ["fit.c=[1.0]", "fit.max_features=[4000]"]), [corpus], bundle)
    return bundle


def demo_folder() -> Path:
    """The folder in the cache with the demo's corpus and bundle."""
    return cache_folder() / f"demo-{__version__}-{TRAINING_PATIENTS}"


def _training_notes() -> list[Note]:
    """Notes with a split: three of four patients train, the others dev. Rare codes are removed, for speed."""
    every = demo_notes(TRAINING_PATIENTS, first=0)
    counts = Counter(code for note in every for code in note.codes)
    return [
        replace(
            note,
            split="dev" if int(note.patient or 0) % 4 == 3 else "train",
            codes=tuple(code for code in note.codes if counts[code] >= MIN_CODE_COUNT),
            site=None,
            lang=None,
            extra={},
        )
        for note in every
    ]


def demo_notes(patients: int, first: int, seed: int = 8) -> list[Note]:
    """Notes of simulated patients with codes, and with date, sex and age in `extra`."""
    hospital, result = Hospital(YEARS), []
    for index in range(first, first + patients):
        patient, stays = hospital.patient(seed, index, radiology=False)
        for stay in stays:
            if stay.text is None:
                continue
            extra: dict[str, Any] = {
                "date": date.fromordinal(stay.admission.day + stay.admission.nights).isoformat(),
                "sex": patient.sex,
                "age": patient.age(stay.admission.day),
                "kind": "inpatient",
            }
            if stay.admission.died:
                extra["died"] = True
            note = Note(
                f"{subject_id(patient)}-DS-{stay.admission.number + 1}",
                stay.text,
                patient=str(subject_id(patient)),
                site=stay.admission.site.name,
                lang="en",
                codes=tuple(code for code in stay.codes if code.system in SYSTEMS),
                extra=extra,
            )
            result.append(note)
    return result


def fill_demo(store: str, bundle: Path) -> None:
    """Fills an empty store: three users, a queue, and notes that two simulated coders reviewed in the last days."""
    engine = open_database(store)
    with read_transaction(engine) as connection:
        if connection.scalar(select(notes.c.id).limit(1)):
            engine.dispose()
            return
    incoming = demo_notes(QUEUE_PATIENTS, first=TRAINING_PATIENTS)
    past, queue = incoming[:REVIEWED_NOTES], incoming[REVIEWED_NOTES:]
    with write_transaction(engine) as connection:
        people = [create_user(connection, name, role, None) for name, role in USERS]
        # Everybody knows this password, which the rules of passwords refuse.
        connection.execute(update(users).values(password=hash_password(PASSWORD)))
        received = time.time() - 9 * 86_400
        batch = cases.create_batch(connection, PAST_BATCH, people[2], len(past), now=received)
        cases.add_notes(connection, past, batch, now=received)
        today = cases.create_batch(connection, "simulated notes of today", people[2], len(queue))
        cases.add_notes(connection, queue, today)
    coder_id, coder = register_coder(engine, bundle, None), Coder.load(bundle)
    with read_transaction(engine) as connection:
        rows = connection.execute(select(notes.c.ref, notes.c.id).where(notes.c.batch_id == batch))
        ids = {row.ref: row.id for row in rows}
    now = time.time()
    for note in sorted(past, key=lambda note: _review_time(note, now)):  # the audit log is in the order of time
        save_codings(engine, coder_id, [ids[note.id]], code_notes(coder, [note]))
        _review_note(engine, ids[note.id], note, people[:2], _review_time(note, now))
    engine.dispose()


def _review_time(note: Note, now: float) -> float:
    rng = Random(f"{note.id} time")
    return now - (1 + rng.randrange(7)) * 86_400 + rng.randrange(20_000)


def _review_note(engine: Engine, note_id: int, note: Note, users: list[int], at: float) -> None:
    """Records the decisions of a coder who knows the note's codes, from the time `at` on."""
    rng = Random(note.id)
    with read_transaction(engine) as connection:
        suggested = cases.load_case(connection, note_id).suggested
    user = rng.choice(users)
    with write_transaction(engine) as connection:
        row = {"at": at, "user_id": user, "what": "note", "note_id": note_id, "address": "demo", "object": ""}
        connection.execute(insert(audit).values(**row))
    accepted = [code for code, suggestion in suggested.items() if suggestion.accepted]
    actions: list[tuple[str, dict[str, str]]] = []
    for code in accepted:
        if code in note.codes:
            actions.append(("accept", {"code": str(code)}))
        else:
            reason = rng.choice(("not_documented", "history", "wrong"))
            actions.append(("reject", {"code": str(code), "reason": reason}))
    actions += [("add", {"code": str(code)}) for code in note.codes if code not in accepted]
    for version, (action, details) in enumerate([*actions, ("finish", {})]):
        at += 4 + rng.expovariate(1 / 12)
        cases.record_decision(engine, note_id, action, details, user=user, version=version, at=at)
