"""Embedder: one vector per note from a frozen pretrained model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.core import ConfigError, DataError
from nosology.core.files import json_sha256
from nosology.encoders.embedder_config import (
    KNOWN_EMBEDDERS,
    EmbedderConfig,
    EmbedderSettings,
    locate_model,
    model_fingerprint,
    read_config,
    read_json_file,
    weight_files,
)
from nosology.encoders.native_config import native_config
from nosology.encoders.tokenizers import replace_surrogates

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from nosology.encoders.packed import PackedTransformer, PaddedTransformer

_CPU_BATCH, _CPU_PACK = 8_192, 4_096  # tokens per batch of notes, tokens per forward pass
_GPU_PACK, _GPU_PACKS = 65_536, 16
_GPU_BYTES_PER_TOKEN = 2**20
_CHARACTERS_PER_TOKEN = 3  # estimate, to form batches before the notes are tokenized
_METHOD = 1  # version of window splitting and pooling; part of the cache key


@dataclass(frozen=True)
class EmbeddedBatch:
    """The embeddings of some of the notes."""

    rows: np.ndarray  # (n,) indices of the notes
    vectors: np.ndarray  # (n, D)
    tokens: np.ndarray  # (n,) tokens of each note, including special tokens; 0 for an empty note
    read: np.ndarray  # (n,) tokens that went through the model
    windows: np.ndarray  # (n,) windows of each note
    characters: int  # of all of these notes
    seconds: float  # of the model, for all of these notes


@dataclass(frozen=True)
class EmbedderTokenizer:
    """Turns texts into token ids, and knows the ids that surround each window."""

    tokenizer: Any  # of the library tokenizers
    prefix_ids: list[int]
    prompt: str
    prompt_ids: list[int]
    suffix_ids: list[int]
    lower_case: bool

    @classmethod
    def build(cls, settings: EmbedderSettings, config: EmbedderConfig, tokenizer: Any) -> EmbedderTokenizer:
        from nosology.encoders.transformer import special_token_ids

        known = KNOWN_EMBEDDERS.get(settings.model)
        prefix_ids, suffix_ids = special_token_ids(tokenizer)
        if known and known.end_token and known.end_token in tokenizer.vocab and not suffix_ids:
            suffix_ids = [tokenizer.vocab[known.end_token]]
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        prompt = settings.prompt or config.prompt or (known.prompt if known else "")
        prompt_ids = _prompt_ids(backend, prompt.lower() if config.lower_case else prompt)
        return cls(backend, prefix_ids, prompt, prompt_ids, suffix_ids, config.lower_case)

    @property
    def special_count(self) -> int:
        """The number of tokens of a window that do not belong to the note."""
        return len(self.prefix_ids) + len(self.prompt_ids) + len(self.suffix_ids)

    def token_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The token ids (T,) of each text, without special tokens and prompt; empty for a blank text."""
        prompted = [self.prompt + replace_surrogates(text) for text in texts]
        prompted = [text.lower() for text in prompted] if self.lower_case else prompted
        encodings = self.tokenizer.encode_batch_fast(prompted, add_special_tokens=False)
        empty = np.empty(0, dtype=np.int32)  # some tokenizers make a token of a space
        ids = (np.array(encoding.ids[len(self.prompt_ids) :], dtype=np.int32) for encoding in encodings)
        return [text_ids if text.strip() else empty for text, text_ids in zip(texts, ids)]


def _prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """The token ids with which the prompt starts every text; a space at its end may merge with the first word."""
    first, second = (tokenizer.encode(prompt + text, add_special_tokens=False).ids for text in ("a", "7"))
    shorter = min(len(first), len(second))
    shared = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), shorter)
    return first[:shared] if prompt else []


class Embedder:
    """One vector per note. A long note is split into windows; their vectors are averaged, weighted by tokens."""

    def __init__(
        self,
        settings: EmbedderSettings,
        tokenizer: EmbedderTokenizer,
        net: PackedTransformer | PaddedTransformer,
        config: EmbedderConfig,
        layers: nn.Module,
        identity: dict[str, str | int],
        device: torch.device,
    ):
        """layers: applied to the pooled vector. identity: everything that decides the vectors; its hash is the key."""
        self.settings, self.identity, self.device = settings, identity, device
        self.key = json_sha256(identity)
        self.dim, self.window = int(identity["dim"]), int(identity["window"])
        self._tokenizer, self._net, self._config, self._layers = tokenizer, net, config, layers
        self.batch_tokens, self.pack_tokens = _CPU_BATCH, _CPU_PACK
        if device.type == "cuda":
            import torch

            from nosology.encoders.packed import PaddedTransformer

            memory = torch.cuda.get_device_properties(device).total_memory
            self.pack_tokens = int(min(_GPU_PACK, max(8192, memory // _GPU_BYTES_PER_TOKEN)))
            self.batch_tokens = _GPU_PACKS * self.pack_tokens
            if isinstance(net, PaddedTransformer):  # remote code may hold attention weights of all pairs of tokens
                self.pack_tokens = max(8192, self.pack_tokens // 4)

    @classmethod
    def load(cls, settings: EmbedderSettings, device: str | None = None) -> Embedder:
        """The embedder of the settings on a device, by default a GPU if there is one.

        Code that comes with a model is run only with `trust_remote_code`. Raises ConfigError if loading fails.
        """
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError as error:
            raise ConfigError(f"embedders need {error.name}: pip install 'nosology[embed]'") from error
        from nosology.encoders.packed import DenseNormalize, PackedTransformer, PaddedTransformer, can_pack

        try:
            target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            torch.empty(1, device=target)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device must be one that this machine has, such as cpu; got {device!r}") from error
        folder = locate_model(settings)
        config = read_config(folder)
        if settings.pooling:
            config = replace(config, modes=(settings.pooling,))
        model, hf_tokenizer = _load_model(settings, folder, _dtype(settings, target))
        tokenizer = EmbedderTokenizer.build(settings, config, hf_tokenizer)
        layers = DenseNormalize(config.dense, config.normalise)
        identity = {
            "files": model_fingerprint(folder, config, code=settings.trust_remote_code),
            "architecture": type(model).__name__,
            "dim": layers.width or len(config.modes) * model.config.hidden_size,
            "pooling": "+".join(config.modes),
            "normalise": int(config.normalise),
            "prompt": tokenizer.prompt,
            "max_tokens": settings.max_tokens,
            "window": _window(settings, config, model, hf_tokenizer, tokenizer.special_count),
            "precision": settings.precision,
            "method": _METHOD,
        }
        # Only where they differ from the default: the keys of existing caches must not change.
        identity |= {"lower_case": 1} if config.lower_case else {}
        identity |= {} if config.include_prompt else {"prompt_pooled": 0}
        identity |= {} if settings.trust_remote_code or getattr(model.config, "is_causal", True) else {"causal": 0}
        model = model.to(target).eval().requires_grad_(False)
        pad_id = hf_tokenizer.pad_token_id if hf_tokenizer.pad_token_id is not None else 0
        packed = can_pack(model)
        net = PackedTransformer(model, target.type == "cuda") if packed else PaddedTransformer(model, pad_id)
        return cls(settings, tokenizer, net, config, layers.to(target), identity, target)

    @property
    def name(self) -> str:
        """The name of the model; only the last part of a path, so that no path leaves this machine."""
        return Path(self.settings.model).name

    @property
    def model_sizes(self) -> dict[str, int]:
        """The number of parameters and of dimensions, the longest input and the window in tokens."""
        from nosology.encoders.transformer import max_positions

        weights = [*self._net.parameters(), *self._layers.parameters()]
        sizes = {"parameters": sum(weight.numel() for weight in weights), "dim": self.dim}
        return sizes | {"positions": max_positions(self._net.model), "window": self.window}

    def count_tokens(self, texts: Sequence[str]) -> np.ndarray:
        """The tokens (B,) of texts, including special tokens and prompt; 0 for an empty text. Nothing is embedded."""
        sizes = np.array([len(ids) for ids in self._tokenizer.token_ids(texts)], dtype=np.int64)
        return np.where(sizes > 0, sizes + self._tokenizer.special_count, 0)

    def compile(self) -> bool:
        """Compiles the model for a GPU, which takes half a minute; False if that is impossible."""
        from nosology.encoders.packed import PackedTransformer

        if not isinstance(self._net, PackedTransformer) or self.device.type != "cuda":
            return False
        return self._net.compile_layers(self.pack_tokens)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors (B, D), float32, in the order of the texts; zeros for an empty text."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for batch in self.embed_batches(texts):
            vectors[batch.rows] = batch.vectors
        return vectors

    def embed_batches(self, texts: Sequence[str]) -> Iterator[EmbeddedBatch]:
        """Batches of embedded texts, longest texts first; the next batch is tokenized while one is embedded."""
        sizes = np.array([len(text) for text in texts], dtype=np.int64)
        rows = np.argsort(-sizes, kind="stable")
        cuts = [0]
        while cuts[-1] < len(rows):
            total = np.cumsum(sizes[rows[cuts[-1] :]])
            fitting = int(np.searchsorted(total, _CHARACTERS_PER_TOKEN * self.batch_tokens, side="right"))
            cuts.append(cuts[-1] + max(1, fitting))
        batches = [rows[start:end] for start, end in pairwise(cuts)]
        with ThreadPoolExecutor(1) as pool:

            def tokenize(batch: np.ndarray) -> Future[list[np.ndarray]]:
                return pool.submit(self._tokenizer.token_ids, [texts[row] for row in batch])

            ahead = [tokenize(batch) for batch in batches[:1]]
            for number, batch in enumerate(batches, 1):
                ids = ahead.pop().result()
                ahead += [tokenize(following) for following in batches[number : number + 1]]
                yield self._embed_batch(batch, ids, int(sizes[batch].sum()))

    def _embed_batch(self, rows: np.ndarray, ids: list[np.ndarray], characters: int) -> EmbeddedBatch:
        """The batch of the notes at `rows`, which have these token ids."""
        started = time.perf_counter()
        special = self._tokenizer.special_count
        width = self.window - special
        sizes = np.array([len(note) for note in ids], dtype=np.int64)
        used = np.minimum(sizes, self.settings.max_tokens - special) if self.settings.max_tokens else sizes
        counts = -(-used // width)
        windows = [note[first : min(first + width, n)] for note, n in zip(ids, used) for first in range(0, n, width)]
        vectors = np.zeros((len(rows), self.dim), dtype=np.float32)
        if windows:
            vectors[counts > 0] = self._note_vectors(windows, counts[counts > 0])
        if not np.isfinite(vectors).all():
            raise DataError(
                f"the vectors of embedder {self.name} are not finite in precision {self.settings.precision}: "
                "set embedder.precision to fp32 or bf16"
            )
        tokens = np.where(sizes > 0, sizes + special, 0)
        seconds = time.perf_counter() - started
        return EmbeddedBatch(rows, vectors, tokens, used + counts * special, counts, characters, seconds)

    def _note_vectors(self, windows: list[np.ndarray], counts: np.ndarray) -> np.ndarray:
        """Vectors (n, D) of notes; windows: token ids of all windows in order; counts: (n,) windows per note."""
        import torch

        from nosology.encoders.packed import pool_windows

        with torch.inference_mode():
            order = sorted(range(len(windows)), key=lambda i: -len(windows[i]))  # similar lengths run together
            packs = self._packs(order, [len(window) for window in windows])
            pooled = [self._window_vectors([windows[i] for i in pack]) for pack in packs]
            back = torch.tensor(np.argsort(order), device=self.device)
            tokens = torch.tensor([len(window) for window in windows], device=self.device)
            vectors = pool_windows(torch.cat(pooled)[back], torch.tensor(counts, device=self.device), tokens)
            return self._layers(vectors).cpu().numpy()

    def _packs(self, order: list[int], lengths: list[int]) -> Iterator[list[int]]:
        """The windows in groups that run together."""
        pack: list[int] = []
        total = longest = 0
        for i in order:
            size = lengths[i] + self._tokenizer.special_count
            if pack and total + self._net.slot_tokens(size, longest) > self.pack_tokens:
                yield pack
                pack, total = [], 0
            longest = longest if pack else size  # windows are sorted: the first is the longest
            pack.append(i)
            total += self._net.slot_tokens(size, longest)
        yield pack

    def _window_vectors(self, windows: list[np.ndarray]) -> Tensor:
        """One pooled vector (N, D) per window."""
        import torch

        from nosology.encoders.packed import pool

        tokenizer = self._tokenizer
        before = np.array([*tokenizer.prefix_ids, *tokenizer.prompt_ids])
        after = np.array(tokenizer.suffix_ids)
        ids = np.concatenate([part for window in windows for part in (before, window, after)]).astype(np.int64)
        lengths = [len(window) + tokenizer.special_count for window in windows]
        states = self._net(torch.from_numpy(ids).to(self.device), lengths)
        skip = 0 if self._config.include_prompt or not tokenizer.prompt_ids else len(before)
        return pool(states, torch.tensor(lengths, device=self.device), self._config.modes, skip)


def _dtype(settings: EmbedderSettings, device: torch.device) -> torch.dtype:
    """The precision of weights and states."""
    import torch

    if settings.precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]


def _load_model(settings: EmbedderSettings, folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model and its Hugging Face tokenizer."""
    from transformers import CONFIG_MAPPING, AutoModel, AutoTokenizer

    from nosology.encoders.transformer import check_encoder, drop_pooler, quiet_transformers

    trust, known = settings.trust_remote_code, KNOWN_EMBEDDERS.get(settings.model)
    weight_files(folder)  # raises an error if there are only pickles
    config = read_json_file(folder / "config.json", {})
    native = native_config(config, bidirectional=known is not None and known.bidirectional)
    if native is None and not trust:
        raise ConfigError(
            f"embedder.model {settings.model!r} comes with its own code and is a different model without it: "
            "set embedder.trust_remote_code to true if you trust its authors with this machine"
        )
    options: dict[str, Any] = {"trust_remote_code": trust}
    try:
        with quiet_transformers():
            if not trust and native and native.get("model_type") in CONFIG_MAPPING:
                options["config"] = CONFIG_MAPPING[native["model_type"]].from_dict(native)
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            model, info = AutoModel.from_pretrained(
                folder, **options, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
    except Exception as error:  # a damaged file, an unknown architecture, remote code that fails
        raise ConfigError(
            f"embedder.model must be a model that transformers can load; got {settings.model!r} "
            f"({type(error).__name__})"
        ) from error
    if missing := [name for name in info["missing_keys"] if not name.startswith("pooler.")]:  # they would be random
        raise ConfigError(f"embedder.model {settings.model!r} must have all weights; {len(missing)} are missing")
    check_encoder(model, tokenizer, "embedder.model", settings.model)
    drop_pooler(model)
    return model, tokenizer


def _window(settings: EmbedderSettings, config: EmbedderConfig, model: Any, tokenizer: Any, special: int) -> int:
    """Tokens per forward pass; special: tokens of a window that do not belong to the note."""
    from nosology.encoders.transformer import max_positions

    has_positions = getattr(getattr(model, "embeddings", None), "position_embeddings", None) is not None
    limit, known = max_positions(model), KNOWN_EMBEDDERS.get(settings.model)
    default = config.window or (known.window if known else min(limit, tokenizer.model_max_length))
    window = settings.window or (min(default, limit) if has_positions else default)
    if has_positions and window > limit:
        raise ConfigError(f"embedder.window must be at most {limit} for {settings.model!r}; got {window}")
    for name, value in (("window", window), ("max_tokens", settings.max_tokens or window)):
        if value <= special:
            raise ConfigError(f"embedder.{name} must be more than {special} for {settings.model!r}; got {value}")
    return window
