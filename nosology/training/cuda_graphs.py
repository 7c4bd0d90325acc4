"""A training step that a GPU records once and repeats: its many small kernels cost more to launch than to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from nosology.training.batch import Batch

Shapes = tuple[torch.Size, ...]

_WARM = 3  # steps before the recording: memory is laid out and the optimiser has its moments
_WORTH = 12  # steps; fewer are over before a recording pays


class Repeated:
    """A step that is the same at every call but for its tensors; each of their shapes has a recording of its own.

    On a CPU, and for few calls, it is just called.
    """

    def __init__(self, step: Callable[..., None], calls: int, device: torch.device):
        self._step = step
        self._records = device.type == "cuda" and calls >= _WORTH
        self._warm: Counter[Shapes] = Counter()
        self._recorded: dict[Shapes, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> None:
        """Takes the step. What it reads beside its inputs must stay where it is in memory, and it may not wait."""
        shapes = tuple(value.shape for value in inputs)
        if not self._records:
            self._step(*inputs)
        elif self._warm[shapes] < _WARM:
            self._warm[shapes] += 1
            self._beside(*inputs)
        else:
            self._replay(shapes, *inputs)

    def _beside(self, *inputs: Tensor) -> None:
        """Takes the step on a stream of its own, as recording wants it."""
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            self._step(*inputs)
        here.wait_stream(beside)

    def _replay(self, shapes: Shapes, *inputs: Tensor) -> None:
        if shapes not in self._recorded:
            mine, graph = [value.clone() for value in inputs], torch.cuda.CUDAGraph()
            # No two run at once and nothing of one is read after another: all may lie in the same memory.
            pool = next(iter(self._recorded.values()))[0].pool() if self._recorded else None
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # others make batches
                self._step(*mine)
            self._recorded[shapes] = graph, mine
        graph, mine = self._recorded[shapes]
        for place, given in zip(mine, inputs):
            place.copy_(given)
        graph.replay()


class RepeatedBatches:
    """The same for a step that takes a batch, of which it reads tensors on the device alone."""

    def __init__(self, step: Callable[[Batch, Tensor], None], calls: int, device: torch.device):
        """step: is given a batch and its share of all notes."""
        self._step, self._calls, self._device = step, calls, device
        self._of: dict[tuple[str, ...], Repeated] = {}  # by the names of the batch's tensors

    def __call__(self, batch: Batch, share: float) -> None:
        """Takes the step with a batch that is on the device; lengths go there too."""
        batch = replace(batch, lengths=batch.lengths.to(self._device, non_blocking=True))
        weight = torch.full((), share, device=self._device)
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        if any(value is not None and not isinstance(value, Tensor) for value in values.values()):
            self._step(batch, weight)  # rows between others, of which each batch has another number
            return
        names = tuple(name for name, v in values.items() if v is not None and v.device.type == self._device.type)
        if names not in self._of:

            def step(weight: Tensor, *tensors: Tensor) -> None:
                self._step(replace(batch, **dict(zip(names, tensors))), weight)

            self._of[names] = Repeated(step, self._calls, self._device)
        self._of[names](weight, *(values[name] for name in names))


def adamw(parameters: list[Tensor], rate: float, weight_decay: float) -> torch.optim.AdamW:
    """The optimiser of some parameters, on a GPU one that can be recorded."""
    gpu, lr = parameters[0].is_cuda, _rate(parameters, rate)
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=gpu, foreach=not gpu, capturable=gpu)


def sgd(parameters: list[Tensor], rate: float) -> torch.optim.SGD:
    """Plain descent, likewise."""
    gpu = parameters[0].is_cuda
    return torch.optim.SGD(parameters, lr=_rate(parameters, rate), fused=gpu, foreach=not gpu)


def _rate(parameters: list[Tensor], rate: float) -> Tensor | float:
    return torch.tensor(rate, device=parameters[0].device) if parameters[0].is_cuda else rate


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate, where a recorded step looks for it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
