"""Response times while 10,000 notes are coded in the background, with cancel, SIGKILL and resume.

    python benchmarks/load/batch.py [--batch 10000] [--coders 10] [--store sqlite | postgres]

After a fifth of the notes the batch is cancelled, the server is killed (SIGKILL) and started again, and the batch is
resumed. At the end every note must have been coded once. Response times are measured by coders as in workbench.py.
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
from simulated_notes import trained_bundle
from sqlalchemy import func, select
from workbench import RESULTS, Coder, add_batch, open_engine, prepare, quantile, temporary_store, wait_for_coding

from nosology.core.files import write_json
from nosology.workbench.database import read_transaction
from nosology.workbench.security import SESSION_COOKIE
from nosology.workbench.store_tables import codings, notes
from tests.workbench.processes import Server

PAGES = ("queue", "note", "decision", "search")


class BatchClient:
    """A client of the API that reads and changes a batch."""

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
        """Waits until `count` notes of the batch are coded."""
        while self.batch()["done"] < count:
            time.sleep(1)


async def run_coders(coders: list[Coder], notes_by_coder: list[list[int]], watch) -> None:
    """Runs the coders until `watch`, which runs in a thread, returns."""
    watched = asyncio.create_task(asyncio.to_thread(watch))

    async def work(coder: Coder, coder_notes: list[int]) -> None:
        while not watched.done():  # finished notes are only read
            await coder.work(coder_notes, time.monotonic() + 5)

    await asyncio.gather(*(work(coder, coder_notes) for coder, coder_notes in zip(coders, notes_by_coder)))
    await watched
    for coder in coders:
        await coder.client.aclose()


def measure_requests(
    server: Server, keys: list, notes_by_coder: list, think: float, seed: int, watch
) -> list[tuple[str, float, int]]:
    """The requests of the coders until `watch` returns."""
    coders = [Coder(server.address, *pair, think, seed + i) for i, pair in enumerate(keys)]
    asyncio.run(run_coders(coders, notes_by_coder, watch))
    return [item for coder in coders for item in coder.requests]


def measure(kind: str, store: str, options: argparse.Namespace, folder: Path) -> dict:
    """The results of one run."""
    keys, notes_by_coder = prepare(store, options.coders)
    bundle = trained_bundle()
    server = Server(bundle, store, log=folder / "server.log").start()
    wait_for_coding(store)
    add_batch(store, options.batch)
    started = time.monotonic()
    client = BatchClient(server.address, *keys[0])
    number = client.batch()["id"]
    requests = measure_requests(
        server, keys, notes_by_coder, options.think, 0, lambda: client.until(options.batch // 5)
    )
    client.change(number, "cancel")
    time.sleep(3)  # for running tasks
    stopped = client.batch()["done"]
    time.sleep(5)
    after_cancel = client.batch()["done"] - stopped
    server.kill()
    server = Server(bundle, store, log=folder / "server.log").start()
    client = BatchClient(server.address, *keys[0])
    client.change(number, "resume")
    requests += measure_requests(server, keys, notes_by_coder, options.think, 1000, lambda: client.until(options.batch))
    wall = time.monotonic() - started
    server.stop()
    with open_engine(store) as engine, read_transaction(engine) as connection:
        rows = connection.scalar(
            select(func.count()).select_from(codings).where(codings.c.note_id > _last(notes_by_coder))
        )
        uncoded = connection.scalar(select(func.count()).where(notes.c.coding != "done"))
    every = [seconds for page, seconds, _ in requests if page != "trivial"]
    by_page = {name: [seconds for page, seconds, _ in requests if page == name] for name in PAGES}
    return {
        "store": kind,
        "batch": options.batch,
        "coders": options.coders,
        "seconds": round(wall),
        "notes_per_second": round(options.batch / wall, 1),
        "coded_after_cancel": after_cancel,
        "codings": rows,
        "notes_not_coded": uncoded,
        "requests": len(every),
        "p50_ms": round(1000 * statistics.median(every)),
        "p95_ms": round(1000 * quantile(every, 0.95)),
        "p95_ms_by_page": {name: round(1000 * quantile(values, 0.95)) for name, values in by_page.items() if values},
        "answers_5xx": sum(status >= 500 for _, _, status in requests),
    }


def _last(notes_by_coder: list[list[int]]) -> int:
    return max(note for coder_notes in notes_by_coder for note in coder_notes)


def main() -> None:
    """Measures, prints and writes a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--coders", type=int, default=10)
    parser.add_argument("--think", type=float, default=1.0, help="mean pause before each step, in seconds")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, temporary_store(options.store, Path(folder)) as store:
        row = measure(options.store, store, options, Path(folder))
    for name, value in row.items():
        print(f"{name}: {value}", flush=True)
    machine = {"cores": os.cpu_count(), "load_average": os.getloadavg()}
    write_json(RESULTS / "load_batch.json", {"machine": machine, **row})
    if row["codings"] != row["batch"] or row["notes_not_coded"] or row["answers_5xx"] or row["coded_after_cancel"]:
        sys.exit("the batch was not coded as expected")


if __name__ == "__main__":
    main()
