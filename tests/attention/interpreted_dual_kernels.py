"""DualLAAT's GPU kernels, interpreted on the CPU, compared with plain torch: run with TRITON_INTERPRET=1.

A separate program, because triton decides at import whether kernels are compiled or interpreted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nosology.attention import dual_attention, dual_kernels

LENGTHS = torch.tensor([13, 1, 7])  # of notes in 13 columns, which no power of two divides


def near(actual: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding to bf16."""
    torch.testing.assert_close(actual.float(), expected, atol=2e-3, rtol=1e-2)


def softmax() -> None:
    """Weights, which are 0 at padding with any scores there, and their gradients."""
    scores = (3 * torch.randn(4, 2, 3, 13)).bfloat16()
    scores[..., 2, 7:] = 100.0
    plain, fused = scores.float(), scores.clone()
    dual_attention.masked_softmax_(plain, LENGTHS)
    dual_kernels.masked_softmax_(fused, LENGTHS)
    near(fused, plain)
    assert not fused[..., 1, 1:].any() and not fused[..., 2, 7:].any()
    gradient = torch.randn(4, 2, 3, 13).bfloat16()
    expected, actual, weights = gradient.float(), gradient.clone(), fused.float()
    dual_attention.softmax_backward_(weights, expected)
    dual_kernels.softmax_backward_(fused, actual)
    near(actual, expected)
    assert expected.abs().max() > 0.1


def relu(width: int) -> None:
    """Gradients before the ReLU, where it is active."""
    hidden = torch.randn(5, width).relu().bfloat16()
    gradient, out = torch.randn(5).bfloat16(), torch.randn(width).bfloat16()
    expected = dual_attention.relu_backward_(hidden.float(), gradient.float(), out.float())
    actual = dual_kernels.relu_backward_(hidden, gradient, out)
    near(actual, expected)
    assert 0.3 < (actual == 0).float().mean() < 0.7


if __name__ == "__main__":
    torch.manual_seed(0)
    softmax()
    relu(40)
    relu(2100)  # more than a block
    print("the kernels agree with torch")
