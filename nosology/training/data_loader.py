"""Batches of padded notes, and the loader that prepares them in background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import count, islice
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from nosology.encoders.tokenizers import PAD
from nosology.training.batch_plan import WIDTH_MULTIPLE, BatchPlan, EpochSteps, StepPlan, derive_seed
from nosology.training.inference import memory_budget
from nosology.training.recipe_settings import TrainerSettings


class DeviceBatch(Protocol):
    """What the trainer needs of a batch: it can be moved to a device."""

    def to(self, device: torch.device) -> Self:
        """The batch on a device."""
        ...


BatchT = TypeVar("BatchT", bound=DeviceBatch)
PrepareStep = Callable[[np.ndarray, np.random.Generator], Any]  # all notes of a step -> data for its micro-batches
MakeBatch = Callable[[np.ndarray, Any], DeviceBatch]  # notes of a micro-batch, result of PrepareStep -> batch

_PREFETCHED_STEPS = 2
_CPU_MICRO_BATCHES = 2  # per step: one and two processes then compute the same; on a CPU this costs nothing


@dataclass(frozen=True)
class Batch:
    """B notes of at most T tokens, and the L labels they are scored against."""

    tokens: Tensor  # (B, T) int64, PAD after the end of each note
    lengths: Tensor  # (B,) int64, always on the CPU
    # (L,) int64: the labels that are scored; None: all. (B, L) for `LabelNet.note_attention`. `to` leaves it on the CPU
    labels: Tensor | None = None
    targets: Tensor | None = None  # (B, L) float32, 0 or 1
    notes: Tensor | None = None  # (B,) int64, on the CPU: rows of the train notes
    states: Tensor | None = None  # (B, T, D) of the tokens, if they are known (`LabelNet.with_states`)

    @property
    def mask(self) -> Tensor:
        """Mask (B, T): True at the tokens of the notes, False at padding."""
        return token_mask(self.lengths, self.tokens.shape[1], self.tokens.device)

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device. Lengths and labels stay on the CPU: reading them from a GPU would wait for it."""
        targets = None if self.targets is None else self.targets.to(device, non_blocking=True)
        return replace(self, tokens=self.tokens.to(device, non_blocking=True), targets=targets)


def pad_notes(notes: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) and lengths (B,) of notes given as arrays of token ids; an empty note has length 0."""
    lengths = [len(note) for note in notes]
    width = max(WIDTH_MULTIPLE, -(-max(lengths) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE)
    return pad_rows(notes, width, PAD, np.int64), torch.tensor(lengths, dtype=torch.int64)


def pad_rows(rows: Sequence[np.ndarray], width: int, pad: float, dtype: type[np.generic]) -> Tensor:
    """Rows of different lengths as (B, width), padded at the end. It uses numpy, which is faster for short rows."""
    padded = np.full((len(rows), width), pad, dtype=dtype)
    for target, row in zip(padded, rows):
        target[: len(row)] = row
    return torch.from_numpy(padded)


def token_mask(lengths: Tensor, width: int, device: torch.device) -> Tensor:
    """Mask (B, T): True at the tokens of the notes, False at padding."""
    return torch.arange(width, device=device) < lengths.to(device, non_blocking=True)[:, None]


def make_batch_plan(
    lengths: np.ndarray,
    groups: np.ndarray,
    settings: TrainerSettings,
    seed: int,
    device: torch.device,
    processes: int = 1,
) -> BatchPlan:
    """The batches of notes with these lengths (N,) and groups (N,) on a device."""
    return BatchPlan(
        lengths,
        np.unique(groups, return_inverse=True)[1],
        settings.batch,
        settings.micro_tokens or memory_budget(device),
        seed,
        settings.micro_batches or max(processes, 1 if device.type == "cuda" else _CPU_MICRO_BATCHES),
    )


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step that is in memory at once."""

    number: int  # within the step
    weight: float  # share of the notes of the step; 0: computed only to keep the processes in step
    batch: DeviceBatch


@dataclass(frozen=True)
class StepBatches:
    """The micro-batches of one step that one process computes."""

    epoch: int
    step: int  # within the epoch
    notes: int  # of all processes
    micro_batches: list[MicroBatch]  # the same number in all processes


@dataclass(frozen=True)
class BatchLoader:
    """Loads the steps of a plan; the micro-batches of a step are distributed over the processes."""

    plan: StepPlan
    make_batch: MakeBatch
    prepare_step: PrepareStep | None = None
    rank: int = 0
    world_size: int = 1
    pin_memory: bool = False
    threads: int = 1  # steps that are prepared at the same time; their order stays

    def steps(self, epoch: int, step: int) -> Generator[StepBatches, None, None]:
        """All steps from the given one on, without end. Closing the iterator ends the threads."""
        positions = ((e, s) for e in count(epoch) for s in range(step if e == epoch else 0, len(self.plan)))
        epoch_plan = lru_cache(maxsize=1)(self.plan.epoch)
        prefetched = max(_PREFETCHED_STEPS, self.threads)
        with ThreadPoolExecutor(self.threads, thread_name_prefix="batches") as pool:
            queue: deque[Future[StepBatches]] = deque()
            try:
                while True:
                    for position in islice(positions, 1 + prefetched - len(queue)):
                        queue.append(pool.submit(self._load, epoch_plan, *position))
                    yield queue.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _load(self, epoch_plan: Callable[[int], EpochSteps], epoch: int, step: int) -> StepBatches:
        rows = epoch_plan(epoch)[step]
        notes = np.concatenate(rows)
        rng = np.random.default_rng(derive_seed("step", self.plan.seed, epoch, step))
        prepared = self.prepare_step(notes, rng) if self.prepare_step else None
        micro_batches = []
        for number in range(self.rank, -(-len(rows) // self.world_size) * self.world_size, self.world_size):
            weight = len(rows[number]) / len(notes) if number < len(rows) else 0.0
            number = min(number, len(rows) - 1)  # a process without a micro-batch computes the last one with weight 0
            batch = self.make_batch(rows[number], prepared)
            micro_batches.append(MicroBatch(number, weight, pin_memory(batch) if self.pin_memory else batch))
        return StepBatches(epoch, step, len(notes), micro_batches)


def on_device(steps: Iterable[StepBatches], device: torch.device) -> Iterator[StepBatches]:
    """The steps with their batches on a device. A GPU copies the next step on a stream of its own while it computes."""
    if device.type != "cuda":
        yield from (_moved(step, device) for step in steps)
        return
    copies = torch.cuda.Stream(device)
    ready: tuple[StepBatches, torch.cuda.Event] | None = None
    for step in steps:
        current, copied = torch.cuda.current_stream(device), torch.cuda.Event()
        # A copy may reuse the memory of earlier steps: it waits for them, and runs beside the one that starts next.
        copies.wait_stream(current)
        with torch.cuda.stream(copies):
            moved = _moved(step, device)
            copied.record()
        if ready is not None:
            current.wait_event(ready[1])
            yield ready[0]
        ready = moved, copied
    if ready is not None:
        torch.cuda.current_stream(device).wait_event(ready[1])
        yield ready[0]


def _moved(step: StepBatches, device: torch.device) -> StepBatches:
    return replace(step, micro_batches=[replace(part, batch=part.batch.to(device)) for part in step.micro_batches])


def pin_memory(batch: BatchT) -> BatchT:
    """The batch in pinned memory, which a GPU copies without blocking."""
    if not is_dataclass(batch) or isinstance(batch, type):
        return batch
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: v.pin_memory() for name, v in values.items() if hasattr(v, "pin_memory")})
