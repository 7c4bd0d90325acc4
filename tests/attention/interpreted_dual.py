"""DualLAAT's GPU kernels, interpreted on the CPU, beside plain torch: run with TRITON_INTERPRET=1.

It is a program of its own because triton decides when it is imported whether kernels are compiled or interpreted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nosology.attention import dual_attention as kernels
from nosology.attention import dual_kernels as triton_kernels

LENGTHS = torch.tensor([13, 1, 7])  # of notes in 13 columns, which no power of two divides


def near(found: Tensor, wanted: Tensor) -> None:
    """Equal but for the rounding to bf16."""
    torch.testing.assert_close(found.float(), wanted, atol=2e-3, rtol=1e-2)


def softmax() -> None:
    """Weights, none beyond a note's end, though something stands there; then their derivatives."""
    scores = (3 * torch.randn(4, 2, 3, 13)).bfloat16()
    scores[..., 2, 7:] = 100.0
    plain, fused = scores.float(), scores.clone()
    kernels.masked_softmax_(plain, LENGTHS)
    triton_kernels.masked_softmax_(fused, LENGTHS)
    near(fused, plain)
    assert not fused[..., 1, 1:].any() and not fused[..., 2, 7:].any()
    given = torch.randn(4, 2, 3, 13).bfloat16()
    wanted, found, weights = given.float(), given.clone(), fused.float()
    kernels.softmax_backward_(weights, wanted)
    triton_kernels.softmax_backward_(fused, found)
    near(found, wanted)
    assert wanted.abs().max() > 0.1


def relu(width: int) -> None:
    """Derivatives before the ReLU, where it let something through."""
    hidden = torch.randn(5, width).relu().bfloat16()
    given, out = torch.randn(5).bfloat16(), torch.randn(width).bfloat16()
    wanted = kernels.relu_backward_(hidden.float(), given.float(), out.float())
    found = triton_kernels.relu_backward_(hidden, given, out)
    near(found, wanted)
    assert 0.3 < (found == 0).float().mean() < 0.7


if __name__ == "__main__":
    torch.manual_seed(0)
    softmax()
    relu(40)
    relu(2100)  # more than a block
    print("the kernels agree with torch")
