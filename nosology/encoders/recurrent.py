"""A recurrent network that reads a note in both directions."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """One bidirectional layer of GRU or LSTM cells; each note is read to its own end and no further."""

    def __init__(self, inputs: int, hidden: int, cell: str):
        super().__init__()
        self.width = 2 * hidden
        self.cell = CELLS[cell](inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of embedded tokens (B, T, E); lengths: (B,) on the CPU. States after a note's end are 0."""
        packed, _ = self._run(x, lengths)
        return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0]

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The final states of both directions (B, D), forward first."""
        _, final = self._run(x, lengths)
        if isinstance(final, tuple):
            final = final[0]
        return torch.cat([final[0], final[1]], dim=-1)

    def _run(self, x: Tensor, lengths: Tensor) -> tuple[PackedSequence, Tensor]:
        # A note without a word is read as one pad; its states are never attended to.
        packed = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        if not (x.is_cuda and torch.is_autocast_enabled("cuda")):
            return self.cell(packed)
        # Autocast would run the cells in float16, whatever it was asked for.
        kind = torch.get_autocast_dtype("cuda")
        weights = {name: weight.to(kind) for name, weight in self.cell.named_parameters()}
        with torch.autocast("cuda", enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            cast = PackedSequence(packed.data.to(kind), *packed[1:])
            return torch.func.functional_call(self.cell, weights, (cast,))
