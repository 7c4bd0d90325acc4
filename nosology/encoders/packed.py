"""Texts of any lengths through a transformer one behind another: none sees its neighbours."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from nosology.encoders.without_cudnn import without_cudnn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "nosology_packed"
# Kinds of transformers that hand their attention all that it needs; some count places from behind their pad.
_KINDS = ("bert", "gte", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta")
_BEHIND_PAD = ("roberta", "xlm-roberta")
_CAUSAL = ("qwen2", "qwen3")
_SLOT = 64  # aligned texts get room in such steps
_FILLER = 512  # tokens of the texts that fill a pack up; longer ones would cost attention
_DENSE = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def can_pack(model: PreTrainedModel) -> bool:
    """Whether texts can stand one behind another in this model."""
    config = model.config
    plain = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    ours = type(model).__module__.startswith("transformers.models.")  # not a program that came with the weights
    return ours and plain and config.model_type in _KINDS


class Packed(nn.Module):
    """States of texts that stand one behind another, each as if it were alone.

    aligned: texts of a pack, which are of similar length, all get the room of the longest, and attention runs over a
    rectangle. Only where a token never sees what comes after it, so that what fills the room changes nothing.
    """

    def __init__(self, model: PreTrainedModel, aligned: bool = False):
        super().__init__()
        from transformers import AttentionInterface

        AttentionInterface.register(_NAME, packed_attention)
        model.set_attn_implementation(_NAME)
        kind = model.config.model_type
        self.model, self.aligned = model, aligned and kind in _CAUSAL
        self.first = model.config.pad_token_id + 1 if kind in _BEHIND_PAD else 0
        self.types = kind not in _CAUSAL and getattr(model.config, "type_vocab_size", 0) > 0
        self.size = 0  # tokens of a pack that the compiled layers take; 0: they are not compiled
        self.failure: Exception | None = None  # that kept them from being compiled

    def room(self, length: int, longest: int) -> int:
        """Tokens that a text of this length takes beside a longest one."""
        return -(-longest // _SLOT) * _SLOT if self.aligned else length

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """States (T, D) of the ids (T,) of texts of these lengths, which are best in falling order."""
        room = self.room(0, max(lengths))
        slots = [room] * len(lengths) if room else lengths
        if not self.size / 2 < sum(slots) <= self.size:
            with torch.compiler.set_stance("force_eager" if self.size else "default"):
                return self._states(ids, lengths, slots, room)
        return self._states(ids, lengths, self._filled(slots), room)

    def _filled(self, slots: list[int]) -> list[int]:
        """The slots and others that fill a pack up, so that the compiled layers see one size only."""
        left = self.size - sum(slots)
        return [*slots, *[_FILLER] * (left // _FILLER), *[left % _FILLER] * (left % _FILLER > 0)]

    def _states(self, ids: Tensor, lengths: list[int], slots: list[int], room: int) -> Tensor:
        sizes = torch.tensor(slots, device=ids.device)
        ends = functional.pad(sizes.cumsum(0), (1, 0))
        total = sum(slots)
        places = torch.arange(total, device=ids.device) - ends[:-1].repeat_interleave(sizes, output_size=total)
        if total > len(ids):
            real = torch.tensor([*lengths, *[0] * (len(slots) - len(lengths))], device=ids.device)
            kept = places < real.repeat_interleave(sizes, output_size=total)
            ids, places = ids.new_zeros(total).masked_scatter(kept, ids), places * kept
        given = {"input_ids": ids[None], "position_ids": places[None] + self.first, "attention_mask": None}
        if self.types:
            given["token_type_ids"] = torch.zeros_like(ids)[None]
        # A longest text of few values keeps the compiled layers from being compiled again and again.
        most = room or (1 << max(9, (max(slots) - 1).bit_length()) if self.size else max(slots))
        where = {"cu_seq_lens_q": ends.int(), "max_length_q": most, "packed_rows": len(lengths) if room else 0}
        if self.size:
            torch._dynamo.maybe_mark_dynamic(where["cu_seq_lens_q"], 0)
        states = self.model(**given, **where, use_cache=False).last_hidden_state[0]
        return states[kept] if total > sum(lengths) else states

    def compile_layers(self, size: int, backend: str = "inductor") -> bool:
        """Whether the layers could be compiled for packs of so many tokens; if not, all goes on as before.

        One program serves all layers, so that a minute of compiling is a few seconds.
        """
        layers = getattr(self.model, "layers", None) or self.model.encoder.layer
        device = next(self.model.parameters()).device
        try:
            for layer in layers:
                layer.compile(backend=backend)
            self.size = size
            with torch.inference_mode():
                for texts in (size // _SLOT, size // _SLOT - 1):
                    self(torch.zeros(_SLOT * texts, dtype=torch.int64, device=device), [_SLOT] * texts)
            return True
        except Exception as error:  # no compiler here, a kind of layer that cannot be compiled: slower, not wrong
            self.failure = error
            for layer in layers:
                layer._compiled_call_impl = None
            self.size = 0
            return False


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
    packed_rows: int = 0,
    **_: Any,  # transformers hands every attention all that any attention may want
) -> tuple[Tensor, None]:
    """The mix of values (1, T, H, D) for queries (1, H, T, D), each among the keys of its own text."""
    causal = bool(getattr(module, "is_causal", False))
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, D)
    return _mixed(query, key, value, cu_seq_lens_q, max_length_q, packed_rows, causal, scaling)[None], None


@torch.library.custom_op(
    "nosology::packed_attention",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor ends, SymInt most, SymInt rows, bool causal, float? scale)"
    " -> Tensor",
)
def _mixed(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, most: int, rows: int, causal: bool, scale: float | None
) -> Tensor:
    """The mix (T, H, D); one step for the compiler, which need not know how it is done."""
    if rows:
        found = torch.zeros_like(query, memory_format=torch.contiguous_format)
        found[: rows * most] = _rectangle(query[: rows * most], key, value, most, causal, scale)
        return found
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        # The kernel that torch brings along; its public face differs from release to release.
        return torch.ops.aten._flash_attention_forward(
            query, key, value, ends, ends, most, most, 0.0, causal, False, scale=scale
        )[0]
    parts, start = [], 0
    for length, run in groupby(after - before for before, after in pairwise(ends.tolist())):
        end = start + length * len(list(run))  # neighbours of equal length make a rectangle
        parts.append(_rectangle(query[start:end], key[start:], value[start:], length, causal, scale))
        start = end
    return torch.cat(parts)


@_mixed.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, most: int, rows: int, causal: bool, scale: float | None):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _rectangle(query: Tensor, key: Tensor, value: Tensor, length: int, causal: bool, scale: float | None) -> Tensor:
    """The mix (n, H, D) for n queries of texts that are all of one length; keys after theirs are left alone."""
    q, k, v = (x[: len(query)].unflatten(0, (-1, length)).transpose(1, 2) for x in (query, key, value))
    shared = q.shape[1] != k.shape[1]  # keys and values that several heads look at
    if shared and q.is_cuda and not _cudnn_shares(q, k, v, causal):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        shared = False
    with sdpa_kernel(_DENSE, set_priority=True):
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=shared)
    return mixed.transpose(1, 2).flatten(0, 1)


def _cudnn_shares(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    """Whether the fastest kernel takes fewer keys than queries; where it does not, copies are cheaper than the next."""
    given = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, causal, True)
    return torch.backends.cuda.can_use_cudnn_attention(given)


class Padded(nn.Module):
    """The same states from a model that takes texts side by side only, in rectangles with pads."""

    def __init__(self, model: PreTrainedModel, pad: int):
        super().__init__()
        self.model, self.pad = model, pad

    def room(self, length: int, longest: int) -> int:
        """Tokens that a text takes beside a longest one."""
        return longest

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """States (T, D) of the ids (T,) of texts of these lengths."""
        sizes = torch.tensor(lengths, device=ids.device)
        real = torch.arange(max(lengths), device=ids.device) < sizes[:, None]
        side_by_side = ids.new_full(real.shape, self.pad)
        side_by_side[real] = ids
        with without_cudnn():
            return self.model(input_ids=side_by_side, attention_mask=real.long()).last_hidden_state[real]
