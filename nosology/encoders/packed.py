"""Texts of any lengths through a transformer one behind another: no pads, and none sees its neighbours."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "nosology_packed"
# Kinds of transformers that hand their attention all that it needs, and the number of a text's first place.
_KINDS = ("bert", "gte", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta")
_BEHIND_PAD = ("roberta", "xlm-roberta")


def can_pack(model: PreTrainedModel) -> bool:
    """Whether texts can stand one behind another in this model."""
    config = model.config
    plain = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    ours = type(model).__module__.startswith("transformers.models.")  # not a program that came with the weights
    return ours and plain and config.model_type in _KINDS


class Packed(nn.Module):
    """States of texts that stand one behind another, each as if it were alone."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        from transformers import AttentionInterface

        AttentionInterface.register(_NAME, packed_attention)
        model.set_attn_implementation(_NAME)
        self.model = model
        self.first = model.config.pad_token_id + 1 if model.config.model_type in _BEHIND_PAD else 0
        self.types = getattr(model.config, "type_vocab_size", 0) > 0

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """States (T, D) of the ids (T,) of texts of these lengths, which are best in order of length."""
        sizes = torch.tensor(lengths, device=ids.device)
        ends = functional.pad(sizes.cumsum(0), (1, 0))
        places = torch.arange(len(ids), device=ids.device) - ends[:-1].repeat_interleave(sizes, output_size=len(ids))
        given = {"input_ids": ids[None], "position_ids": places[None] + self.first, "attention_mask": None}
        if self.types:
            given["token_type_ids"] = torch.zeros_like(ids)[None]
        where = {"cu_seq_lens_q": ends.int(), "max_length_q": max(lengths), "packed_lengths": lengths}
        return self.model(**given, **where, use_cache=False).last_hidden_state[0]


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    packed_lengths: list[int] | None = None,
    **_: Any,  # transformers hands every attention all that any attention may want
) -> tuple[Tensor, None]:
    """The mix of values (1, T, H, D) for queries (1, H, T, D), each among the keys of its own text."""
    causal = bool(getattr(module, "is_causal", False))
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, D)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        ends, most = cu_seq_lens_q, max_length_q
        # The kernel that torch brings along; its public face differs from release to release.
        found = torch.ops.aten._flash_attention_forward(
            query, key, value, ends, ends, most, most, 0.0, causal, False, scale=scaling
        )[0]
        return found[None], None
    return _by_length(query, key, value, packed_lengths, causal, scaling)[None], None


def _by_length(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[int], causal: bool, scale: float | None
) -> Tensor:
    """The same (T, H, D) anywhere: neighbours of equal length make one rectangle."""
    parts, start = [], 0
    for length, run in groupby(lengths):
        end = start + length * len(list(run))
        q, k, v = (x[start:end].unflatten(0, (-1, length)).transpose(1, 2) for x in (query, key, value))
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        parts.append(mixed.transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(parts)


class Padded(nn.Module):
    """The same states from a model that takes texts side by side only, in rectangles with pads."""

    def __init__(self, model: PreTrainedModel, pad: int):
        super().__init__()
        self.model, self.pad = model, pad

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """States (T, D) of the ids (T,) of texts of these lengths."""
        sizes = torch.tensor(lengths, device=ids.device)
        real = torch.arange(max(lengths), device=ids.device) < sizes[:, None]
        side_by_side = ids.new_full(real.shape, self.pad)
        side_by_side[real] = ids
        return self.model(input_ids=side_by_side, attention_mask=real.long()).last_hidden_state[real]
