"""Many notes on many machines: the coder on Ray Data, one copy of the bundle a worker."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nosology.core import ConfigError, Note
from nosology.models.bundle import is_day_one

_BATCH = 64  # notes a worker takes at a time
_BLOCK = 16_384  # notes handed to Ray at once: what is held in memory here


class RayCoder:
    """A coder in a Ray worker: blocks of notes come in, blocks of predictions as JSON go out."""

    def __init__(self, options: dict[str, Any], top: int | None):
        from nosology.serving.coder import Coder

        self.coder, self.top = Coder.load(**options), top

    def __call__(self, block: dict[str, Any]) -> dict[str, list[str]]:
        """The predictions of a block."""
        notes = [
            Note(str(name), str(text), extra=json.loads(extra))
            for name, text, extra in zip(block["id"], block["text"], block["extra"])
        ]
        found = [
            json.dumps([suggestion.to_json() for suggestion in suggestions], ensure_ascii=False)
            for suggestions in self.coder.code_all(notes, self.top)
        ]
        return {"place": list(block["place"]), "id": list(block["id"]), "codes": found}


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

    address: that of a running cluster ("auto" finds it); without one, a cluster of this machine is started and ended.
    The bundle must lie at the same path on every machine of the cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--engine ray needs its own packages: pip install nosology[ray]") from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ours = not ray.is_initialized()
    if ours:
        started = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(**started, log_to_driver=False, logging_level="ERROR")
    options = {
        "folder": str(bundle if is_day_one(bundle) else Path(bundle).absolute()),
        "release": release,
        "codes": None if codes is None else str(Path(codes).absolute()),
        "systems": tuple(systems),
    }
    try:
        yield from _coded(iter(notes), options, top, workers)
    finally:
        if ours:
            ray.shutdown()


def row_of(place: int, note: Note) -> dict[str, Any]:
    """A note as a row of a block; what stands beside its text is JSON, for notes may have different columns."""
    return {"place": place, "id": note.id, "text": note.text, "extra": json.dumps(dict(note.extra), default=str)}


def _coded(notes: Iterator[Note], options: dict[str, Any], top: int | None, workers: int) -> Iterator[tuple[str, str]]:
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    while block := list(islice(notes, _BLOCK)):
        rows = [row_of(place, note) for place, note in enumerate(block)]
        data = ray.data.from_items(rows, override_num_blocks=max(1, min(len(rows), 4 * workers)))
        found = data.map_batches(
            RayCoder,
            fn_constructor_args=(options, top),
            batch_size=_BATCH,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        ).take_all()
        for row in sorted(found, key=lambda row: row["place"]):
            yield row["id"], row["codes"]
