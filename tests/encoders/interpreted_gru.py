"""The GRU kernels, interpreted on the CPU one word at a time, compared with torch: run with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch

from nosology.encoders import gru_kernel

HIDDEN, INPUTS, WORDS, NOTES = 32, 6, 5, 3


def main() -> None:
    """The states and all gradients of both directions, also with a batch that is no power of two."""
    torch.manual_seed(0)
    gru_kernel._WORDS, gru_kernel._CHUNK = 1, 16
    cell = torch.nn.GRU(INPUTS, HIDDEN, bidirectional=True)
    x = torch.randn(WORDS, NOTES, INPUTS, requires_grad=True)
    weight = torch.randn(WORDS, NOTES, 2 * HIDDEN)
    expected, _ = cell(x)
    leaves = [x, *cell.parameters()]
    gradients = torch.autograd.grad((expected * weight).sum(), leaves)
    directions = cell.all_weights
    inputs = (x, x.flip(0))
    gates = torch.stack([i @ w[0].T + w[2] for i, w in zip(inputs, directions)])
    recurrent, bias = (torch.stack([w[k] for w in directions]) for k in (1, 3))
    states = gru_kernel.bidirectional_gru(gates, recurrent, bias)
    actual = torch.cat([states[0], states[1].flip(0)], -1)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    for a, b in zip(torch.autograd.grad((actual * weight).sum(), leaves), gradients):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert b.abs().max() > 0.01
    print("the kernels agree with torch")


if __name__ == "__main__":
    main()
