"""What a running server holds: the store, the coder's processes, the background batches."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from anyio import CapacityLimiter
from sqlalchemy import Engine, insert, select

from nosology.claims.assigned_codes import AssignedCode
from nosology.claims.checks import check
from nosology.claims.grouping import groups
from nosology.codes import releases, table
from nosology.core import SYSTEMS, Code, __version__
from nosology.models.bundle import MANIFEST, Bundle, is_day_one, read_manifest
from nosology.workbench.batches import Background
from nosology.workbench.inference import Workers
from nosology.workbench.rate_limit import RateLimit
from nosology.workbench.review import Review
from nosology.workbench.settings import ServerSettings
from nosology.workbench.store.engine import open_store, writing
from nosology.workbench.store.schema import coders

CONNECTIONS = 8  # opened at the start, somewhat more than requests are worked on at once
log = logging.getLogger("nosology.workbench")


@dataclass
class Services:
    """The parts that pages and API share; made by `start`, ended by `stop`."""

    settings: ServerSettings
    engine: Engine
    workers: Workers
    background: Background
    coder_id: int
    waiting_for_coder: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(32))
    sign_ins: RateLimit = field(default_factory=lambda: RateLimit(10, 60.0))
    ready: bool = False

    @classmethod
    def start(cls, settings: ServerSettings) -> Services:
        """The services of a server; the coder is loaded before this returns."""
        engine = open_store(settings.store)
        coder_id = register(engine, settings.bundle, settings.release)
        workers = Workers(settings.bundle, settings.release, processes=settings.workers)
        try:
            workers.warm()
        except BaseException:
            workers.close()
            engine.dispose()
            raise
        _warm_up(engine)
        background = Background(engine, workers, coder_id, at_once=settings.workers + 1)
        background.start()
        return cls(settings, engine, workers, background, coder_id, ready=True)

    def stop(self) -> None:
        """Finishes what is in flight, then ends; what waits stays in the store."""
        self.ready = False
        self.background.stop()
        self.workers.close()
        self.engine.dispose()


def _warm_up(engine: Engine) -> None:
    """Opens connections, reads tables and groupers: otherwise the first people of the day would wait for them."""
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(engine.connect())
    known = Review(
        chosen=(AssignedCode(Code("icd10cm", "I50.9"), "added"), AssignedCode(Code("icd10pcs", "0DTJ4ZZ"), "added"))
    )
    check(known, {"date": "2025-11-01"})
    groups(known, {"sex": "F", "age": 70})
    for system in SYSTEMS:
        table(system).search("heart", 1)


def register(engine: Engine, bundle: Path, release: str | None) -> int:
    """The number of a bundle in the store, by the hash of its manifest, which names every file and its checksum."""
    if is_day_one(bundle):
        coder = Bundle.load(bundle)
        manifest = {
            "kind": coder.model.kind,
            "labels_hash": coder.model.labels.hash,
            "package": f"nosology {__version__}",
        }
        raw = json.dumps([manifest, coder.recipe], sort_keys=True, default=str).encode()
    else:
        manifest = read_manifest(bundle)
        raw = (Path(bundle) / MANIFEST).read_bytes()
    digest = hashlib.sha256(raw + (release or "").encode()).hexdigest()
    with writing(engine) as connection:
        found = connection.scalar(select(coders.c.id).where(coders.c.digest == digest))
        if found is not None:
            return int(found)
        about = {name: manifest.get(name) for name in ("package", "n_codes", "labels_hash", "decision", "provenance")}
        about["decision"] = {"threshold": manifest.get("decision", {}).get("threshold")}
        about["tables"] = {
            system: table(system, release if release in releases(system) else None).release for system in SYSTEMS
        }
        row = {
            "digest": digest,
            "name": _name(bundle),
            "kind": manifest["kind"],
            "release": release,
            "about": about,
            "created": time.time(),
        }
        return int(connection.execute(insert(coders).values(**row)).inserted_primary_key[0])


def _name(bundle: Path) -> str:
    """What people call a bundle: its folder, with the one above it where that alone says nothing."""
    folder = Path(bundle).resolve()
    return (f"{folder.parent.name}/{folder.name}" if folder.name == "bundle" else folder.name)[-200:]
