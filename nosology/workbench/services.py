"""Settings and services of a running server; pages and API call the same services."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyio import CapacityLimiter
from fastapi.responses import Response
from sqlalchemy import Engine, select, update

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.claim import build_claim
from nosology.claims.encounter_checks import check_encounter
from nosology.claims.grouping import payment_groups
from nosology.codes import releases, table
from nosology.core import SYSTEMS, Code, ConfigError, NosologyError, Note, ReviewError, __version__
from nosology.corpora.plain_text import check_text
from nosology.models.bundle import MANIFEST, Bundle, is_day_one, read_manifest
from nosology.workbench import cases
from nosology.workbench.accounts import ROLES, User
from nosology.workbench.audit_log import log_access, log_access_in
from nosology.workbench.coding import BackgroundCoder, CoderPool, cancel_batch, resume_batch
from nosology.workbench.database import (
    batches,
    coders,
    insert_row,
    open_database,
    read_transaction,
    store_errors,
    write_transaction,
)
from nosology.workbench.export import export_case
from nosology.workbench.proposals import claim_decision, open_codes, propose_claim
from nosology.workbench.retention import RetentionJob
from nosology.workbench.review import FIELDS
from nosology.workbench.sign_in import FailureLimit, SignInDelays
from nosology.workbench.store_health import is_alive
from nosology.workbench.store_lock import StoreLock
from nosology.workbench.store_settings import load_server_key
from nosology.workbench.work_queue import QueueFilter, Reservations, next_note

PROBE_SECONDS = 5.0  # for which the result of a health check is used again
CONNECTIONS = 8  # opened at the start, a few more than concurrent requests


class Forbidden(NosologyError):
    """The user's role does not allow the request."""


@dataclass(frozen=True)
class OidcSettings:
    """An OpenID Connect provider; its users get `role` at their first visit."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    role: str = "coder"
    hosts: tuple[str, ...] = ()  # of the provider's endpoints, besides the issuer's

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"--oidc-role must be one of {', '.join(ROLES)}; got {self.role}")
        url = urlsplit(self.issuer)
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
            raise ConfigError(f"--oidc-issuer must be an https address; got {self.issuer}")


@dataclass(frozen=True)
class ServerSettings:
    """The options of `nosology serve`."""

    bundle: Path
    store: str
    host: str = "127.0.0.1"
    port: int = 8400
    release: str | None = None
    workers: int = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    oidc: OidcSettings | None = None
    demo: bool = False
    public_url: str | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key must be given together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise ConfigError(f"no such file: {path}")
        if not 1 <= self.workers <= 64:
            raise ConfigError(f"--workers must lie in 1 to 64; got {self.workers}")
        if not is_loopback(self.host) and not self.secure:
            raise ConfigError(
                f"--host must be a loopback address without TLS, or notes would travel unencrypted; got {self.host}"
                " (give --tls-cert and --tls-key, or --behind-proxy if a proxy terminates TLS)"
            )

        if self.public_url is not None:
            url = urlsplit(self.public_url)
            if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query:
                raise ConfigError(f"--public-url must be an address such as https://name; got {self.public_url}")
            if self.secure and url.scheme != "https":
                raise ConfigError(f"--public-url must be an https address with TLS; got {self.public_url}")
        elif self.oidc is not None and (self.behind_proxy or not is_loopback(self.host)):
            raise ConfigError("--public-url must be given with --oidc-issuer: people return to it after they signed in")

    @property
    def address(self) -> str:
        """The address at which browsers reach the server; never what a request says."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        """The names of the server that requests may have; empty: any."""
        names = {urlsplit(self.public_url).hostname or ""} if self.public_url is not None else set()
        if is_loopback(self.host) and not self.behind_proxy:
            names |= {"localhost", "127.0.0.1", "::1", self.host}
        return frozenset(names)

    @property
    def secure(self) -> bool:
        """Whether browsers reach the server by HTTPS."""
        return self.tls_cert is not None or self.behind_proxy


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class ImportedNotes:
    """The id of a batch, the number of its notes, and the number of notes whose id existed already."""

    batch: int
    added: int
    known: int


@dataclass
class Services:
    """The database, the coder's processes and the background coder of a running server."""

    settings: ServerSettings
    engine: Engine
    pool: CoderPool
    background: BackgroundCoder
    retention: RetentionJob
    lock: StoreLock
    coding_limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(32))
    sign_in_limit: FailureLimit = field(default_factory=lambda: FailureLimit(10, 60.0))  # per address
    sign_in_delays: SignInDelays = field(default_factory=SignInDelays)
    reservations: Reservations = field(default_factory=Reservations)
    server_key: bytes = field(default=b"", repr=False)  # signs the cookies of known browsers
    ready: bool = False
    _probe_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _probed: float = -math.inf
    _takes_writes: bool = False

    @classmethod
    def start(cls, settings: ServerSettings) -> Services:
        """The services of a server; the coder is loaded when this returns."""
        pool, lock = CoderPool(settings.bundle, settings.release, processes=settings.workers), StoreLock(settings.store)
        try:
            pool.load()  # first: a damaged bundle must not create a store
            lock.acquire()
            engine = open_database(settings.store)
            with store_errors():
                coder_id = register_coder(engine, settings.bundle, settings.release)
                _warm_up(engine)
                with write_transaction(engine) as connection:
                    key = load_server_key(connection)
        except BaseException:
            pool.close()
            lock.release()
            raise
        background = BackgroundCoder(engine, pool, coder_id, concurrency=settings.workers + 1)
        services = cls(settings, engine, pool, background, RetentionJob(engine), lock, server_key=key, ready=True)
        background.start()
        services.retention.start()
        return services

    def stop(self) -> None:
        """Finishes running tasks, then ends. Waiting notes stay in the database."""
        self.ready = False
        self.retention.stop()
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
        """Adds notes as one batch, which the background coder then starts. DataError if one is not plain text."""
        for note in notes:
            check_text(note.text, f"the note {note.id}")
        with write_transaction(self.engine) as connection:
            batch = cases.create_batch(connection, name, user.id)
            added, known = cases.add_notes(connection, notes, batch)
            connection.execute(update(batches).where(batches.c.id == batch).values(total=added, known=known))
            log_access_in(connection, user.id, "import", None, address, f"batch {batch}: {added} added, {known} known")
        self.background.notify()
        return ImportedNotes(batch, added, known)

    def change_batch(self, user: User, batch: int, act: str, address: str) -> None:
        """Cancels or resumes a batch."""
        (cancel_batch if act == "cancel" else resume_batch)(self.engine, batch)
        log_access(self.engine, user.id, f"batch {act}", None, address, f"batch {batch}")
        self.background.notify()

    def read_case(self, user: User, note_id: int, address: str, what: str = "note") -> cases.Case:
        """The case of a note; the access is logged."""
        with read_transaction(self.engine) as connection:
            case = cases.load_case(connection, note_id)
        log_access(self.engine, user.id, what, note_id, address)
        return case

    def decide(self, user: User, note_id: int, action: str, values: Mapping[str, Any], version: int) -> cases.Case:
        """The case after a user's decision; of `values`, only the fields of the action are stored.

        The action claim accepts the proposed claim: one decision for each of its codes that nobody has decided on.
        """
        if action == "approve" and not user.has_role("reviewer"):
            raise Forbidden("a second review is for people with the role reviewer")
        if action == "preaccept":
            raise Forbidden("only the triage rule pre-accepts notes")
        with read_transaction(self.engine) as connection:
            case = cases.load_case(connection, note_id)
        is_current = case.review.version == version  # else the answer is a conflict, whatever else is wrong
        if is_current and case.review.assignee not in (None, user.id) and not user.has_role("reviewer"):
            raise Forbidden("the note is assigned to somebody else; a reviewer can change it or assign it to you")
        if values.get("key") and values["key"] in case.review.keys:
            return case  # sent again, because the answer was lost
        if action == "claim":
            return self._accept_claim(user, case, version, values.get("key"))
        details = {name: values[name] for name in FIELDS.get(action, ()) if name in values}
        if values.get("key"):
            details["key"] = values["key"]
        if action in ("finish", "approve") and is_current:
            _check_finished(case, details)
        return cases.record_decision(self.engine, note_id, action, details, user=user.id, version=version)

    def _accept_claim(self, user: User, case: cases.Case, version: int, key: str | None) -> cases.Case:
        taken = [("claim", claim_decision(item)) for item in open_codes(case, propose_claim(case))]
        if not taken:
            raise ReviewError("the proposed claim has no code that is still to be decided")
        if key:
            taken[0][1]["key"] = key
        return cases.record_decisions(self.engine, case.note["id"], taken, user=user.id, version=version)

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
        response = export_case(case, history, form)
        log_access(self.engine, user.id, f"export {form}", note_id, address)
        return response


class UnfinishedCodes(ReviewError):
    """The codes of a note have errors; an override with a reason finishes it all the same."""


def _check_finished(case: cases.Case, details: Mapping[str, Any]) -> None:
    """Raises UnfinishedCodes for a note without codes, or with codes that cannot be billed or exclude each other."""
    if details.get("override"):
        return
    if not case.review.chosen:
        raise UnfinishedCodes("the note has no code: code it, or finish it with a reason")
    issues = check_encounter(case.review, case.note["encounter"], case.note["text"], case.evidence())
    errors = [issue.message for issue in issues if issue.level == "error"]
    if errors:
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise UnfinishedCodes(
            f"the codes cannot be billed as they are: {errors[0]}{more}; correct them, or give a reason"
        )


def _warm_up(engine: Engine) -> None:
    """Opens connections and loads tables and groupers, so that the first requests do not wait for them."""
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(engine.connect())
    codes = (Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ"))
    example = AssignedCodes(tuple(AssignedCode(code, "added") for code in codes))
    check_encounter(example, {"date": "2025-11-01", "kind": "inpatient"})
    payment_groups(example, {"sex": "F", "age": 70})
    build_claim("", "Acute on chronic systolic heart failure.", [])
    for system in SYSTEMS:
        table(system).search("heart", 1)


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
