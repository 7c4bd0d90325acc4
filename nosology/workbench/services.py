"""The services of a running server, which pages and API call."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter
from fastapi.responses import Response
from sqlalchemy import Engine, select

from nosology.claims.drg_weights import DrgWeight, load_drg_weights
from nosology.codes import releases, table
from nosology.core import SYSTEMS, Note, ReviewError, __version__
from nosology.corpora.plain_text import check_text
from nosology.models.bundle import MANIFEST, Bundle, is_day_one, read_manifest
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.workbench import blind_access, cases, double_coding
from nosology.workbench.accounts import User
from nosology.workbench.audit_log import log_access
from nosology.workbench.bill_audit import BillAuditJob
from nosology.workbench.change_feed import continue_clock
from nosology.workbench.coding import BackgroundCoder, CoderPool, cancel_batch, resume_batch
from nosology.workbench.conversation import has_open_query, load_conversation
from nosology.workbench.database import insert_row, open_database, read_transaction, store_errors, write_transaction
from nosology.workbench.decision_checks import check_assignee, check_finished, check_role
from nosology.workbench.decision_steps import requested_decisions
from nosology.workbench.department_gaps import GapJob
from nosology.workbench.encounter_services import ImportedNotes, import_batch
from nosology.workbench.export import export_case
from nosology.workbench.retention import RetentionJob
from nosology.workbench.server_settings import ServerSettings
from nosology.workbench.sign_in import FailureLimit, SignInDelays
from nosology.workbench.store_health import is_alive
from nosology.workbench.store_lock import StoreLock
from nosology.workbench.store_settings import load_server_key
from nosology.workbench.store_tables import coders
from nosology.workbench.warm_up import warm_up
from nosology.workbench.work_queue import QueueFilter, Reservations, next_note

PROBE_SECONDS = 5.0  # for which the result of a health check is used again


@dataclass
class Services:
    """The database, the coder's processes and the background coder of a running server."""

    settings: ServerSettings
    engine: Engine
    pool: CoderPool
    background: BackgroundCoder
    retention: RetentionJob
    bill_audit: BillAuditJob
    gap_job: GapJob
    lock: StoreLock
    coding_limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(32))
    sign_in_limit: FailureLimit = field(default_factory=lambda: FailureLimit(10, 60.0))  # per address
    sign_in_delays: SignInDelays = field(default_factory=SignInDelays)
    reservations: Reservations = field(default_factory=Reservations)
    server_key: bytes = field(default=b"", repr=False)  # signs the cookies of known browsers
    drg_weights: Mapping[int, Mapping[int, DrgWeight]] = field(default_factory=dict)  # by fiscal year and DRG
    siblings: SiblingChooser | None = None  # of the coder
    ready: bool = False
    _probe_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _probed: float = -math.inf
    _takes_writes: bool = False

    @classmethod
    def start(cls, settings: ServerSettings) -> Services:
        """The services of a server; the coder is loaded when this returns."""
        weights = load_drg_weights(settings.drg_weights)
        pool, lock = CoderPool(settings.bundle, settings.release, processes=settings.workers), StoreLock(settings.store)
        try:
            pool.load()  # first: a damaged bundle must not create a store
            lock.acquire()
            engine = open_database(settings.store)
            lock.guard(engine)
            with store_errors():
                continue_clock(engine)
                coder_id = register_coder(engine, settings.bundle, settings.release)
                warm_up(engine)
                with write_transaction(engine) as connection:
                    key = load_server_key(connection)
        except BaseException:
            pool.close()
            lock.release()
            raise
        background = BackgroundCoder(engine, pool, coder_id, concurrency=settings.workers + 1)
        chooser = SiblingChooser.load(settings.bundle)
        jobs = (RetentionJob(engine), BillAuditJob(engine, pool, weights, chooser), GapJob(engine, pool, weights))
        services = cls(settings, engine, pool, background, *jobs, lock, server_key=key, drg_weights=weights, ready=True)
        services.siblings = chooser
        background.start()
        services.retention.start()
        services.bill_audit.start()
        services.gap_job.start()
        return services

    def stop(self) -> None:
        """Finishes running tasks, then ends. Waiting notes stay in the database."""
        self.ready = False
        self.retention.stop()
        self.bill_audit.stop()
        self.gap_job.stop()
        self.background.stop()
        self.pool.close()
        self.engine.dispose()
        self.lock.release()

    def takes_writes(self) -> bool:
        """Whether the store takes writes, as of the last few seconds."""
        with self._probe_lock:
            if time.monotonic() - self._probed >= PROBE_SECONDS:
                self._takes_writes, self._probed = is_alive(self.engine), time.monotonic()
            return self._takes_writes

    def import_notes(self, user: User, name: str, notes: Sequence[Note], address: str) -> ImportedNotes:
        """The numbers of documents that were imported as one batch, which the background coder then starts.

        DataError if one is no plain text.
        """
        for note in notes:
            check_text(note.text, f"the note {note.id}")
        imported = import_batch(self.engine, user, name, notes, address)
        self.background.notify()
        return imported

    def change_batch(self, user: User, batch: int, act: str, address: str) -> None:
        """Cancels or resumes a batch."""
        (cancel_batch if act == "cancel" else resume_batch)(self.engine, batch)
        log_access(self.engine, user.id, f"batch {act}", None, address, f"batch {batch}")
        self.background.notify()

    def read_case(self, user: User, note_id: int, address: str, what: str = "note") -> cases.Case:
        """The case of a note; the access is logged."""
        with read_transaction(self.engine) as connection:
            case = cases.load_case(connection, note_id)
            blind_access.check_readable(connection, note_id, user.id)
        log_access(self.engine, user.id, what, note_id, address)
        return case

    def decide(self, user: User, note_id: int, action: str, values: Mapping[str, Any], version: int) -> cases.Case:
        """The case after a user's decision; see decision_steps.requested_decisions.

        ConflictError if `version` is not the note's newest, whatever else is wrong with the codes.
        """
        check_role(user, action)
        is_last = action in ("finish", "approve")
        with read_transaction(self.engine) as connection:
            case = cases.load_case(connection, note_id)
            pair = blind_access.check_readable(connection, note_id, user.id)
            if values.get("key") and values["key"] in case.review.keys:
                return case  # sent again, because the answer was lost
            blind_access.check_decision(connection, pair, note_id, action, values.get("user"))
            cases.check_version(connection, case, version)
            is_asked = is_last and has_open_query(connection, note_id)
        check_assignee(user, case)
        taken = requested_decisions(case, action, values)
        if is_last:
            check_finished(case, values, is_asked=is_asked)
        after = cases.record_decisions(self.engine, note_id, taken, user=user.id, version=version, case=case)
        if action == "finish" and pair is not None:
            double_coding.close_if_agreed(self.engine, pair, user.id)
        if action not in ("withdraw", "encounter"):
            return after
        self.background.notify()
        with read_transaction(self.engine) as connection:
            return cases.load_case(connection, note_id)  # with the text and the data as they are now

    def next_note(self, user: User, wanted: QueueFilter, after: int) -> int | None:
        """The next note of a user in a queue, which is then reserved; None at the end of the queue."""
        while True:
            others = self.reservations.of_others(user.id)
            with read_transaction(self.engine) as connection:
                found = next_note(
                    connection, wanted, user.id, reviewer=user.has_role("reviewer"), after=after, reserved=others
                )
            if found is None or self.reservations.take(found, user.id):
                return found

    def export(self, user: User, note_id: int, form: str, address: str) -> Response:
        """The coded encounter as a file; the export is logged."""
        with read_transaction(self.engine) as connection:
            case, history = cases.load_case(connection, note_id), cases.decision_history(connection, note_id)
            pair = blind_access.check_readable(connection, note_id, user.id)
            talk = load_conversation(connection, note_id)
        if case.note["double_of"] or (pair is not None and pair.phase != blind_access.CLOSED_PAIR):
            raise ReviewError("the note is exported when its double coding is closed, with the final codes")
        response = export_case(case, history, form, talk)
        log_access(self.engine, user.id, f"export {form}", note_id, address)
        return response


def register_coder(engine: Engine, bundle: Path, release: str | None) -> int:
    """The id of a bundle in the database, found by the hash of its manifest, which lists every file's checksum."""
    if is_day_one(bundle):
        coder = Bundle.load(bundle)
        manifest: dict[str, Any] = {
            "kind": coder.model.kind,
            "labels_hash": coder.model.labels.hash,
            "package": f"nosology {__version__}",
        }
        raw = json.dumps([manifest, coder.recipe], sort_keys=True, default=str).encode()
    else:
        manifest = read_manifest(bundle)
        raw = (Path(bundle) / MANIFEST).read_bytes()
    digest = hashlib.sha256(raw + (release or "").encode()).hexdigest()
    with write_transaction(engine) as connection:
        coder_id = connection.scalar(select(coders.c.id).where(coders.c.digest == digest))
        if coder_id is not None:
            return int(coder_id)
        about = {name: manifest.get(name) for name in ("package", "n_codes", "labels_hash", "provenance")}
        about["decision"] = {"threshold": manifest.get("decision", {}).get("threshold")}
        about["tables"] = {
            system: table(system, release if release in releases(system) else None).release for system in SYSTEMS
        }
        row = {"digest": digest, "name": _bundle_name(bundle), "kind": manifest["kind"], "release": release}
        return insert_row(connection, coders, {**row, "about": about, "created": time.time()})


def _bundle_name(bundle: Path) -> str:
    """The name of a bundle's folder, with its parent if the folder is just called bundle."""
    folder = Path(bundle).resolve()
    return (f"{folder.parent.name}/{folder.name}" if folder.name == "bundle" else folder.name)[-200:]
