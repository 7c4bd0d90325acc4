"""A bidirectional GRU layer for small batches on NVIDIA GPUs, as one kernel that runs over all words of the notes.

With few notes, cuDNN spends its time on launching and finishing the step of each word. Here a program computes
some hidden units of one direction for all words and exchanges states with the other programs through memory, after
each word. All programs of a direction wait for each other, so they must be on the GPU at the same time: the launch is
cooperative, and `MAX_NOTES` bounds the batch.

    r = sigmoid(x_r + W_r h + b_r)    z = sigmoid(x_z + W_z h + b_z)    q = W_n h + b_n    n = tanh(x_n + r q)
    h' = (1 - z) n + z h

Shapes: two directions, T words, B notes, H hidden units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nosology.encoders.triton_language import AVAILABLE, jit, tl, triton

MAX_NOTES = 64
_UNITS = 16  # hidden units of a program
_CHUNK = 128  # of the hidden units that are read at once
WORDS = 1 << 30  # per launch; 1 in tests without a GPU, where no program can wait for another


@jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@jit
def wait(counter, count):
    """Waits until all programs of a direction have called this `count` times in total."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < count:
        pass
    tl.debug_barrier()


@jit
def _forward(
    gates,
    weight,
    bias,
    states,
    saved,
    counters,
    words,
    notes,
    first,
    last,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    CHUNK: tl.constexpr,
    SYNC: tl.constexpr,
):
    direction = tl.program_id(1)
    row, unit = tl.arange(0, ROWS), tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    inside = (row < notes)[:, None]
    own = row[:, None] * H + unit[None, :]
    in_gates = row[:, None] * (3 * H) + unit[None, :]
    in_saved = row[:, None] * (4 * H) + unit[None, :]
    weight += direction * 3 * H * H
    bias += direction * 3 * H + unit
    b_r, b_z, b_n = tl.load(bias), tl.load(bias + H), tl.load(bias + 2 * H)
    size = notes * H  # of the states of a word
    states += direction.to(tl.int64) * (words + 1) * size
    gates += direction.to(tl.int64) * words * size * 3
    saved += direction.to(tl.int64) * words * size * 4
    h = tl.load(states + first * size + own, mask=inside, other=0.0).to(tl.float32)
    for word in range(first, last):
        before = states + tl.cast(word, tl.int64) * size
        x = gates + tl.cast(word, tl.int64) * size * 3 + in_gates
        x_r = tl.load(x, mask=inside, other=0.0).to(tl.float32)
        x_z = tl.load(x + H, mask=inside, other=0.0).to(tl.float32)
        x_n = tl.load(x + 2 * H, mask=inside, other=0.0).to(tl.float32)
        r = tl.zeros((ROWS, UNITS), tl.float32)
        z = tl.zeros((ROWS, UNITS), tl.float32)
        q = tl.zeros((ROWS, UNITS), tl.float32)
        for start in tl.static_range(0, H, CHUNK):
            k = start + tl.arange(0, CHUNK)
            # Past the first-level cache, which does not see what other programs write.
            part = tl.load(before + row[:, None] * H + k[None, :], mask=inside, other=0.0, cache_modifier=".cg")
            w = weight + unit[None, :] * H + k[:, None]
            r = tl.dot(part, tl.load(w), r)
            z = tl.dot(part, tl.load(w + H * H), z)
            q = tl.dot(part, tl.load(w + 2 * H * H), q)
        r = sigmoid(x_r + r + b_r[None, :])
        z = sigmoid(x_z + z + b_z[None, :])
        q = q + b_n[None, :]
        n = tanh(x_n + r * q)
        h = n + z * (h - n)
        tl.store(before + size + own, h.to(states.dtype.element_ty), mask=inside)
        keep = saved + tl.cast(word, tl.int64) * size * 4 + in_saved
        tl.store(keep, r.to(saved.dtype.element_ty), mask=inside)
        tl.store(keep + H, z.to(saved.dtype.element_ty), mask=inside)
        tl.store(keep + 2 * H, n.to(saved.dtype.element_ty), mask=inside)
        tl.store(keep + 3 * H, q.to(saved.dtype.element_ty), mask=inside)
        if SYNC:
            wait(counters + direction, (word - first + 1) * (H // UNITS))


@jit
def _backward(
    d_states,
    weight,
    states,
    saved,
    d_gates,
    d_q,
    d_first,
    counters,
    words,
    notes,
    first,
    last,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    CHUNK: tl.constexpr,
    DERIVE: tl.constexpr,
    PROPAGATE: tl.constexpr,
):
    direction = tl.program_id(1)
    row, unit = tl.arange(0, ROWS), tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    inside = (row < notes)[:, None]
    own = row[:, None] * H + unit[None, :]
    in_gates = row[:, None] * (3 * H) + unit[None, :]
    in_saved = row[:, None] * (4 * H) + unit[None, :]
    weight += direction * 3 * H * H
    size = notes * H
    states += direction.to(tl.int64) * (words + 1) * size
    d_states += direction.to(tl.int64) * words * size
    d_gates += direction.to(tl.int64) * words * size * 3
    saved += direction.to(tl.int64) * words * size * 4
    d_q += direction.to(tl.int64) * words * size
    d_first += direction * size
    d_h = tl.load(d_first + own, mask=inside, other=0.0)
    for step in range(first, last):
        word = tl.cast(words - 1 - step, tl.int64)
        if DERIVE:
            keep = saved + word * size * 4 + in_saved
            r = tl.load(keep, mask=inside, other=0.0).to(tl.float32)
            z = tl.load(keep + H, mask=inside, other=0.0).to(tl.float32)
            n = tl.load(keep + 2 * H, mask=inside, other=0.0).to(tl.float32)
            q = tl.load(keep + 3 * H, mask=inside, other=0.0).to(tl.float32)
            h = tl.load(states + word * size + own, mask=inside, other=0.0).to(tl.float32)
            d_h += tl.load(d_states + word * size + own, mask=inside, other=0.0).to(tl.float32)
            d_n = d_h * (1.0 - z) * (1.0 - n * n)
            d_z = d_h * (h - n) * z * (1.0 - z)
            d_r = d_n * q * r * (1.0 - r)
            out = d_gates + word * size * 3 + in_gates
            tl.store(out, d_r.to(d_gates.dtype.element_ty), mask=inside)
            tl.store(out + H, d_z.to(d_gates.dtype.element_ty), mask=inside)
            tl.store(out + 2 * H, d_n.to(d_gates.dtype.element_ty), mask=inside)
            tl.store(d_q + word * size + own, (d_n * r).to(d_q.dtype.element_ty), mask=inside)
            d_h = d_h * z
            if PROPAGATE:
                wait(counters + direction, (step - first + 1) * (H // UNITS))
        if PROPAGATE:
            for start in tl.static_range(0, H, CHUNK):
                k = start + tl.arange(0, CHUNK)
                of_gates = d_gates + word * size * 3 + row[:, None] * (3 * H) + k[None, :]
                of_q = d_q + word * size + row[:, None] * H + k[None, :]
                w = weight + unit[None, :] * H + k[:, None]
                part = tl.load(of_gates, mask=inside, other=0.0, cache_modifier=".cg")
                d_h = tl.dot(part, tl.load(w), d_h)
                part = tl.load(of_gates + H, mask=inside, other=0.0, cache_modifier=".cg")
                d_h = tl.dot(part, tl.load(w + H * H), d_h)
                part = tl.load(of_q, mask=inside, other=0.0, cache_modifier=".cg")
                d_h = tl.dot(part, tl.load(w + 2 * H * H), d_h)
    tl.store(d_first + own, d_h, mask=inside)


def can_run(x: Tensor, dtype: torch.dtype, hidden: int) -> bool:
    """Whether the kernels exist for inputs (B, T, E) that are computed in this type, and fit on the GPU."""
    if not AVAILABLE or not x.is_cuda or dtype.itemsize != 2 or len(x) > MAX_NOTES or hidden % _CHUNK:
        return False
    # All programs run at the same time, for which one on each multiprocessor is surely possible.
    return 2 * (hidden // _UNITS) <= torch.cuda.get_device_properties(x.device).multi_processor_count


def bidirectional_gru(gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """States (2, T, B, H) of both directions.

    gates: (2, T, B, 3H), W x + b of the inputs for r, z and n; the second direction reads the notes in reversed order.
    weight: (2, 3H, H), bias: (2, 3H): of the states. gates and weight have the same 16-bit type on a GPU.
    """
    return _BidirectionalGru.apply(gates, weight, bias)


class _BidirectionalGru(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        two, words, notes, triple = gates.shape
        hidden = triple // 3
        states = gates.new_empty(two, words + 1, notes, hidden)
        states[:, 0] = 0
        saved = gates.new_empty(two, words, notes, 4 * hidden)
        tensors = (gates.contiguous(), weight.contiguous(), bias.float().contiguous(), states, saved)
        run_forward(_forward, tensors, words, notes, hidden)
        ctx.save_for_backward(weight, states, saved)
        return states[:, 1:]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight, states, saved = ctx.saved_tensors
        two, words, notes, hidden = grad_outputs[0].shape
        d_gates = saved.new_empty(two, words, notes, 3 * hidden)
        d_q = saved.new_empty(two, words, notes, hidden)
        d_first = torch.zeros(two, notes, hidden, device=saved.device)
        # By the columns of each gate, so that a program reads its weights in order.
        columns = weight.view(two, 3, hidden, hidden).transpose(2, 3).contiguous()
        tensors = (grad_outputs[0].contiguous(), columns, states, saved, d_gates, d_q, d_first)
        run_backward(_backward, tensors, words, notes, hidden)
        before = states[:, :-1].reshape(two, -1, hidden)
        rows = d_gates.view(two, -1, 3 * hidden)
        of_q = d_q.view(two, -1, hidden)
        products = [torch.bmm(d.transpose(1, 2), before) for d in (rows[..., : 2 * hidden], of_q)]
        d_bias = torch.cat([rows[..., : 2 * hidden].sum(1, dtype=torch.float32), of_q.sum(1, dtype=torch.float32)], 1)
        return d_gates, torch.cat(products, 1), d_bias


def run_forward(kernel: Any, tensors: tuple[Tensor, ...], words: int, notes: int, hidden: int) -> None:
    """Runs a forward kernel over all words."""
    for first in range(0, words, WORDS):
        last = min(first + WORDS, words)
        launch(kernel, tensors, (words, notes, first, last), hidden, SYNC=last - first > 1)


def run_backward(kernel: Any, tensors: tuple[Tensor, ...], words: int, notes: int, hidden: int) -> None:
    """Runs a backward kernel over all words, the last one first."""
    parts = ((True, True),) if WORDS > 1 else ((True, False), (False, True))
    for first in range(0, words, WORDS):
        for derive, propagate in parts:
            sizes = (words, notes, first, min(first + WORDS, words))
            launch(kernel, tensors, sizes, hidden, DERIVE=derive, PROPAGATE=propagate)


def launch(kernel: Any, tensors: tuple[Tensor, ...], sizes: tuple[int, ...], hidden: int, **flags: bool) -> None:
    """Runs a kernel for both directions; sizes: words, notes, first and last word."""
    counters = torch.zeros(2, dtype=torch.int32, device=tensors[0].device)
    rows = max(16, triton.next_power_of_2(sizes[1]))
    constants = {"H": hidden, "ROWS": rows, "UNITS": _UNITS, "CHUNK": _CHUNK, **flags}
    options = {"num_warps": 4, "launch_cooperative_grid": True}
    kernel[(hidden // _UNITS, 2)](*tensors, counters, *sizes, **constants, **options)
