"""CUDA graphs of training steps: captured once per shape and replayed, because launching small kernels is slow.

`run_epochs` is the training loop for data in memory; its steps may be such graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from nosology.training.recipe_settings import TrainerSettings, resolve_schedule

Shapes = tuple[torch.Size, ...]
T = TypeVar("T")

_WARMUP_CALLS = 3  # before the capture: memory is allocated and the optimizer has its state
_MIN_CALLS = 12  # fewer calls do not repay a capture


class CudaGraphStep:
    """A step that differs between calls only in its input tensors. Each combination of shapes has its own graph.

    On a CPU, and for few calls, the step is called without a graph.
    """

    def __init__(self, step: Callable[..., None], calls: int, device: torch.device):
        self._step = step
        self._use_graphs = device.type == "cuda" and calls >= _MIN_CALLS
        self._warmup_calls: Counter[Shapes] = Counter()
        self._graphs: dict[Shapes, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> None:
        """Takes the step. Other tensors that it reads must stay in place, and it must not wait for the device."""
        shapes = tuple(value.shape for value in inputs)
        if not self._use_graphs:
            self._step(*inputs)
        elif self._warmup_calls[shapes] < _WARMUP_CALLS:
            self._warmup_calls[shapes] += 1
            self._warm_up(*inputs)
        else:
            self._replay(shapes, *inputs)

    def _warm_up(self, *inputs: Tensor) -> None:
        """Takes the step on a side stream, as a capture requires."""
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._step(*inputs)
        current.wait_stream(side)

    def _replay(self, shapes: Shapes, *inputs: Tensor) -> None:
        if shapes not in self._graphs:
            static_inputs, graph = [value.clone() for value in inputs], torch.cuda.CUDAGraph()
            # Graphs never run at the same time and share no results, so all use one memory pool.
            pool = next(iter(self._graphs.values()))[0].pool() if self._graphs else None
            # thread_local: another thread loads batches during the capture
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._step(*static_inputs)
            self._graphs[shapes] = graph, static_inputs
        graph, static_inputs = self._graphs[shapes]
        for target, value in zip(static_inputs, inputs):
            target.copy_(value)
        graph.replay()


class CudaGraphBatchStep:
    """A `CudaGraphStep` for a step that takes a batch, of which it reads only tensors on the device."""

    def __init__(self, step: Callable[[Any, Tensor], None], calls: int, device: torch.device):
        """step: takes a batch (a dataclass with a field `lengths`) and its weight."""
        self._step, self._calls, self._device = step, calls, device
        self._graph_steps: dict[tuple[str, ...], CudaGraphStep] = {}  # by the names of the batch's tensors

    def __call__(self, batch: Any, weight: float) -> None:
        """Takes the step with a batch on the device; its lengths are moved there too."""
        batch = replace(batch, lengths=batch.lengths.to(self._device, non_blocking=True))
        weight_tensor = torch.full((), weight, device=self._device)
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        if any(value is not None and not isinstance(value, Tensor) for value in values.values()):
            self._step(batch, weight_tensor)  # e.g. synthetic rows, whose number differs between batches
            return
        names = tuple(name for name, v in values.items() if v is not None and v.device.type == self._device.type)
        if names not in self._graph_steps:

            def step(weight_tensor: Tensor, *tensors: Tensor) -> None:
                self._step(replace(batch, **dict(zip(names, tensors))), weight_tensor)

            self._graph_steps[names] = CudaGraphStep(step, self._calls, self._device)
        self._graph_steps[names](weight_tensor, *(values[name] for name in names))


def adamw(parameters: list[Tensor], learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that a CUDA graph can capture."""
    gpu, lr = parameters[0].is_cuda, _learning_rate(parameters, learning_rate)
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=gpu, foreach=not gpu, capturable=gpu)


def sgd(parameters: list[Tensor], learning_rate: float) -> torch.optim.SGD:
    """SGD without momentum that a CUDA graph can capture."""
    gpu = parameters[0].is_cuda
    return torch.optim.SGD(parameters, lr=_learning_rate(parameters, learning_rate), fused=gpu, foreach=not gpu)


def _learning_rate(parameters: list[Tensor], value: float) -> Tensor | float:
    return torch.tensor(value, device=parameters[0].device) if parameters[0].is_cuda else value


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Sets the learning rate, in place where a CUDA graph reads it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def run_epochs(
    optimizer: torch.optim.Optimizer,
    settings: TrainerSettings,
    epochs: range,
    steps_per_epoch: int,
    load_epoch: Callable[[int], Iterable[T]],
    take_step: Callable[[T], None],
) -> None:
    """Takes the steps of the epochs, each at the learning rate of the schedule.

    load_epoch: returns the batches of an epoch, one per step. take_step: takes a batch; steps the optimizer.
    The loop has no files, threads or processes: a federated round is a few steps over vectors in memory.
    """
    schedule = resolve_schedule(settings, steps_per_epoch)
    for epoch in epochs:
        for step, batch in enumerate(load_epoch(epoch)):
            factor = schedule.factor(epoch * steps_per_epoch + step)
            set_learning_rate(optimizer, settings.learning_rate * factor)
            take_step(batch)
