"""The GRU and LSTM kernels, interpreted one word at a time, compared with torch: run with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch

from nosology.encoders import gru_kernel
from nosology.encoders.lstm_kernel import bidirectional_lstm

HIDDEN, INPUTS, WORDS, NOTES = 32, 6, 5, 3


def run_kernel(cell: torch.nn.RNNBase, x: torch.Tensor) -> torch.Tensor:
    """The states (T, B, 2H) by the kernels."""
    is_gru = isinstance(cell, torch.nn.GRU)
    inputs = zip((x, x.flip(0)), cell.all_weights)
    gates = torch.stack([i @ w[0].T + w[2] + (0 if is_gru else w[3]) for i, w in inputs])
    weight, bias = (torch.stack([w[k] for w in cell.all_weights]) for k in (1, 3))
    states = gru_kernel.bidirectional_gru(gates, weight, bias) if is_gru else bidirectional_lstm(gates, weight)
    return torch.cat([states[0], states[1].flip(0)], -1)


def compare(cell: torch.nn.RNNBase) -> None:
    """The states and all gradients of both directions; the batch is no power of two."""
    x = torch.randn(WORDS, NOTES, INPUTS, requires_grad=True)
    weight = torch.randn(WORDS, NOTES, 2 * HIDDEN)
    leaves = [x, *cell.parameters()]
    results = []
    for states in (run_kernel(cell, x), cell(x)[0]):
        results.append([states, *torch.autograd.grad((states * weight).sum(), leaves)])
    for actual, expected in zip(*results):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
        assert expected.abs().max() > 0.01


if __name__ == "__main__":
    torch.manual_seed(0)
    gru_kernel.WORDS, gru_kernel._CHUNK = 1, 16
    compare(torch.nn.GRU(INPUTS, HIDDEN, bidirectional=True))
    compare(torch.nn.LSTM(INPUTS, HIDDEN, bidirectional=True))
    print("the kernels agree with torch")
