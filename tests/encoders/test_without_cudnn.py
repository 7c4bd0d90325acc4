"""Attention over ever new lengths leaves cuDNN's kernel alone, wherever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from nosology.attention import hierarchical, learned
from nosology.encoders.packed import PaddedTransformer
from nosology.encoders.sdpa import without_cudnn_sdpa
from nosology.encoders.transformer import load_pretrained
from nosology.training.data_loader import pad_notes
from tests.encoders.tiny import tiny_bert

STATES, MASK = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)


def _windows(folder: Path) -> None:
    load_pretrained(str(tiny_bert(folder)), window=12, max_tokens=100)[1](
        *pad_notes([np.arange(5, 30), np.arange(5, 9)])
    )


def _padded(folder: Path) -> None:
    encoder = load_pretrained(str(tiny_bert(folder)), window=12, max_tokens=100)[1]
    PaddedTransformer(encoder.model, 0)(torch.arange(5, 12), [4, 3])


PLACES: dict[str, Callable[[Path], object]] = {
    "hierarchical": lambda _: hierarchical.MultiHeadAttention(8, 2)(STATES, STATES, MASK),
    "learned": lambda _: learned.LabelAttention(8, 3).logits(STATES, MASK),
    "windows": _windows,
    "padded": _padded,
}


@pytest.mark.parametrize("place", PLACES)
def test_attention_runs_without_cudnn(place, tmp_path, monkeypatch):
    seen, attend = [], functional.scaled_dot_product_attention

    def watched(*given, **more):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*given, **more)

    for module in (functional,):
        monkeypatch.setattr(module, "scaled_dot_product_attention", watched)
    PLACES[place](tmp_path / "encoder")
    assert seen and not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_what_was_set_before_is_set_again():
    with pytest.raises(KeyError), without_cudnn_sdpa():
        raise KeyError
    assert torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with without_cudnn_sdpa():
            pass
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_threads_that_overlap_leave_it_as_it_was():
    first, second = without_cudnn_sdpa(), without_cudnn_sdpa()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "one is still inside"
    second.__exit__(None, None, None)
    assert torch.backends.cuda.cudnn_sdp_enabled()
