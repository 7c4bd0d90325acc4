"""Attention over batches of changing shape never uses cuDNN's kernel, in any module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from nosology.attention.hierarchical_attention import MultiHeadAttention
from nosology.attention.label_attention import LabelAttention
from nosology.encoders.packed import PaddedTransformer
from nosology.encoders.sdpa import without_cudnn_sdpa
from nosology.encoders.transformer import load_pretrained
from nosology.training.data_loader import pad_notes
from tests.encoders.tiny import tiny_bert

STATES, MASK = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)


def _run_windowed(folder: Path) -> None:
    _, encoder = load_pretrained(str(tiny_bert(folder)), window=12, max_tokens=100)
    encoder(*pad_notes([np.arange(5, 30), np.arange(5, 9)]))


def _run_padded(folder: Path) -> None:
    _, encoder = load_pretrained(str(tiny_bert(folder)), window=12, max_tokens=100)
    PaddedTransformer(encoder.model, 0)(torch.arange(5, 12), [4, 3])


USES: dict[str, Callable[[Path], object]] = {
    "hierarchical attention": lambda _: MultiHeadAttention(8, 2)(STATES, STATES, MASK),
    "label attention": lambda _: LabelAttention(8, 3).logits(STATES, MASK),
    "windowed transformer": _run_windowed,
    "padded transformer": _run_padded,
}


@pytest.mark.parametrize("use", USES)
def test_attention_runs_without_cudnn(use, tmp_path, monkeypatch):
    enabled, attend = [], functional.scaled_dot_product_attention

    def recording(*arguments, **options):
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*arguments, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recording)
    USES[use](tmp_path / "encoder")
    assert enabled and not any(enabled)
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_previous_setting_is_restored():
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


def test_overlapping_threads_restore_the_setting():
    first, second = without_cudnn_sdpa(), without_cudnn_sdpa()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "one is still inside"
    second.__exit__(None, None, None)
    assert torch.backends.cuda.cudnn_sdp_enabled()
