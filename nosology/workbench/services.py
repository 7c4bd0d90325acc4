"""Settings and services of a running server; pages and API call the same services."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyio import CapacityLimiter
from fastapi.responses import Response
from sqlalchemy import Engine, select

from nosology.claims.drg_weights import DrgWeight, load_drg_weights
from nosology.claims.encounter_checks import check_encounter
from nosology.codes import releases, table
from nosology.core import SYSTEMS, ConfigError, NosologyError, Note, ReviewError, __version__
from nosology.corpora.plain_text import check_text
from nosology.models.bundle import MANIFEST, Bundle, is_day_one, read_manifest
from nosology.workbench import blind_access, cases, double_coding
from nosology.workbench.accounts import ROLES, User
from nosology.workbench.audit_log import log_access
from nosology.workbench.change_feed import continue_clock
from nosology.workbench.coding import BackgroundCoder, CoderPool, cancel_batch, resume_batch
from nosology.workbench.conversation import has_open_query, load_conversation
from nosology.workbench.database import insert_row, open_database, read_transaction, store_errors, write_transaction
from nosology.workbench.decision_steps import STEPS, decisions_of_step
from nosology.workbench.document_import import withdrawal_details
from nosology.workbench.encounter_services import ImportedNotes, encounter_details, import_batch
from nosology.workbench.export import export_case
from nosology.workbench.retention import RetentionJob
from nosology.workbench.review import ACTION_FIELDS
from nosology.workbench.sign_in import FailureLimit, SignInDelays
from nosology.workbench.store_health import is_alive
from nosology.workbench.store_lock import StoreLock
from nosology.workbench.store_settings import load_server_key
from nosology.workbench.store_tables import coders
from nosology.workbench.warm_up import warm_up
from nosology.workbench.work_queue import QueueFilter, Reservations, next_note

PROBE_SECONDS = 5.0  # for which the result of a health check is used again
INTERNAL_ACTIONS = {  # that no client sends as a decision
    "preaccept": "only the triage rule pre-accepts notes",
    "document": "only an import adds documents",
    "adjudicate": "two codings become one on the page of their adjudication",
    "close": "a copy is closed when its double coding is",
}


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
    drg_weights: tuple[Path, ...] = ()

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
    drg_weights: Mapping[int, Mapping[int, DrgWeight]] = field(default_factory=dict)  # by fiscal year and DRG
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
        services = cls(settings, engine, pool, background, RetentionJob(engine), lock, server_key=key, ready=True)
        services.drg_weights = weights
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
        """Imports documents as one batch, which the background coder then starts. DataError if one is no plain text."""
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
        """The case after a user's decision; of `values`, only the fields of the action are stored.

        Some actions are a step of several decisions, one for each code; see decision_steps.py.
        """
        if action in ("approve", "return") and not user.has_role("reviewer"):
            raise Forbidden("a second review is for people with the role reviewer")
        if action in INTERNAL_ACTIONS:
            raise Forbidden(INTERNAL_ACTIONS[action])
        if action == "withdraw" and not user.has_role("reviewer"):
            raise Forbidden("documents are withdrawn by people with the role reviewer")
        with read_transaction(self.engine) as connection:
            case = cases.load_case(connection, note_id)
            pair = blind_access.check_readable(connection, note_id, user.id)
            if values.get("key") and values["key"] in case.review.keys:
                return case  # sent again, because the answer was lost
            blind_access.check_decision(connection, pair, note_id, action, values.get("user"))
            is_asked = action in ("finish", "approve") and has_open_query(connection, note_id)
        is_current = case.review.version == version  # else the answer is a conflict, whatever else is wrong
        if is_current:
            check_assignee(user, case)
        if action in STEPS:
            taken = decisions_of_step(case, action, values) if is_current else []  # else a conflict
            return cases.record_decisions(self.engine, note_id, taken, user=user.id, version=version)
        details = {name: values[name] for name in ACTION_FIELDS.get(action, ()) if name in values}
        if action == "withdraw":
            details = withdrawal_details(case, values.get("document"))
        if action == "encounter" and is_current:
            details = encounter_details(case, values.get("encounter"))
        if values.get("key"):
            details["key"] = values["key"]
        if action in ("finish", "approve") and is_current:
            check_finished(case, details, is_asked=is_asked)
        after = cases.record_decision(self.engine, note_id, action, details, user=user.id, version=version)
        if action == "finish" and pair is not None:
            double_coding.settle(self.engine, pair, user.id)
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


def check_assignee(user: User, case: cases.Case) -> None:
    """Raises Forbidden if the note is somebody else's and the user is no reviewer."""
    if case.review.assignee not in (None, user.id) and not user.has_role("reviewer"):
        raise Forbidden("the note is assigned to somebody else; a reviewer can change it or assign it to you")


class UnfinishedCodes(ReviewError):
    """The codes of a note have errors; an override with a reason finishes it all the same."""


def check_finished(case: cases.Case, details: Mapping[str, Any], *, is_asked: bool = False) -> None:
    """Raises UnfinishedCodes for a note without codes, or with codes that cannot be billed or exclude each other.

    is_asked: whether a physician has not answered a query yet, which is a reason, too.
    """
    if details.get("override"):
        return
    if is_asked:
        raise UnfinishedCodes("a query to a physician is open: wait for the answer, withdraw it, or give a reason")
    if not case.review.chosen:
        raise UnfinishedCodes("the note has no code: code it, or finish it with a reason")
    issues = check_encounter(case.review, case.note["encounter"], case.note["text"], case.evidence())
    errors = [issue.message for issue in issues if issue.level == "error"]
    if errors:
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise UnfinishedCodes(
            f"the codes cannot be billed as they are: {errors[0]}{more}; correct them, or give a reason"
        )


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
