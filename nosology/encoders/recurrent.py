"""A recurrent network that reads a note in both directions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """One bidirectional layer of GRU or LSTM cells; each note is read to its own end and no further."""

    def __init__(self, inputs: int, hidden: int, cell: str):
        super().__init__()
        self.width = 2 * hidden
        self.cell = CELLS[cell](inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of embedded tokens (B, T, E); lengths: (B,) on the CPU. States after a note's end are 0."""
        if x.is_cuda:
            return self._packed(x, lengths)
        ahead, back, turned, end = self._rectangles(x, lengths)
        states = torch.cat([ahead, back.gather(1, turned[..., None].expand_as(back))], dim=-1)
        return states.masked_fill((torch.arange(x.shape[1]) >= end[:, None])[..., None], 0)

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The final states of both directions (B, D), forward first."""
        ahead, back, _, end = self._rectangles(x, lengths)
        rows = torch.arange(len(x), device=x.device)
        return torch.cat([ahead[rows, end - 1], back[rows, end - 1]], dim=-1)

    def _rectangles(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States of both directions (B, T, D / 2), where each token stands in a note turned round, and the ends (B,).

        Each direction is a pass of its own, the second over notes turned round within their own lengths, so that pads
        always come last. The second states are those of the notes turned round. On a CPU that is several times faster
        than packed notes are; on a GPU it is for many short texts, since cuDNN copies the final state of each packed
        text by itself.
        """
        end = lengths.clamp(min=1).to(x.device, non_blocking=True)  # a note without a word is read as one pad
        turned = (end[:, None] - 1 - torch.arange(x.shape[1], device=x.device)).clamp(min=0)
        back = x.gather(1, turned[..., None].expand_as(x))
        run = torch.gru if isinstance(self.cell, nn.GRU) else torch.lstm
        with self._precision(x) as kind:
            start = x.new_zeros(1, len(x), self.width // 2, dtype=kind)
            first = start if isinstance(self.cell, nn.GRU) else (start, start)
            ahead, back = (
                run(notes.to(kind), first, [w.to(kind) for w in weights], True, 1, 0.0, self.training, False, True)[0]
                for notes, weights in zip((x, back), self.cell.all_weights)
            )
        return ahead, back, turned, end

    def _packed(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The states by cuDNN's way with notes of different lengths, in which both directions run at once."""
        longest, notes = lengths.clamp(min=1).sort(descending=True, stable=True)
        inside = torch.arange(int(longest[0]))[:, None] < longest  # (T, B): first tokens first, longest note first
        step, rank = inside.nonzero(as_tuple=True)
        places = (notes[rank] * x.shape[1] + step).to(x.device)  # of the packed tokens in the flat rectangle
        with self._precision(x) as kind:
            packed = PackedSequence(x.flatten(0, 1).index_select(0, places).to(kind), inside.sum(1))
            weights = {name: weight.to(kind) for name, weight in self.cell.named_parameters()}
            states = torch.func.functional_call(self.cell, weights, (packed,))[0].data
        # torch's own unpacking takes a pass over everything for each different length.
        flat = states.new_zeros(x.shape[0] * x.shape[1], self.width)
        return flat.index_copy(0, places, states).view(*x.shape[:2], self.width)

    @contextmanager
    def _precision(self, x: Tensor) -> Iterator[torch.dtype]:
        """The precision to compute in, with autocast off: it would take float16, whatever it was asked for."""
        kind = x.dtype
        if x.is_cuda and torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
        with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            yield kind
