"""Coding on a Ray cluster with Ray Data; each worker loads the bundle."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from nosology.core import ConfigError, Note
from nosology.core.parallel import batched, check_workers
from nosology.models.bundle import is_day_one
from nosology.serving.coder import Coder

_BATCH = 64  # notes that a worker codes together
_TASK = 256  # notes of a task, at most, if there are many: it is what is repeated if a worker fails
_BLOCK = 16_384  # notes in memory here, passed to Ray together


class RayCoder:
    """A coder in a Ray worker: maps blocks of notes to blocks of predictions as JSON."""

    def __init__(self, options: dict[str, Any], top: int | None):
        self.coder, self.top = Coder.load(**options), top

    def __call__(self, block: dict[str, Any]) -> dict[str, list[str]]:
        """The predictions of a block."""
        notes = [
            Note(str(name), str(text), extra=json.loads(extra))
            for name, text, extra in zip(block["id"], block["text"], block["extra"])
        ]
        predictions = [
            json.dumps([suggestion.to_json() for suggestion in suggestions], ensure_ascii=False)
            for suggestions in self.coder.code_all(notes, self.top)
        ]
        return {"id": list(block["id"]), "codes": predictions}


class _StreamOfThread:
    """A stream that discards what other threads than that of its construction write."""

    def __init__(self, stream: TextIO):
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return self._stream.write(text) if threading.get_ident() == self._thread else len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _ray_messages_discarded() -> Iterator[None]:
    """Discards what Ray prints: its C++ parts to standard error, its threads to standard output, among our results."""
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w") as stream, Path(os.devnull).open("w") as null:
        before, sys.stderr, sys.stdout = (sys.stderr, sys.stdout), stream, cast("TextIO", _StreamOfThread(sys.stdout))
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stream.fileno(), 2)
            sys.stderr, sys.stdout = before


def code_on_ray(
    notes: Iterable[Note],
    *,
    bundle: str | Path,
    top: int | None = None,
    workers: int = 2,
    address: str | None = None,
    release: str | None = None,
    codes: str | Path | None = None,
    systems: Iterable[str] = (),
) -> Iterator[tuple[str, str]]:
    """(id, predictions as JSON) of each note, in order, coded by workers of a Ray cluster.

    address: of a running cluster ("auto" finds it); without one, a local cluster is started and stopped. The bundle
    must have the same path on every machine of the cluster.
    """
    options = {
        "folder": str(bundle if is_day_one(bundle) else Path(bundle).absolute()),
        "release": release,
        "codes": None if codes is None else str(Path(codes).absolute()),
        "systems": tuple(systems),
    }
    Coder.load(**options)  # wrong options must not fail in a worker
    rows = map_on_ray(map(note_row, notes), RayCoder, (options, top), workers=workers, address=address)
    return ((row["id"], row["codes"]) for row in rows)


def map_on_ray(
    rows: Iterable[dict[str, Any]],
    worker: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    workers: int = 2,
    address: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows that workers of a Ray cluster make of rows, in order.

    worker: a class that is constructed with the arguments in each worker, and maps a block of rows to one of as many.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError("--engine ray needs its own packages: pip install 'nosology[ray]'") from error
    for name in ("ray", "ray.data"):  # after the import, which configures them
        logging.getLogger(name).setLevel(logging.CRITICAL)
    starts_ray = not ray.is_initialized()
    with _ray_messages_discarded():
        if starts_ray:
            _start_ray(address, workers)
        try:
            yield from _map_blocks(iter(rows), worker, arguments, workers)
        except ray.exceptions.RayError as error:  # its message has a traceback of the worker
            raise ConfigError(f"a worker of the Ray cluster failed ({type(error).__name__}): see Ray's logs") from error
        finally:
            if starts_ray:
                ray.shutdown()


def _start_ray(address: str | None, workers: int) -> None:
    """Connects to a cluster, or starts one on this machine; ConfigError if there is none at the address."""
    import ray

    if not address:
        check_workers("workers", workers)
    cluster = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
    host, _, port = (address or "").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=10).close()
        ray.init(**cluster, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        what = f"--address must be that of a running Ray cluster; got {address}" if address else "Ray does not start"
        raise ConfigError(f"{what} ({type(error).__name__})") from error


def note_row(note: Note) -> dict[str, Any]:
    """A note as a row of a block; its columns are JSON, because notes may have different columns."""
    return {"id": note.id, "text": note.text, "extra": json.dumps(dict(note.extra), default=str)}


def _map_blocks(
    rows: Iterator[dict[str, Any]], worker: Callable[..., Any], arguments: tuple[Any, ...], workers: int
) -> Iterator[dict[str, Any]]:
    """The row of each row, as soon as it and all before it are done; Ray repeats tasks of a lost worker."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    for block in batched(rows, _BLOCK):
        tasks = max(min(len(block), 4 * workers), len(block) // _TASK)
        data = ray.data.from_items(block, override_num_blocks=tasks)
        results = data.map_batches(
            worker,
            fn_constructor_args=arguments,
            batch_size=_BATCH,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        )
        yield from results.iter_rows()
