"""Notes as vectors with their codes, and a head to learn from them: what central training and sites begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.models.heads.feature_statistics import Scaler
from nosology.models.heads.heads_net import HeadNet
from nosology.models.heads.heads_settings import HeadShape
from nosology.models.heads.vector_loop import VectorNotes


@dataclass(frozen=True)
class CodedVectors:
    """Notes as vectors (N, D), as the embedder gives them, with their codes of the systems to learn."""

    vectors: np.ndarray
    codes: list[tuple[Code, ...]]


def new_head(shape: HeadShape, dim: int, labels: int, seed: int) -> HeadNet:
    """A head with the first weights that a seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HeadNet(shape, dim, labels)


def vector_notes(
    vectors: np.ndarray, codes: Sequence[tuple[Code, ...]], scaler: Scaler, labels: LabelSpace
) -> VectorNotes:
    """Notes as a head is trained on them: standardised, their codes as columns."""
    targets = labels.encode(codes).toarray().astype(np.uint8)
    return VectorNotes(torch.from_numpy(scaler(vectors)), torch.from_numpy(targets))
