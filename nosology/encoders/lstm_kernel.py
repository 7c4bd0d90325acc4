"""A bidirectional LSTM layer for small batches on NVIDIA GPUs, as one kernel that runs over all words of the notes.

The same scheme as `gru_kernel`:

    i, f, o = sigmoid(x + W h)    g = tanh(x_g + W_g h)    c' = f c + i g    h' = o tanh(c')

Shapes: two directions, T words, B notes, H hidden units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nosology.encoders.gru_kernel import run_backward, run_forward, sigmoid, tanh, wait
from nosology.encoders.triton_language import jit, tl


@jit
def _forward(
    gates,
    weight,
    states,
    cells,
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
    in_gates = row[:, None] * (4 * H) + unit[None, :]
    weight += direction * 4 * H * H
    size = notes * H  # of the states of a word
    states += direction.to(tl.int64) * (words + 1) * size
    cells += direction.to(tl.int64) * (words + 1) * size
    gates += direction.to(tl.int64) * words * size * 4
    saved += direction.to(tl.int64) * words * size * 4
    c = tl.load(cells + first * size + own, mask=inside, other=0.0).to(tl.float32)
    for word in range(first, last):
        at = tl.cast(word, tl.int64) * size
        i = tl.load(gates + at * 4 + in_gates, mask=inside, other=0.0).to(tl.float32)
        f = tl.load(gates + at * 4 + in_gates + H, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gates + at * 4 + in_gates + 2 * H, mask=inside, other=0.0).to(tl.float32)
        o = tl.load(gates + at * 4 + in_gates + 3 * H, mask=inside, other=0.0).to(tl.float32)
        for start in tl.static_range(0, H, CHUNK):
            k = start + tl.arange(0, CHUNK)
            # Past the first-level cache, which does not see what other programs write.
            part = tl.load(states + at + row[:, None] * H + k[None, :], mask=inside, other=0.0, cache_modifier=".cg")
            w = weight + unit[None, :] * H + k[:, None]
            i = tl.dot(part, tl.load(w), i)
            f = tl.dot(part, tl.load(w + H * H), f)
            g = tl.dot(part, tl.load(w + 2 * H * H), g)
            o = tl.dot(part, tl.load(w + 3 * H * H), o)
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        c = f * c + i * g
        tl.store(states + at + size + own, (o * tanh(c)).to(states.dtype.element_ty), mask=inside)
        tl.store(cells + at + size + own, c.to(cells.dtype.element_ty), mask=inside)
        keep = saved + at * 4 + in_gates
        tl.store(keep, i.to(saved.dtype.element_ty), mask=inside)
        tl.store(keep + H, f.to(saved.dtype.element_ty), mask=inside)
        tl.store(keep + 2 * H, g.to(saved.dtype.element_ty), mask=inside)
        tl.store(keep + 3 * H, o.to(saved.dtype.element_ty), mask=inside)
        if SYNC:
            wait(counters + direction, (word - first + 1) * (H // UNITS))


@jit
def _backward(
    d_states,
    weight,
    cells,
    saved,
    d_gates,
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
    in_gates = row[:, None] * (4 * H) + unit[None, :]
    weight += direction * 4 * H * H
    size = notes * H
    cells += direction.to(tl.int64) * (words + 1) * size
    d_states += direction.to(tl.int64) * words * size
    d_gates += direction.to(tl.int64) * words * size * 4
    saved += direction.to(tl.int64) * words * size * 4
    d_first += direction * 2 * size  # of the state, then of the cell
    d_h = tl.load(d_first + own, mask=inside, other=0.0)
    d_c = tl.load(d_first + size + own, mask=inside, other=0.0)
    for step in range(first, last):
        at = tl.cast(words - 1 - step, tl.int64) * size
        if DERIVE:
            keep = saved + at * 4 + in_gates
            i = tl.load(keep, mask=inside, other=0.0).to(tl.float32)
            f = tl.load(keep + H, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(keep + 2 * H, mask=inside, other=0.0).to(tl.float32)
            o = tl.load(keep + 3 * H, mask=inside, other=0.0).to(tl.float32)
            before = tl.load(cells + at + own, mask=inside, other=0.0).to(tl.float32)
            d_h += tl.load(d_states + at + own, mask=inside, other=0.0).to(tl.float32)
            c = tanh(f * before + i * g)
            d_c += d_h * o * (1.0 - c * c)
            out = d_gates + at * 4 + in_gates
            tl.store(out, (d_c * g * i * (1.0 - i)).to(d_gates.dtype.element_ty), mask=inside)
            tl.store(out + H, (d_c * before * f * (1.0 - f)).to(d_gates.dtype.element_ty), mask=inside)
            tl.store(out + 2 * H, (d_c * i * (1.0 - g * g)).to(d_gates.dtype.element_ty), mask=inside)
            tl.store(out + 3 * H, (d_h * c * o * (1.0 - o)).to(d_gates.dtype.element_ty), mask=inside)
            d_c = d_c * f
            d_h = tl.zeros((ROWS, UNITS), tl.float32)
            if PROPAGATE:
                wait(counters + direction, (step - first + 1) * (H // UNITS))
        if PROPAGATE:
            for start in tl.static_range(0, H, CHUNK):
                k = start + tl.arange(0, CHUNK)
                of_gates = d_gates + at * 4 + row[:, None] * (4 * H) + k[None, :]
                w = weight + unit[None, :] * H + k[:, None]
                for gate in tl.static_range(4):
                    part = tl.load(of_gates + gate * H, mask=inside, other=0.0, cache_modifier=".cg")
                    d_h = tl.dot(part, tl.load(w + gate * H * H), d_h)
    tl.store(d_first + own, d_h, mask=inside)
    tl.store(d_first + size + own, d_c, mask=inside)


def bidirectional_lstm(gates: Tensor, weight: Tensor) -> Tensor:
    """States (2, T, B, H) of both directions.

    gates: (2, T, B, 4H), W x + b of the inputs for i, f, g and o, with all biases; the second direction reads the notes
    in reversed order. weight: (2, 4H, H), of the states. Both have the same 16-bit type on a GPU.
    """
    return _BidirectionalLstm.apply(gates, weight)


class _BidirectionalLstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor) -> Tensor:
        two, words, notes, all_gates = gates.shape
        hidden = all_gates // 4
        states, cells = gates.new_empty(2, two, words + 1, notes, hidden)
        states[:, 0] = cells[:, 0] = 0
        saved = torch.empty_like(gates)
        tensors = (gates.contiguous(), weight.contiguous(), states, cells, saved)
        run_forward(_forward, tensors, words, notes, hidden)
        ctx.save_for_backward(weight, states, cells, saved)
        return states[:, 1:]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        weight, states, cells, saved = ctx.saved_tensors
        two, words, notes, hidden = grad_outputs[0].shape
        d_gates = torch.empty_like(saved)
        d_first = torch.zeros(two, 2, notes, hidden, device=saved.device)
        # By the columns of each gate, so that a program reads its weights in order.
        columns = weight.view(two, 4, hidden, hidden).transpose(2, 3).contiguous()
        tensors = (grad_outputs[0].contiguous(), columns, cells, saved, d_gates, d_first)
        run_backward(_backward, tensors, words, notes, hidden)
        rows, before = d_gates.view(two, -1, 4 * hidden), states[:, :-1].reshape(two, -1, hidden)
        return d_gates, torch.bmm(rows.transpose(1, 2), before)
