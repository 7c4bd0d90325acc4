"""A convolution over the words of a note."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Conv(nn.Module):
    """State t = W x[t-(k-1)//2 .. t+k//2] + b, without a nonlinearity; beyond both ends of a note stand zeros.

    even: k // 2 zeros at both ends, which for an even kernel makes one state more than there are tokens.
    """

    def __init__(self, inputs: int, filters: int, kernel: int, *, even: bool = False):
        super().__init__()
        self.width = filters
        self.kernel = kernel
        self.before = kernel // 2 if even else (kernel - 1) // 2
        self.conv = nn.Conv1d(inputs, filters, kernel)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of embedded tokens (B, T, E); lengths: (B,). States after a note's end mean nothing."""
        after = torch.arange(x.shape[1], device=x.device) >= lengths.to(x.device)[:, None]
        x = x.masked_fill(after[..., None], 0)  # a pad's vector is zero anyway, unless somebody has trained it
        x = nn.functional.pad(x, (0, 0, self.before, self.kernel // 2))
        # One matrix product over all windows: cuDNN takes many times as long for thousands of short texts.
        windows = x.unfold(1, self.kernel, 1).flatten(2)  # (B, T, E k)
        return nn.functional.linear(windows, self.conv.weight.flatten(1), self.conv.bias)
