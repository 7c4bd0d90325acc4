"""Ten thousand notes coded in the background while people work: how long a page takes, and what is lost on the way.

    python benchmarks/load/batch.py [--batch 10000] [--coders 10] [--store sqlite | postgres]

A fifth of the way the batch is cancelled, then the server is killed (kill -9), started again, and the batch resumed. At
the end every note must have been coded once. Pages are measured all the time, by coders who work as in workbench.py.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from sqlalchemy import func, select
from workbench import RESULTS, Coder, add_batch, opened_store, prepare, quantile, store_of, wait_for_coding

from nosology.core.files import write_json
from nosology.workbench.database import codings, notes, read_transaction
from nosology.workbench.demo import demo_bundle
from nosology.workbench.security import SESSION_COOKIE
from tests.workbench.processes import Server

PAGES = ("queue", "note", "decision", "search")


class Watcher:
    """Somebody who looks at the batch: its numbers, as the API gives them."""

    def __init__(self, address: str, cookie: str, csrf: str):
        self.client = httpx.Client(base_url=address, cookies={SESSION_COOKIE: cookie}, timeout=60)
        self.headers = {"x-csrf-token": csrf}

    def batch(self) -> dict:
        """The newest batch."""
        return self.client.get("/api/v1/batches").raise_for_status().json()[0]

    def change(self, number: int, act: str) -> None:
        """Cancels or resumes a batch."""
        self.client.post(f"/api/v1/batches/{number}/{act}", headers=self.headers).raise_for_status()

    def until(self, count: int) -> None:
        """Waits until so many notes of the batch are coded."""
        while self.batch()["done"] < count:
            time.sleep(1)


async def at_work(coders: list[Coder], own: list[list[int]], watch) -> None:
    """The coders at work until what `watch` waits for, in a thread of its own, has happened."""
    watched = asyncio.create_task(asyncio.to_thread(watch))

    async def one(coder: Coder, mine: list[int]) -> None:
        while not watched.done():  # notes that are finished stay so, and are read all the same
            await coder.work(mine, time.monotonic() + 5)

    await asyncio.gather(*(one(coder, mine) for coder, mine in zip(coders, own)))
    await watched
    for coder in coders:
        await coder.client.aclose()


def part(server: Server, keys: list, own: list, think: float, seed: int, watch) -> list[tuple[str, float, int]]:
    """What pages took while people worked and `watch` waited."""
    coders = [Coder(server.address, *pair, think, seed + i) for i, pair in enumerate(keys)]
    asyncio.run(at_work(coders, own, watch))
    return [item for coder in coders for item in coder.taken]


def measure(kind: str, store: str, options: argparse.Namespace, folder: Path) -> dict:
    """The numbers of one run."""
    keys, own = prepare(store, options.coders)
    bundle = demo_bundle()
    server = Server(bundle, store, log=folder / "server.log").start()
    wait_for_coding(store)
    add_batch(store, options.batch)
    begun = time.monotonic()
    watcher = Watcher(server.address, *keys[0])
    number = watcher.batch()["id"]
    taken = part(server, keys, own, options.think, 0, lambda: watcher.until(options.batch // 5))
    watcher.change(number, "cancel")
    time.sleep(3)  # pieces that were under way
    stopped = watcher.batch()["done"]
    time.sleep(5)
    after_cancel = watcher.batch()["done"] - stopped
    server.kill()
    server = Server(bundle, store, log=folder / "server.log").start()
    watcher = Watcher(server.address, *keys[0])
    watcher.change(number, "resume")
    taken += part(server, keys, own, options.think, 1000, lambda: watcher.until(options.batch))
    wall = time.monotonic() - begun
    server.stop()
    with opened_store(store) as engine, read_transaction(engine) as connection:
        rows = connection.scalar(select(func.count()).select_from(codings).where(codings.c.note_id > _last(own)))
        uncoded = connection.scalar(select(func.count()).where(notes.c.coding != "done"))
    every = [seconds for _, seconds, _ in taken]
    by_page = {name: [seconds for page, seconds, _ in taken if page == name] for name in PAGES}
    return {
        "store": kind,
        "batch": options.batch,
        "coders": options.coders,
        "seconds": round(wall),
        "notes_a_second": round(options.batch / wall, 1),
        "coded_after_cancel": after_cancel,
        "codings": rows,
        "notes_not_coded": uncoded,
        "requests": len(taken),
        "p50_ms": round(1000 * statistics.median(every)),
        "p95_ms": round(1000 * quantile(every, 0.95)),
        "p95_ms_by_page": {name: round(1000 * quantile(values, 0.95)) for name, values in by_page.items() if values},
        "answers_5xx": sum(status >= 500 for _, _, status in taken),
    }


def _last(own: list[list[int]]) -> int:
    return max(note for mine in own for note in mine)


def main() -> None:
    """Measures, prints and writes a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--coders", type=int, default=10)
    parser.add_argument("--think", type=float, default=1.0, help="mean pause before each step, in seconds")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, store_of(options.store, Path(folder)) as store:
        row = measure(options.store, store, options, Path(folder))
    for name, value in row.items():
        print(f"{name}: {value}", flush=True)
    machine = {"cores": os.cpu_count(), "load_average": os.getloadavg()}
    write_json(RESULTS / "load_batch.json", {"machine": machine, **row})
    if row["codings"] != row["batch"] or row["notes_not_coded"] or row["answers_5xx"] or row["coded_after_cancel"]:
        sys.exit("the batch is not what it must be")


if __name__ == "__main__":
    main()
