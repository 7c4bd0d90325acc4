"""A recurrent network that reads a note in both directions."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


class _Order(NamedTuple):
    """How the tokens of padded notes follow one another when packed: first tokens first, longest note first."""

    places: Tensor  # (tokens,) of each packed token in the flat (B T) rectangle
    sizes: Tensor  # (T,) notes that have a token t, on the CPU
    back: Tensor  # (B,) where a note stands among the notes sorted by length

    @staticmethod
    def of(lengths: Tensor, width: int, device: torch.device) -> _Order:
        # A note without a word is read as one pad; its states are never attended to.
        longest, notes = lengths.clamp(min=1).sort(descending=True, stable=True)
        inside = torch.arange(int(longest[0]))[:, None] < longest
        step, rank = inside.nonzero(as_tuple=True)
        return _Order((notes[rank] * width + step).to(device), inside.sum(1), notes.argsort().to(device))


class Recurrent(nn.Module):
    """One bidirectional layer of GRU or LSTM cells; each note is read to its own end and no further."""

    def __init__(self, inputs: int, hidden: int, cell: str):
        super().__init__()
        self.width = 2 * hidden
        self.cell = CELLS[cell](inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of embedded tokens (B, T, E); lengths: (B,) on the CPU. States after a note's end are 0."""
        order = _Order.of(lengths, x.shape[1], x.device)
        packed, _ = self._run(x, order)
        # torch's own unpacking takes a pass over everything for each different length.
        flat = packed.new_zeros(x.shape[0] * x.shape[1], self.width)
        return flat.index_copy(0, order.places, packed).view(*x.shape[:2], self.width)

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The final states of both directions (B, D), forward first."""
        if x.is_cuda and isinstance(self.cell, nn.GRU):
            return self._last_of_padded(x, lengths)
        order = _Order.of(lengths, x.shape[1], x.device)
        _, final = self._run(x, order)
        if isinstance(final, tuple):
            final = final[0]
        return torch.cat([final[0], final[1]], dim=-1)[order.back]

    def _last_of_padded(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The same by two GRUs over the rectangle, the second over texts turned round within their own lengths.

        cuDNN copies the final state of each packed text by itself, which for thousands of texts takes longer than the
        pads do here.
        """
        kind = torch.get_autocast_dtype("cuda") if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype
        end = lengths.clamp(min=1).to(x.device, non_blocking=True)
        step = torch.arange(x.shape[1], device=x.device)
        turned = (end[:, None] - 1 - step).clamp(min=0)
        back = x.gather(1, turned[..., None].expand_as(x))
        start = x.new_zeros(1, len(x), self.width // 2, dtype=kind)
        final = []
        with torch.autocast("cuda", enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            for texts, weights in zip((x, back), self.cell.all_weights):
                cast = [weight.to(kind) for weight in weights]
                states, _ = torch.gru(texts.to(kind), start, cast, True, 1, 0.0, self.training, False, True)
                final.append(states[torch.arange(len(x), device=x.device), end - 1])
        return torch.cat(final, dim=-1)

    def _run(self, x: Tensor, order: _Order) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        """The packed states (tokens, D) and the final ones (2, B, hidden), longest note first."""
        packed = PackedSequence(x.flatten(0, 1).index_select(0, order.places), order.sizes)
        if not (x.is_cuda and torch.is_autocast_enabled("cuda")):
            states, final = self.cell(packed)
            return states.data, final
        # Autocast would run the cells in float16, whatever it was asked for.
        kind = torch.get_autocast_dtype("cuda")
        weights = {name: weight.to(kind) for name, weight in self.cell.named_parameters()}
        with torch.autocast("cuda", enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            cast = PackedSequence(packed.data.to(kind), packed.batch_sizes)
            states, final = torch.func.functional_call(self.cell, weights, (cast,))
        return states.data, final
