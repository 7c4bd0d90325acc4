"""The coder in processes of its own, behind a bounded queue: pages stay quick while notes are coded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nosology.core import NosologyError, Note

if TYPE_CHECKING:
    from nosology.serving.coder import Coder

TOP = 24  # suggestions a note keeps besides all accepted ones
_coder: Any = None  # that of a worker process


class Busy(NosologyError):
    """As much is waiting to be coded as the queue may hold."""


class Workers:
    """Processes that hold the bundle and code notes; at most `bound` pieces of work wait or run.

    A process that dies (out of memory, killed) is replaced, and its piece of work is tried once more.
    """

    def __init__(self, bundle: Path, release: str | None = None, *, processes: int = 1, bound: int = 16):
        self._start = (str(bundle), release)
        self._processes = processes
        self._slots = threading.BoundedSemaphore(bound)
        self._lock = threading.Lock()
        self._pool = self._new_pool()
        self.bound = bound
        self.waiting = 0

    def _new_pool(self) -> ProcessPoolExecutor:
        # spawn: the server has threads, and a fork would copy their locks.
        return ProcessPoolExecutor(self._processes, get_context("spawn"), initializer=_load, initargs=self._start)

    def code(self, notes: Sequence[Note], *, wait: bool = False) -> list[dict[str, Any]]:
        """What `code_notes` finds; Busy if the queue is full and we may not wait."""
        if not self._slots.acquire(blocking=wait):
            raise Busy("the queue of the coder is full; try again in a moment")
        with self._lock:
            self.waiting += 1
        try:
            pool = self._pool
            try:
                return pool.submit(_code, list(notes)).result()
            except BrokenProcessPool:
                return self._in_place_of(pool).submit(_code, list(notes)).result()
        finally:
            with self._lock:
                self.waiting -= 1
            self._slots.release()

    def _in_place_of(self, broken: ProcessPoolExecutor) -> ProcessPoolExecutor:
        """A pool that works; of several threads that saw one break, the first makes the next."""
        with self._lock:
            if self._pool is broken:
                self._pool = self._new_pool()
            return self._pool

    def warm(self) -> None:
        """Loads the bundle now, so that the first note does not wait for it."""
        self.code([Note("", "")], wait=True)

    def close(self) -> None:
        """Ends the processes once what they have begun is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _load(bundle: str, release: str | None) -> None:
    """Loads the coder of this process; it yields to the server, which people wait for."""
    global _coder
    from nosology.serving.coder import Coder

    if hasattr(os, "nice"):
        os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's: it lets us finish
    try:
        _coder = Coder.load(bundle, release=release)
    except NosologyError as error:  # raised here it would break the pool, and nobody would read it
        _coder = error


def _code(notes: list[Note]) -> list[dict[str, Any]]:
    """`code_notes` with the coder of this process; raises what kept it from being loaded."""
    if isinstance(_coder, NosologyError):
        raise _coder
    return code_notes(_coder, notes)


def code_notes(coder: Coder, notes: Sequence[Note]) -> list[dict[str, Any]]:
    """For each note its suggestions as JSON values, the context of each piece of evidence, and a profile."""
    from nosology.text import context_of

    found = []
    for note, suggestions in zip(notes, coder.code_all(notes)):
        kept = [item for place, item in enumerate(suggestions) if item.accepted or place < TOP]
        spans = sorted({(span.start, span.end) for item in kept for span in item.evidence})
        states = dict(zip(spans, context_of(note.text, spans))) if spans else {}
        values = [item.to_json() for item in kept]
        for value in values:
            for span in value["evidence"]:
                span.pop("text")  # the note has it
                flags = [name for name, said in states[span["start"], span["end"]]._asdict().items() if said]
                if flags:
                    span["context"] = flags
        found.append({"suggestions": values, "profile": profile(note.text, suggestions)})
    return found


def profile(text: str, suggestions: Sequence[Any]) -> dict[str, float]:
    """Numbers by which drift of inputs is seen, none of which tells a word of the note."""
    accepted = [item for item in suggestions if item.accepted]
    words = text.split()
    supported = sum(bool(item.evidence) for item in accepted)
    return {
        "words": len(words),
        "digits": sum(any(c.isdigit() for c in word) for word in words) / max(1, len(words)),
        "accepted": len(accepted),
        "top_probability": max((item.probability for item in suggestions), default=0.0),
        "supported": supported / max(1, len(accepted)),
    }
