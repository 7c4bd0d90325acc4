"""A training step that a GPU records once and repeats: its many small kernels cost more to launch than to run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM = 3  # steps before the recording: memory is laid out and the optimiser has its moments
_WORTH = 12  # steps; fewer are over before a recording pays


class Repeated:
    """A step that is the same at every call but for its tensors. On a CPU, and for few calls, it is just called."""

    def __init__(self, step: Callable[..., None], calls: int, device: torch.device):
        self._step = step
        self._records = device.type == "cuda" and calls >= _WORTH
        self._warm, self._shapes = 0, None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []

    def __call__(self, *inputs: Tensor) -> None:
        """Takes the step. What it reads beside its inputs must stay where it is in memory, and it may not wait."""
        shapes = [value.shape for value in inputs]
        self._shapes = self._shapes or shapes
        if not self._records or shapes != self._shapes:  # as the last, smaller batch of an epoch
            self._step(*inputs)
        elif self._warm < _WARM:
            self._beside(*inputs)
        else:
            self._replay(*inputs)

    def _beside(self, *inputs: Tensor) -> None:
        """Takes the step on a stream of its own, as recording wants it."""
        self._warm += 1
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            self._step(*inputs)
        here.wait_stream(beside)

    def _replay(self, *inputs: Tensor) -> None:
        if self._graph is None:
            self._inputs = [value.clone() for value in inputs]
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step(*self._inputs)
        for mine, given in zip(self._inputs, inputs):
            mine.copy_(given)
        self._graph.replay()


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
