"""AWD-LSTM: LSTM layers with dropped recurrent weights, which read a text and say its next word (Merity et al. 2017).

Names of weights are those of the published WikiText-103 models (`encoder.weight`, `rnns.0.weight_hh_l0_raw`,
`rnns.0.module.weight_ih_l0`, ...), so that these can be loaded.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nosology.encoders.vocabulary import PAD

State = tuple[tuple[Tensor, Tensor], ...]  # hidden and cell (1, B, width) of each layer


@dataclass(frozen=True)
class Dropouts:
    """How much is dropped where; a mask holds for all words of a text."""

    embedding: float = 0.0  # whole words of the vocabulary
    input: float = 0.0  # of the first layer
    weight: float = 0.0  # recurrent weights
    hidden: float = 0.0  # between layers
    output: float = 0.0  # before the next word is said


class AwdLstm(nn.Module):
    """Words -> states: an embedding and LSTM layers, the last as wide as the embedding."""

    def __init__(self, words: int, size: int = 400, hidden: int = 1152, layers: int = 3, drop: Dropouts = Dropouts()):  # noqa: B008
        super().__init__()
        self.width, self.drop = size, drop
        self.encoder = nn.Embedding(words, size, padding_idx=PAD)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        sizes = [size, *[hidden] * (layers - 1), size]
        self.rnns = nn.ModuleList(WeightDropped(*pair) for pair in pairwise(sizes))

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """States (B, T, D) of tokens (B, T), and the state after the last one.

        state: of the words before, where the text goes on; None: it begins. Pads stand behind a text: they change no
        state of a word, but the state after the last token is then that of a pad.
        """
        x = locked(self._embedded(tokens), self.drop.input, self.training)
        after = []
        for number, layer in enumerate(self.rnns):
            if number:
                x = locked(x, self.drop.hidden, self.training)
            x, last = layer(x, state[number] if state else None, self.drop.weight)
            after.append(last)
        return x, tuple(after)

    def _embedded(self, tokens: Tensor) -> Tensor:
        if not (self.training and self.drop.embedding):
            return self.encoder(tokens)
        kept = torch.empty(len(self.encoder.weight), 1, device=tokens.device).bernoulli_(1 - self.drop.embedding)
        # The table is not multiplied: only the words of the batch are.
        return self.encoder(tokens) * (kept / (1 - self.drop.embedding))[tokens]


class WeightDropped(nn.Module):
    """An LSTM layer whose recurrent matrix loses weights while it learns."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.module = nn.Module()
        self.width = outputs
        bound = outputs**-0.5
        for name, shape in (
            ("weight_ih_l0", (4 * outputs, inputs)),
            *((f"bias_{n}_l0", (4 * outputs,)) for n in _SIDES),
        ):
            self.module.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))
        self.weight_hh_l0_raw = nn.Parameter(torch.empty(4 * outputs, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None, drop: float) -> tuple[Tensor, tuple]:
        """States (B, T, D) and the last hidden and cell (1, B, D) of inputs (B, T, E)."""
        kind = torch.get_autocast_dtype("cuda") if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype
        recurrent = F.dropout(self.weight_hh_l0_raw, drop, self.training)
        weights = [self.module.weight_ih_l0, recurrent, self.module.bias_ih_l0, self.module.bias_hh_l0]
        start = state or 2 * (x.new_zeros(1, len(x), self.width, dtype=kind),)
        with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            made, *last = torch.lstm(
                x.to(kind),
                [s.to(kind) for s in start],
                [w.to(kind) for w in weights],
                True,
                1,
                0.0,
                self.training,
                False,
                True,
            )
        return made, tuple(last)


_SIDES = ("ih", "hh")


def locked(x: Tensor, drop: float, training: bool) -> Tensor:
    """x (B, T, D) with the same places of every word of a text dropped."""
    if not (training and drop):
        return x
    kept = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(1 - drop)
    return x * (kept / (1 - drop))


def detached(state: State) -> State:
    """The state without its history: what came before is no more learned from."""
    return tuple((hidden.detach(), cell.detach()) for hidden, cell in state)
