"""CPU time of each page of the workbench, in one process without a network, and the functions that take most of it.

    python benchmarks/load/page_cost.py [--rounds 60] [--notes 10000] [--profile note]

CPU time depends less than wall-clock time on what else the machine does; the median of the requests is printed, and
the mean. The time of the client is part of it, as for `/health/live` and the sign-in form. The store has many notes,
of which a few are coded and reviewed. `note` is the first view of a note, `again` a later one.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import re
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
from simulated_notes import simulated_notes, trained_bundle
from sqlalchemy import update
from workbench import DECISIONS, SEARCHES, add_batch, wait_for_coding

from nosology.workbench.accounts import create_session, create_user, session_user
from nosology.workbench.app import create_app
from nosology.workbench.database import open_database, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.security import SESSION_COOKIE
from nosology.workbench.server_settings import ServerSettings
from nosology.workbench.store_tables import notes
from nosology.workbench.warm_up import freeze_tables

CODED = 60  # notes that are opened and decided on
PEOPLE = 50  # to whom a note can be assigned
Request = Callable[[int], Awaitable[httpx.Response]]


def prepare(store: str, size: int) -> str:
    """The cookie of a coder, in a store with notes of which only a few are to be coded."""
    engine = open_database(store)
    with write_transaction(engine) as connection:
        person, *_ = (create_user(connection, f"coder {number}", "coder", None) for number in range(PEOPLE))
        add_notes(connection, simulated_notes(CODED)[:CODED], None)
    add_batch(store, size)
    with write_transaction(engine) as connection:
        connection.execute(update(notes).where(notes.c.id > CODED).values(coding="cancelled"))
    cookie = create_session(engine, person)
    engine.dispose()
    return cookie


class Desk:
    """The requests of a coder, by name."""

    def __init__(self, client: httpx.AsyncClient):
        self.client = client
        self.open: dict[int, tuple[list[str], int]] = {}  # note -> suggestions, version

    async def live(self, turn: int) -> httpx.Response:
        """The page that needs no thread."""
        return await self.client.get("/health/live")

    async def login(self, turn: int) -> httpx.Response:
        """The sign-in form, which is the trivial page of the load benchmark."""
        return await self.client.get("/login")

    async def queue(self, turn: int) -> httpx.Response:
        """The queue."""
        return await self.client.get("/?order=uncertain")

    async def note(self, turn: int) -> httpx.Response:
        """A note that nobody has opened before."""
        number = 1 + turn % CODED
        response = await self.client.get(f"/notes/{number}")
        keys = re.findall(r'data-key="([^"]+)" data-state="open"', response.text)
        self.open[number] = keys, int(re.search(r'data-version="(\d+)"', response.text)[1])
        return response

    async def again(self, turn: int) -> httpx.Response:
        """A note that was opened before."""
        return await self.note(turn)

    async def decision(self, turn: int) -> httpx.Response:
        """A code of a note is accepted or rejected; on each note as many as in the load benchmark."""
        number = 1 + turn // DECISIONS % CODED
        keys, version = self.open[number]
        act = {"action": "accept", "code": keys[0]} if turn % 3 else {"action": "reject", "code": keys[0]}
        act |= {} if turn % 3 else {"reason": "not_documented"}
        response = await self.client.post(f"/notes/{number}/decide", data={**act, "version": version})
        self.open[number] = keys[1:] or keys, version + 1
        return response

    async def search(self, turn: int) -> httpx.Response:
        """A search for codes."""
        return await self.client.post("/codes/search", data={"query": SEARCHES[turn % len(SEARCHES)]})


async def measure(store: str, cookie: str, options: argparse.Namespace) -> None:
    """Prints the CPU milliseconds of each page."""
    app = create_app(ServerSettings(bundle=trained_bundle(), store=store))
    async with app.router.lifespan_context(app):
        await asyncio.to_thread(wait_for_coding, store)
        freeze_tables()  # as `nosology serve` does
        user = session_user(app.state.services.engine, cookie)
        transport = httpx.ASGITransport(app)
        headers = {"x-csrf-token": user.csrf, "cookie": f"{SESSION_COOKIE}={cookie}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            desk = Desk(client)
            for name in ("live", "login", "queue", "note", "again", "decision", "search"):
                profile = cProfile.Profile(time.thread_time)
                with _profiled(profile) if name == options.profile else nullcontext():
                    await measure_page(name, getattr(desk, name), options.rounds)
                if name == options.profile:
                    pstats.Stats(profile).sort_stats("cumulative").print_stats(60)


async def measure_page(name: str, request: Request, rounds: int) -> None:
    """Prints the CPU milliseconds of one page."""
    spent = []
    for turn in range(rounds):
        started = time.process_time()
        response = await request(turn)
        spent.append(1000 * (time.process_time() - started))
        assert response.status_code == 200, (name, response.status_code)
    middle, mean = statistics.median(spent), statistics.mean(spent)
    print(f"{name:>10} {middle:6.1f} ms of CPU (mean {mean:.1f}), {len(response.content):,} bytes", flush=True)


@contextmanager
def _profiled(profile: cProfile.Profile) -> Iterator[None]:
    """Runs what pages leave to threads in this thread, because a profile is that of one thread."""

    async def run_here(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        return function(*arguments)

    in_thread, anyio.to_thread.run_sync = anyio.to_thread.run_sync, run_here
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        anyio.to_thread.run_sync = in_thread


def main() -> None:
    """Measures each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=CODED)
    parser.add_argument("--notes", type=int, default=10_000, help="that are in the store besides")
    parser.add_argument("--profile", help="a page whose functions are listed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "cost.db")
        asyncio.run(measure(store, prepare(store, options.notes), options))


if __name__ == "__main__":
    main()
