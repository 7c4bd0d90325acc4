"""A workbench that shows itself: simulated patients, a coder trained on others of them, some notes already reviewed."""

from __future__ import annotations

import time
from collections import Counter
from datetime import date
from pathlib import Path
from random import Random

from sqlalchemy import Engine, insert, select

from nosology.config import load_recipe
from nosology.core import Code, Note, __version__
from nosology.core.files import cache_folder
from nosology.corpora.corpus import write_corpus
from nosology.corpora.simulate.hospital import Hospital, subject_id
from nosology.serving.coder import Coder
from nosology.workbench.accounts import create_user
from nosology.workbench.batches import keep
from nosology.workbench.inference import code_notes
from nosology.workbench.services import register
from nosology.workbench.store.engine import open_store, reading, writing
from nosology.workbench.store.schema import audit, notes
from nosology.workbench.work import add_notes, new_batch, record

YEARS = (2023, 2025)
LEARN, WORK, REVIEWED = 2_000, 70, 48  # patients the coder learns from, patients in the queue, notes already reviewed
SEEN = 20  # notes that a code must have to be learned
PASSWORD = "demo-demo-demo"  # of a store on this machine that holds nobody's notes
PEOPLE = (("coder", "coder"), ("reviewer", "reviewer"), ("admin", "admin"))
SYSTEMS = ("icd10cm", "icd10pcs")


def demo_bundle(folder: Path | None = None) -> Path:
    """The folder of a coder trained on simulated patients; made once and kept in the cache."""
    from nosology.models.train import train

    folder = folder or cache_folder() / f"demo-{__version__}-{LEARN}"
    bundle = folder / "bundle"
    if not (bundle / "bundle.json").is_file():
        corpus = write_corpus(_training_notes(), folder / "corpus", source={"kind": "demo"}, filters=[], counts={})
        train(load_recipe("linear", ["fit.c=[1.0]", "fit.max_features=[4000]"]), [corpus], bundle)
    return bundle


def _training_notes() -> list[Note]:
    """Three of four notes to learn from, the rest for dev; codes that too few have are left out, for quickness."""
    every = demo_notes(LEARN, first=0)
    counts = Counter(code for note in every for code in note.codes)
    return [
        Note(
            note.id,
            note.text,
            patient=note.patient,
            split="dev" if int(note.patient or 0) % 4 == 3 else "train",
            codes=tuple(code for code in note.codes if counts[code] >= SEEN),
        )
        for note in every
    ]


def demo_notes(patients: int, first: int, seed: int = 8) -> list[Note]:
    """Notes of simulated patients with their codes and, in `extra`, date, sex and age."""
    hospital, found = Hospital(YEARS), []
    for index in range(first, first + patients):
        patient, stays = hospital.patient(seed, index, radiology=False)
        for stay in stays:
            if stay.text is None:
                continue
            left = stay.admission.day + stay.admission.nights
            extra = {
                "date": date.fromordinal(left).isoformat(),
                "sex": patient.sex,
                "age": patient.age(stay.admission.day),
                "kind": "inpatient",
            }
            if stay.admission.died:
                extra["died"] = True
            found.append(
                Note(
                    f"{subject_id(patient)}-DS-{stay.admission.number + 1}",
                    stay.text,
                    patient=str(subject_id(patient)),
                    site=stay.admission.site.name,
                    lang="en",
                    codes=tuple(code for code in stay.codes if code.system in SYSTEMS),
                    extra=extra,
                )
            )
    return found


def fill(store: str, bundle: Path) -> None:
    """Fills an empty store: three people, a queue, and notes that two simulated coders have reviewed over some days."""
    engine = open_store(store)
    with reading(engine) as connection:
        if connection.scalar(select(notes.c.id).limit(1)):
            engine.dispose()
            return
    incoming = demo_notes(WORK, first=LEARN)
    past, queue = incoming[:REVIEWED], incoming[REVIEWED:]
    with writing(engine) as connection:
        people = [create_user(connection, name, role, PASSWORD) for name, role in PEOPLE]
        batch = new_batch(connection, "simulated notes of last week", people[2], len(past))
        add_notes(connection, past, batch, now=time.time() - 9 * 86_400)
        today = new_batch(connection, "simulated notes of today", people[2], len(queue))
        add_notes(connection, queue, today)
    coder_id = register(engine, bundle, None)
    coder = Coder.load(bundle)
    with reading(engine) as connection:
        ids = dict(connection.execute(select(notes.c.ref, notes.c.id).where(notes.c.batch_id == batch)).all())
    for note in past:
        keep(engine, coder_id, [ids[note.id]], code_notes(coder, [note]))
        _review(engine, ids[note.id], note, people[:2])
    engine.dispose()


def _review(engine: Engine, note_id: int, note: Note, people: list[int]) -> None:
    """Decides on a note as a coder would who knows its codes, some days ago."""
    from nosology.workbench.work import load_case

    rng = Random(note.id)
    with reading(engine) as connection:
        suggestions = load_case(connection, note_id).suggestions
    user = rng.choice(people)
    at = time.time() - (1 + rng.randrange(7)) * 86_400 + rng.randrange(20_000)
    with writing(engine) as connection:
        row = {"at": at, "user_id": user, "what": "note", "note_id": note_id, "address": "demo"}
        connection.execute(insert(audit).values(**row))
    suggested = {Code(item["system"], item["code"]): item for item in suggestions if item["accepted"]}
    acts: list[tuple[str, dict[str, str]]] = []
    for code in suggested:
        if code in note.codes:
            acts.append(("accept", {"code": str(code)}))
        else:
            acts.append(("reject", {"code": str(code), "reason": rng.choice(("not_documented", "history", "wrong"))}))
    acts += [("add", {"code": str(code)}) for code in note.codes if code not in suggested]
    for version, (action, details) in enumerate([*acts, ("finish", {})]):
        at += 4 + rng.expovariate(1 / 12)
        record(engine, note_id, action, details, user=user, version=version, at=at)
