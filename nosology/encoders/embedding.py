"""Words as vectors that a net may go on learning."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nosology.encoders.vocabulary import PAD


def embedding(words: int, size: int, vectors: Tensor | None) -> nn.Embedding:
    """Word vectors (V, E), given or random; the pad's is zero and stays so."""
    made = nn.Embedding(words, size, padding_idx=PAD)
    if vectors is not None:
        with torch.no_grad():
            made.weight.copy_(vectors)
            made.weight[PAD] = 0
    return made
