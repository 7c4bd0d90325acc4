"""Encoders over word vectors: embedding, convolution (CAML), bidirectional GRU or LSTM (LAAT), AWD-LSTM (PLANT).

Shapes: B notes, T tokens, E width of a word vector, D width of a state, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nosology.encoders import gru_kernel
from nosology.encoders.dropout_rates import NO_DROPOUT, DropoutRates
from nosology.encoders.lstm_kernel import bidirectional_lstm
from nosology.encoders.tokenizers import PAD

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}
LstmState = tuple[tuple[Tensor, Tensor], ...]  # hidden and cell state (1, B, D) of each layer


def word_embedding(words: int, size: int, vectors: Tensor | None) -> nn.Embedding:
    """A trainable embedding (V, E) that starts with `vectors` or at random; the vector of padding is and stays zero."""
    embedding = nn.Embedding(words, size, padding_idx=PAD)
    if vectors is not None:
        with torch.no_grad():
            embedding.weight.copy_(vectors)
            embedding.weight[PAD] = 0
    return embedding


@contextmanager
def _rnn_precision(x: Tensor) -> Iterator[torch.dtype]:
    """The dtype in which an RNN computes, with autocast off: autocast would run RNNs in float16 also for bfloat16."""
    dtype = _rnn_dtype(x)
    with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        yield dtype


def _rnn_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype


def _rnn_options(training: bool) -> tuple[bool, int, float, bool, bool, bool]:
    """The last arguments of torch.lstm and torch.gru, in their order, for one layer in one direction."""
    return True, 1, 0.0, training, False, True


class ConvEncoder(nn.Module):
    """State t = W x[t-(k-1)//2 .. t+k//2] + b, without a nonlinearity and with zeros outside of the note.

    symmetric_padding: k // 2 zeros on both sides. For an even kernel this gives T + 1 states.
    """

    def __init__(self, inputs: int, filters: int, kernel: int, *, symmetric_padding: bool = False):
        super().__init__()
        self.width = filters
        self.kernel = kernel
        self.left_padding = kernel // 2 if symmetric_padding else (kernel - 1) // 2
        self.conv = nn.Conv1d(inputs, filters, kernel)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of embedded tokens (B, T, E); lengths: (B,). States of padding are undefined."""
        padding = torch.arange(x.shape[1], device=x.device) >= lengths.to(x.device)[:, None]
        x = x.masked_fill(padding[..., None], 0)  # the vector of padding may have been trained elsewhere
        x = nn.functional.pad(x, (0, 0, self.left_padding, self.kernel // 2))
        # One matrix product over all windows: cuDNN takes many times as long for thousands of short texts.
        windows = x.unfold(1, self.kernel, 1).flatten(2)  # (B, T, E k)
        return nn.functional.linear(windows, self.conv.weight.flatten(1), self.conv.bias)


class RecurrentEncoder(nn.Module):
    """One bidirectional layer of GRU or LSTM cells. Each note is read exactly to its end."""

    def __init__(self, inputs: int, hidden: int, cell: str):
        super().__init__()
        self.width = 2 * hidden
        self.cell = CELLS[cell](inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of embedded tokens (B, T, E); lengths: (B,) on the CPU. States of padding are 0."""
        use_kernel = gru_kernel.can_run(x, _rnn_dtype(x), self.cell.hidden_size)
        if x.is_cuda and not use_kernel:
            return self._run_packed(x, lengths)
        forward, backward, reversal, ends = self._run_padded(x, lengths, use_kernel=use_kernel)
        states = torch.cat([forward, backward.gather(1, reversal[..., None].expand_as(backward))], dim=-1)
        return states.masked_fill((torch.arange(x.shape[1], device=x.device) >= ends[:, None])[..., None], 0)

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The final states of both directions (B, D), forward first."""
        forward, backward, _, ends = self._run_padded(x, lengths)
        rows = torch.arange(len(x), device=x.device)
        return torch.cat([forward[rows, ends - 1], backward[rows, ends - 1]], dim=-1)

    def _run_padded(
        self, x: Tensor, lengths: Tensor, *, use_kernel: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Forward states, backward states (B, T, D / 2), positions of tokens in the reversed notes, and lengths (B,).

        The backward pass runs over notes that are reversed within their lengths, so that padding always comes last;
        its states are in reversed order. On a CPU this is several times faster than packed sequences. On a GPU it is
        faster for many short texts, because cuDNN copies the final state of each packed text separately.
        """
        ends = lengths.clamp(min=1).to(x.device, non_blocking=True)  # a note without a word is read as one padding
        reversal = (ends[:, None] - 1 - torch.arange(x.shape[1], device=x.device)).clamp(min=0)
        reversed_x = x.gather(1, reversal[..., None].expand_as(x))
        with _rnn_precision(x) as dtype:
            if use_kernel:
                return *self._run_kernel(x.to(dtype), reversed_x.to(dtype)), reversal, ends
            zero = x.new_zeros(1, len(x), self.width // 2, dtype=dtype)
            forward, backward = (
                self._run_cell(notes.to(dtype), zero, [weight.to(dtype) for weight in weights])
                for notes, weights in zip((x, reversed_x), self.cell.all_weights)
            )
        return forward, backward, reversal, ends

    def _run_kernel(self, x: Tensor, reversed_x: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and backward states (B, T, D / 2), both directions at once."""
        inputs = torch.stack([x, reversed_x]).transpose(1, 2)  # (2, T, B, E)
        weights = (torch.stack(pair).to(x.dtype) for pair in zip(*self.cell.all_weights))
        input_weight, weight, input_bias, bias = weights
        is_gru = isinstance(self.cell, nn.GRU)  # an LSTM adds both biases
        constant = input_bias if is_gru else input_bias + bias
        gates = torch.baddbmm(constant[:, None], inputs.flatten(1, 2), input_weight.transpose(1, 2))
        gates = gates.view(*inputs.shape[:3], -1)
        states = gru_kernel.bidirectional_gru(gates, weight, bias) if is_gru else bidirectional_lstm(gates, weight)
        return states[0].transpose(0, 1), states[1].transpose(0, 1)

    def _run_cell(self, x: Tensor, zero: Tensor, weights: list[Tensor]) -> Tensor:
        if isinstance(self.cell, nn.GRU):
            return torch.gru(x, zero, weights, *_rnn_options(self.training))[0]
        return torch.lstm(x, (zero, zero), weights, *_rnn_options(self.training))[0]

    def _run_packed(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The states from a packed sequence, in which cuDNN runs both directions at once."""
        longest, notes = lengths.clamp(min=1).sort(descending=True, stable=True)
        mask = torch.arange(int(longest[0]))[:, None] < longest  # (T, B): first tokens first, longest note first
        step, rank = mask.nonzero(as_tuple=True)
        # Of the packed tokens in x.flatten(0, 1). Without pinned memory the copy would wait for the GPU.
        positions = (notes[rank] * x.shape[1] + step).pin_memory().to(x.device, non_blocking=True)
        with _rnn_precision(x) as dtype:
            packed = PackedSequence(x.flatten(0, 1).index_select(0, positions).to(dtype), mask.sum(1))
            weights = {name: weight.to(dtype) for name, weight in self.cell.named_parameters()}
            states = torch.func.functional_call(self.cell, weights, (packed,))[0].data
        # pad_packed_sequence would pass over everything once for each different length.
        flat = states.new_zeros(x.shape[0] * x.shape[1], self.width)
        return flat.index_copy(0, positions, states).view(*x.shape[:2], self.width)


class AwdLstm(nn.Module):
    """AWD-LSTM (Merity et al. 2018): an embedding and LSTM layers, the last as wide as the embedding.

    Names of weights are those of the published WikiText-103 models (`encoder.weight`, `rnns.0.weight_hh_l0_raw`,
    `rnns.0.module.weight_ih_l0`, ...), so that these can be loaded.
    """

    def __init__(
        self, words: int, size: int = 400, hidden: int = 1152, layers: int = 3, dropout: DropoutRates = NO_DROPOUT
    ):
        super().__init__()
        self.width, self.dropout = size, dropout
        self.encoder = nn.Embedding(words, size, padding_idx=PAD)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        sizes = [size, *[hidden] * (layers - 1), size]
        self.rnns = nn.ModuleList(WeightDropLstm(*pair) for pair in pairwise(sizes))

    def forward(self, tokens: Tensor, state: LstmState | None = None) -> tuple[Tensor, LstmState]:
        """States (B, T, D) of tokens (B, T), and the LSTM state after the last token.

        state: LSTM state after the preceding words of the text; None at the start of a text. Padding must follow the
        words. It changes no state of a word, but the returned LSTM state is then that of padding.
        """
        x = locked_dropout(self._embed(tokens), self.dropout.input, self.training)
        final = []
        for number, layer in enumerate(self.rnns):
            if number:
                x = locked_dropout(x, self.dropout.hidden, self.training)
            x, last = layer(x, state[number] if state else None, self.dropout.weight)
            final.append(last)
        return x, tuple(final)

    def _embed(self, tokens: Tensor) -> Tensor:
        if not (self.training and self.dropout.embedding):
            return self.encoder(tokens)
        mask = torch.empty(len(self.encoder.weight), 1, device=tokens.device).bernoulli_(1 - self.dropout.embedding)
        # Only the words of the batch are multiplied, not the whole table.
        return self.encoder(tokens) * (mask / (1 - self.dropout.embedding))[tokens]


class WeightDropLstm(nn.Module):
    """An LSTM layer with dropout on its recurrent weights."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.module = nn.Module()
        self.width = outputs
        bound = outputs**-0.5
        shapes = {"weight_ih_l0": (4 * outputs, inputs), "bias_ih_l0": (4 * outputs,), "bias_hh_l0": (4 * outputs,)}
        for name, shape in shapes.items():
            self.module.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))
        self.weight_hh_l0_raw = nn.Parameter(torch.empty(4 * outputs, outputs).uniform_(-bound, bound))

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None, dropout: float
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """States (B, T, D) and the last hidden and cell state (1, B, D) of inputs (B, T, E)."""
        recurrent = nn.functional.dropout(self.weight_hh_l0_raw, dropout, self.training)
        get = self.module.get_parameter
        weights = [get("weight_ih_l0"), recurrent, get("bias_ih_l0"), get("bias_hh_l0")]
        with _rnn_precision(x) as dtype:
            start = state or 2 * (x.new_zeros(1, len(x), self.width, dtype=dtype),)
            inputs = x.to(dtype), [tensor.to(dtype) for tensor in start], [weight.to(dtype) for weight in weights]
            states, hidden, cell = torch.lstm(*inputs, *_rnn_options(self.training))
        return states, (hidden, cell)


def locked_dropout(x: Tensor, dropout: float, training: bool) -> Tensor:
    """x (B, T, D) with the same features dropped at every word of a text (locked or variational dropout)."""
    if not (training and dropout):
        return x
    mask = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(1 - dropout)
    return x * (mask / (1 - dropout))


def detach_state(state: LstmState) -> LstmState:
    """The LSTM state without its graph, for truncated backpropagation through time."""
    return tuple((hidden.detach(), cell.detach()) for hidden, cell in state)
