"""Notes as vectors of a pretrained model that does not learn."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.core import ConfigError, DataError
from nosology.encoders.embedder_files import Plan, content_hash, find, own_program, read_plan, weight_files
from nosology.encoders.embedder_reader import Reader, reader_of
from nosology.encoders.embedder_settings import KNOWN, EmbedderSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_CPU_BATCH, _CPU_PACK = 8_192, 4_096  # tokens that are finished together, tokens that are run together
_GPU_PACK, _GPU_PACKS = 65_536, 16
_GPU_BYTES = 2**20  # of a GPU's memory for each token that is run
_CHARACTERS = 3  # of a token, so that a batch is cut before its tokens are known
_METHOD = 1  # how windows are cut and pooled; another number would be other vectors


@dataclass(frozen=True)
class Embedded:
    """Some of the notes that were asked for, finished."""

    rows: np.ndarray  # (n,) which
    vectors: np.ndarray  # (n, D)
    tokens: np.ndarray  # (n,) that each note has, with those around it; 0 of an empty one
    read: np.ndarray  # (n,) that went through the model
    windows: np.ndarray  # (n,) that each was read in
    characters: int  # of all of them
    seconds: float  # that the model took for all of them


class Embedder:
    """One vector a note. A note longer than the model reads goes in windows, whose vectors weigh by their tokens."""

    def __init__(
        self,
        settings: EmbedderSettings,
        reader: Reader,
        net: nn.Module,
        plan: Plan,
        layers: nn.Module,
        identity: dict[str, str | int],
        device: torch.device,
    ):
        self.settings, self.identity, self.device = settings, identity, device
        self.key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self.dim, self.window = int(identity["dim"]), int(identity["window"])
        self._reader, self._net, self._plan, self._layers = reader, net, plan, layers
        self.batch_tokens, self.pack_tokens = _CPU_BATCH, _CPU_PACK
        if device.type == "cuda":
            import torch

            memory = torch.cuda.get_device_properties(device).total_memory
            self.pack_tokens = int(min(_GPU_PACK, max(8192, memory // _GPU_BYTES)))
            self.batch_tokens = _GPU_PACKS * self.pack_tokens
            if not hasattr(net, "compile_layers"):  # programs of a model's own may hold every pair of tokens
                self.pack_tokens = max(8192, self.pack_tokens // 4)

    @classmethod
    def load(cls, settings: EmbedderSettings, device: str | None = None) -> Embedder:
        """The embedder of the settings on a device, by default the GPU where there is one.

        No program that comes with a model is run unless the settings trust it. Whatever keeps it from being loaded is a
        ConfigError.
        """
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError as error:
            raise ConfigError(f"embedders need {error.name}: pip install 'nosology[embed]'") from error
        from nosology.encoders.after_pooling import After
        from nosology.encoders.packed import Packed, Padded, can_pack

        try:
            place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            torch.empty(1, device=place)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device must be one that this machine has, such as cpu; got {device!r}") from error
        folder = find(settings)
        plan = read_plan(folder)
        if settings.pooling:
            plan = replace(plan, modes=(settings.pooling,))
        model, tokenizer = _pretrained(settings, folder, _dtype(settings, place))
        reader = reader_of(settings, plan, tokenizer)
        layers = After(plan.dense, plan.normalise)
        identity = {
            "files": content_hash(folder, plan, code=settings.trust_remote_code),
            "architecture": type(model).__name__,
            "dim": layers.width or len(plan.modes) * model.config.hidden_size,
            "pooling": "+".join(plan.modes),
            "normalise": int(plan.normalise),
            "prompt": reader.prompt,
            "max_tokens": settings.max_tokens,
            "window": _window(settings, plan, model, tokenizer, reader),
            "precision": settings.precision,
            "method": _METHOD,
        }
        identity |= {"lower_case": 1} if plan.lower_case else {}  # said where they are not as usual alone
        identity |= {} if plan.include_prompt else {"prompt_pooled": 0}
        model = model.to(place).eval().requires_grad_(False)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        net = Packed(model, place.type == "cuda") if can_pack(model) else Padded(model, pad)
        return cls(settings, reader, net, plan, layers.to(place), identity, place)

    @property
    def name(self) -> str:
        """What people call the model; a folder by its last part, for where it lies is nobody's business."""
        return Path(self.settings.model).name

    def compile(self) -> bool:
        """Whether the model could be compiled for a GPU, which takes half a minute and pays for thousands of notes."""
        from nosology.encoders.packed import Packed

        packed = isinstance(self._net, Packed) and self.device.type == "cuda"
        return packed and self._net.compile_layers(self.pack_tokens)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors (B, D), float32, in the order of the texts; an empty text has zeros."""
        found = np.zeros((len(texts), self.dim), dtype=np.float32)
        for part in self.batches(texts):
            found[part.rows] = part.vectors
        return found

    def batches(self, texts: Sequence[str]) -> Iterator[Embedded]:
        """The vectors of the texts, batch by batch, longest first; the next batch is read while one is embedded."""
        sizes = np.array([len(text) for text in texts], dtype=np.int64)
        rows = np.argsort(-sizes, kind="stable")
        cuts = [0]
        while cuts[-1] < len(rows):
            through = np.cumsum(sizes[rows[cuts[-1] :]])
            cuts.append(cuts[-1] + max(1, int(np.searchsorted(through, _CHARACTERS * self.batch_tokens, side="right"))))
        with ThreadPoolExecutor(1) as other:
            parts = [rows[start:end] for start, end in pairwise(cuts)]
            ahead = (other.submit(self._reader.pieces, [texts[row] for row in part]) for part in parts)
            waiting = next(ahead, None)
            for part in parts:
                pieces = waiting.result()
                waiting = next(ahead, None)
                yield self._finish(part, pieces, int(sizes[part].sum()))

    def _finish(self, rows: np.ndarray, pieces: list[np.ndarray], characters: int) -> Embedded:
        """The batch of these rows, whose notes have these pieces."""
        started = time.perf_counter()
        around, width = self._reader.around, self.window - self._reader.around
        sizes = np.array([len(ids) for ids in pieces], dtype=np.int64)
        kept = np.minimum(sizes, self.settings.max_tokens - around) if self.settings.max_tokens else sizes
        windows = -(-kept // width)
        cut = [ids[first : min(first + width, n)] for ids, n in zip(pieces, kept) for first in range(0, n, width)]
        vectors = np.zeros((len(rows), self.dim), dtype=np.float32)
        if cut:
            vectors[windows > 0] = self._vectors(cut, windows[windows > 0])
        if not np.isfinite(vectors).all():
            raise DataError(
                f"the embedder {self.name} gave numbers that are not finite in precision {self.settings.precision}: "
                "set embedder.precision to fp32 or bf16"
            )
        tokens = np.where(sizes > 0, sizes + around, 0)
        seconds = time.perf_counter() - started
        return Embedded(rows, vectors, tokens, kept + windows * around, windows, characters, seconds)

    def _vectors(self, cut: list[np.ndarray], windows: np.ndarray) -> np.ndarray:
        """Vectors (n, D) of notes of windows (n,) each, all of whose pieces are given in order."""
        import torch

        from nosology.encoders.pooling import pool_windows

        with torch.inference_mode():
            order = sorted(range(len(cut)), key=lambda i: -len(cut[i]))  # equal lengths side by side
            pooled = [self._pooled([cut[i] for i in part]) for part in self._packs(order, cut)]
            back = torch.tensor(np.argsort(order), device=self.device)
            counts = torch.tensor([len(ids) for ids in cut], device=self.device)
            found = pool_windows(torch.cat(pooled)[back], torch.tensor(windows, device=self.device), counts)
            return self._layers(found).cpu().numpy()

    def _packs(self, order: list[int], cut: list[np.ndarray]) -> Iterator[list[int]]:
        """The windows in parts that are run together."""
        part: list[int] = []
        total = longest = 0
        for i in order:
            size = len(cut[i]) + self._reader.around
            if part and total + self._net.room(size, longest) > self.pack_tokens:
                yield part
                part, total = [], 0
            longest = longest if part else size  # the first
            part.append(i)
            total += self._net.room(size, longest)
        yield part

    def _pooled(self, cut: list[np.ndarray]) -> Tensor:
        """One vector (N, D) a window."""
        import torch

        from nosology.encoders.pooling import pool

        reader = self._reader
        before, after = np.array([*reader.begin, *reader.head]), np.array(reader.end)
        ids = np.concatenate([part for ids in cut for part in (before, ids, after)]).astype(np.int64)
        lengths = [len(ids) + reader.around for ids in cut]
        states = self._net(torch.from_numpy(ids).to(self.device), lengths)
        skip = 0 if self._plan.include_prompt or not reader.head else len(before)
        return pool(states, torch.tensor(lengths, device=self.device), self._plan.modes, skip)


def _dtype(settings: EmbedderSettings, device: torch.device) -> torch.dtype:
    """The precision of the weights and states."""
    import torch

    if settings.precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]


def _pretrained(settings: EmbedderSettings, folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    from nosology.encoders.transformer import quiet

    trust, known = settings.trust_remote_code, KNOWN.get(settings.model)
    weight_files(folder)  # there are some, and they are no pickles
    if not trust and (own_program(folder) or (known and known.code)):
        raise ConfigError(
            f"embedder.model {settings.model!r} comes with programs of its own and is another model without them: "
            "set embedder.trust_remote_code to true if you trust its authors with this machine"
        )
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
            model = AutoModel.from_pretrained(folder, trust_remote_code=trust, dtype=dtype, use_safetensors=True)
    except Exception as error:  # a damaged file, a kind that is not known, a program that fails: many
        raise ConfigError(
            f"embedder.model must be a model that transformers can load; got {settings.model!r} "
            f"({type(error).__name__})"
        ) from error
    if not tokenizer.is_fast:
        raise ConfigError(f"embedder.model must have a fast tokenizer (tokenizer.json); {settings.model!r} has none")
    if model.config.is_encoder_decoder:
        raise ConfigError(f"embedder.model must be an encoder alone; {settings.model!r} has a decoder too")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # a vector that the pooling does not ask for
    return model, tokenizer


def _window(settings: EmbedderSettings, plan: Plan, model: Any, tokenizer: Any, reader: Reader) -> int:
    """Tokens that the model reads at once."""
    from nosology.encoders.transformer import longest

    fixed = getattr(getattr(model, "embeddings", None), "position_embeddings", None) is not None
    places, known = longest(model), KNOWN.get(settings.model)
    own = plan.window or (known.window if known else min(places, tokenizer.model_max_length))
    window = settings.window or (min(own, places) if fixed else own)
    if fixed and window > places:
        raise ConfigError(f"embedder.window must be at most {places} for {settings.model!r}; got {window}")
    for name, value in (("window", window), ("max_tokens", settings.max_tokens or window)):
        if value <= reader.around:
            raise ConfigError(f"embedder.{name} must be more than {reader.around} for {settings.model!r}; got {value}")
    return window
