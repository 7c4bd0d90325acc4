"""Transformers and pooling over packed texts: texts are concatenated, and attention stays inside each text.

Pooling turns the states (T, D) of packed texts into one vector per text, with the layers that sentence-transformers
applies after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from nosology.core import ConfigError
from nosology.encoders.sdpa import without_cudnn_sdpa

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTENTION_NAME = "nosology_packed"
# Architectures of transformers that pass on all arguments that packed attention needs.
_PACKABLE = ("bert", "gte", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta")
_POSITIONS_AFTER_PAD = ("roberta", "xlm-roberta")  # position ids start at pad_token_id + 1
_DECODERS = ("qwen2", "qwen3")
_FIXED_ROPE = ("default", "linear")  # frequencies do not depend on the length of a text
_SLOT_STEP = 64  # slots of aligned texts are multiples of this
_FILLER = 512  # tokens of each text that fills up a pack; longer ones would make attention expensive
_BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def can_pack(model: PreTrainedModel) -> bool:
    """Whether the model can run packed texts."""
    config = model.config
    full_attention = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    built_in = type(model).__module__.startswith("transformers.models.")  # no code that came with the weights
    fixed_rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") in _FIXED_ROPE
    return built_in and full_attention and fixed_rope and config.model_type in _PACKABLE


def transformer_layers(model: Any) -> nn.ModuleList:
    """The layers of an encoder or decoder, the first one first."""
    return getattr(model, "layers", None) or model.encoder.layer


class PackedTransformer(nn.Module):
    """States of packed texts; each text has the same states as if it ran alone.

    aligned: all texts of a pack, which are of similar length, get slots as long as the longest, and attention runs over
    a rectangle. Only used in causal models, where the padding after a text cannot change its states.
    """

    def __init__(self, model: PreTrainedModel, aligned: bool = False):
        super().__init__()
        from transformers import AttentionInterface

        AttentionInterface.register(_ATTENTION_NAME, packed_attention)
        model.set_attn_implementation(_ATTENTION_NAME)
        kind = model.config.model_type
        is_causal = kind in _DECODERS and getattr(model.config, "is_causal", True)
        self.model, self.aligned = model, aligned and is_causal
        self.first_position = model.config.pad_token_id + 1 if kind in _POSITIONS_AFTER_PAD else 0
        self.has_token_types = kind not in _DECODERS and getattr(model.config, "type_vocab_size", 0) > 0
        self.compiled_tokens = 0  # tokens of a pack for the compiled layers; 0: not compiled
        self.compile_error: Exception | None = None

    def slot_tokens(self, length: int, longest: int) -> int:
        """Tokens that a text of this length takes in a pack with this longest text."""
        return -(-longest // _SLOT_STEP) * _SLOT_STEP if self.aligned else length

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """States (T, D) of the ids (T,) of packed texts of these lengths, preferably in descending order."""
        slot = self.slot_tokens(0, max(lengths))
        slots = [slot] * len(lengths) if slot else lengths
        if not self.compiled_tokens / 2 < sum(slots) <= self.compiled_tokens:
            with torch.compiler.set_stance("force_eager" if self.compiled_tokens else "default"):
                return self._states(ids, lengths, slots, slot)
        return self._states(ids, lengths, self._fill(slots), slot)

    def _fill(self, slots: list[int]) -> list[int]:
        """The slots and additional ones that fill up the pack, so that the compiled layers see a single size."""
        left = self.compiled_tokens - sum(slots)
        return [*slots, *[_FILLER] * (left // _FILLER), *[left % _FILLER] * (left % _FILLER > 0)]

    def _states(self, ids: Tensor, lengths: list[int], slots: list[int], slot: int) -> Tensor:
        sizes = torch.tensor(slots, device=ids.device)
        ends = functional.pad(sizes.cumsum(0), (1, 0))
        total = sum(slots)
        positions = torch.arange(total, device=ids.device) - ends[:-1].repeat_interleave(sizes, output_size=total)
        mask = None
        if total > len(ids):
            real = torch.tensor([*lengths, *[0] * (len(slots) - len(lengths))], device=ids.device)
            mask = positions < real.repeat_interleave(sizes, output_size=total)
            ids, positions = ids.new_zeros(total).masked_scatter(mask, ids), positions * mask
        inputs = {"input_ids": ids[None], "position_ids": positions[None] + self.first_position, "attention_mask": None}
        if self.has_token_types:
            inputs["token_type_ids"] = torch.zeros_like(ids)[None]
        # Few different maximum lengths keep torch from recompiling the layers.
        longest = slot or (1 << max(9, (max(slots) - 1).bit_length()) if self.compiled_tokens else max(slots))
        packing = {"cu_seq_lens_q": ends.int(), "max_length_q": longest, "packed_rows": len(lengths) if slot else 0}
        if self.compiled_tokens:
            torch._dynamo.maybe_mark_dynamic(packing["cu_seq_lens_q"], 0)
        states = self.model(**inputs, **packing, use_cache=False).last_hidden_state[0]
        return states if mask is None else states[mask]

    def compile_layers(self, tokens: int, backend: str = "inductor") -> bool:
        """Compiles the layers for packs of this size; False if that fails, and the model then runs uncompiled.

        All layers share one compiled program, which takes seconds instead of a minute to build.
        """
        layers = transformer_layers(self.model)
        device = next(self.model.parameters()).device
        try:
            for layer in layers:
                layer.compile(backend=backend)
            self.compiled_tokens = tokens
            with torch.inference_mode():
                for texts in (tokens // _SLOT_STEP, tokens // _SLOT_STEP - 1):
                    ids = torch.zeros(_SLOT_STEP * texts, dtype=torch.int64, device=device)
                    self(ids, [_SLOT_STEP] * texts)
            return True
        except Exception as error:  # no compiler, or a layer that cannot be compiled: slower, but not wrong
            self.compile_error = error
            for layer in layers:
                layer._compiled_call_impl = None
            self.compiled_tokens = 0
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
    is_causal: bool | None = None,
    **_: Any,  # transformers passes the arguments of all attention implementations
) -> tuple[Tensor, None]:
    """Attention output (1, T, H, D) for queries (1, H, T, D), each over the keys of its own text."""
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, D)
    return _packed_attention(query, key, value, cu_seq_lens_q, max_length_q, packed_rows, causal, scaling)[None], None


@torch.library.custom_op(
    "nosology::packed_attention",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor ends, SymInt longest, SymInt rows, bool causal, "
    "float? scale) -> Tensor",
)
def _packed_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, rows: int, causal: bool, scale: float | None
) -> Tensor:
    """Attention output (T, H, D). A custom operator, so that torch.compile does not trace into it."""
    if rows:
        output = torch.zeros_like(query, memory_format=torch.contiguous_format)
        output[: rows * longest] = _equal_length_attention(query[: rows * longest], key, value, longest, causal, scale)
        return output
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        if (shared := query.shape[1] // key.shape[1]) > 1:  # grouped-query attention
            key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
        # torch's own kernel; its public interface differs between releases.
        return torch.ops.aten._flash_attention_forward(
            query, key, value, ends, ends, longest, longest, 0.0, causal, False, scale=scale
        )[0]
    parts, start = [], 0
    for length, run in groupby(after - before for before, after in pairwise(ends.tolist())):
        end = start + length * len(list(run))  # neighbours of equal length form a rectangle
        parts.append(_equal_length_attention(query[start:end], key[start:], value[start:], length, causal, scale))
        start = end
    return torch.cat(parts)


@_packed_attention.register_fake
def _(query: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _equal_length_attention(
    query: Tensor, key: Tensor, value: Tensor, length: int, causal: bool, scale: float | None
) -> Tensor:
    """Attention output (n, H, D) for n queries of texts of equal length; keys after the first n are ignored."""
    q, k, v = (x[: len(query)].unflatten(0, (-1, length)).transpose(1, 2) for x in (query, key, value))
    grouped = q.shape[1] != k.shape[1]  # grouped-query attention: several heads share keys and values
    if grouped and q.is_cuda and not _cudnn_supports_grouped(q, k, v, causal):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        grouped = False
    with sdpa_kernel(_BACKENDS, set_priority=True):
        output = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    return output.transpose(1, 2).flatten(0, 1)


def _cudnn_supports_grouped(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    """Whether cuDNN supports grouped-query attention here; if not, copies of keys are cheaper than the next kernel."""
    params = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, causal, True)
    return torch.backends.cuda.can_use_cudnn_attention(params)


class PaddedTransformer(nn.Module):
    """The same states from a model that cannot run packed texts: texts are padded to the longest."""

    def __init__(self, model: PreTrainedModel, pad_id: int):
        super().__init__()
        self.model, self.pad_id = model, pad_id

    def slot_tokens(self, length: int, longest: int) -> int:
        return longest

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """States (T, D) of the ids (T,) of packed texts of these lengths."""
        sizes = torch.tensor(lengths, device=ids.device)
        mask = torch.arange(max(lengths), device=ids.device) < sizes[:, None]
        padded = ids.new_full(mask.shape, self.pad_id)
        padded[mask] = ids
        with without_cudnn_sdpa():
            return self.model(input_ids=padded, attention_mask=mask.long()).last_hidden_state[mask]


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": functional.gelu,
}


def pool(states: Tensor, lengths: Tensor, modes: tuple[str, ...], skip: int = 0) -> Tensor:
    """Vectors (N, D * len(modes)) of packed texts with states (T, D) and lengths (N,), none 0.

    The first `skip` tokens of each text are ignored. Sums are in float32.
    """
    ends = lengths.cumsum(0)
    starts = ends - lengths
    counts = lengths - skip
    vectors = []
    for mode in modes:
        if mode == "cls":
            vectors.append(states[starts + skip].float())
        elif mode == "lasttoken":
            vectors.append(states[ends - 1].float())
        elif mode == "max":
            vectors.append(_reduce(states, lengths, skip, "max"))
        elif mode == "mean":
            vectors.append(_reduce(states, lengths, skip, "mean"))
        elif mode == "mean_sqrt_len_tokens":
            vectors.append(_reduce(states, lengths, skip, "sum") / counts[:, None].sqrt())
        else:  # weightedmean: the weight of a token is its position in the text, from 1
            position = _positions(lengths)[:, None] + 1.0
            total = _reduce(states.float() * position, lengths, skip, "sum")
            vectors.append(total / _reduce(position, lengths, skip, "sum"))
    return torch.cat(vectors, dim=1)


def _reduce(states: Tensor, lengths: Tensor, skip: int, reduce: str) -> Tensor:
    if skip:
        states, lengths = states[_positions(lengths) >= skip], lengths - skip
    return torch.segment_reduce(states.float(), reduce, lengths=lengths, axis=0, unsafe=True)


def _positions(lengths: Tensor) -> Tensor:
    """The position (T,) of each token in its text, from 0."""
    starts = lengths.cumsum(0) - lengths
    total = torch.arange(int(lengths.sum()), device=lengths.device)
    return total - starts.repeat_interleave(lengths)


def pool_windows(vectors: Tensor, windows: Tensor, tokens: Tensor) -> Tensor:
    """Vectors (B, D) of notes: means of the vectors (N, D) of their windows, weighted by the tokens (N,) of each.

    windows: (B,) number of windows of each note.
    """
    weights = tokens.to(vectors.dtype)[:, None]
    total = torch.segment_reduce(vectors * weights, "sum", lengths=windows, axis=0, unsafe=True)
    return total / torch.segment_reduce(weights, "sum", lengths=windows, axis=0, unsafe=True)


class DenseNormalize(nn.Module):
    """The modules after pooling: x -> activation(W x + b) per Dense folder, then optionally x / |x|, in float32."""

    def __init__(self, folders: Sequence[Path], normalise: bool):
        super().__init__()
        self.normalise = normalise
        self.width = 0  # of the output; 0: that of the input
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.activations: list[Callable[[Tensor], Tensor]] = []
        for folder in folders:
            try:
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                arrays = load_file(folder / "model.safetensors")
                weight = arrays["linear.weight"].float()
            except Exception as error:  # a missing or damaged file, or pickled weights
                raise ConfigError(f"{folder} must contain a layer as config.json and model.safetensors") from error
            name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
            if name not in _ACTIVATIONS or config.get("use_residual"):
                raise ConfigError(f"the activation of {folder} must be one of {', '.join(_ACTIVATIONS)}; got {name}")
            bias = arrays.get("linear.bias", torch.zeros(len(weight))).float()
            self.weights.append(nn.Parameter(weight, requires_grad=False))
            self.biases.append(nn.Parameter(bias, requires_grad=False))
            self.activations.append(_ACTIVATIONS[name])
            self.width = len(weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors (B, E) of pooled vectors (B, D)."""
        for weight, bias, activation in zip(self.weights, self.biases, self.activations):
            vectors = activation(functional.linear(vectors, weight, bias))
        return functional.normalize(vectors) if self.normalise else vectors
