"""Base class of neural models: it batches notes, calibrates logits, and takes evidence from attention.

A model is a subclass. It names its tokenizer and its settings and builds a net (docs/adding_a_model.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.attention.label_attention import LabelAttention
from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace
from nosology.core.model import WordWeights
from nosology.core.settings import Settings
from nosology.encoders.tokenizers import Encoding
from nosology.models.evidence_spans import best_spans
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling, Scaling, scaling_from_json
from nosology.training.data_loader import Batch, pad_notes

_TOKENS = {"cpu": 16_384, "cuda": 131_072}  # per batch, padding included
_NOTES = 256


class Tokenizer(Protocol):
    """Splits a note into tokens with offsets."""

    def tokenize(self, text: str) -> Encoding:
        """The tokens of a note."""

    def to_json(self) -> dict[str, Any]:
        """The argument of `from_json` of the same class."""


class LabelNet(nn.Module):
    """A net with one logit and one attention distribution per label of a batch (`batch.labels`; None: all)."""

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L)."""
        raise NotImplementedError

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """The loss: the mean binary cross-entropy over notes x labels."""
        assert batch.targets is not None
        return binary_cross_entropy_with_logits(self.logits(batch).float(), batch.targets)


class LabelAttentionNet(LabelNet):
    """A net with one state per token, and one learned attention query per label."""

    learned: LabelAttention

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D) of the tokens of a batch."""
        raise NotImplementedError

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L)."""
        return self.learned.logits(self.states(batch), batch.mask, batch.labels)

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens."""
        return self.learned.attention(self.states(batch), batch.mask, batch.labels)


ModuleT = TypeVar("ModuleT", bound=nn.Module)
NetT = TypeVar("NetT", bound=LabelNet)
SettingsT = TypeVar("SettingsT", bound=Settings)
TokenizerT = TypeVar("TokenizerT", bound=Tokenizer)


class Calibrated(Generic[ModuleT]):
    """A model with a net on a device, whose logits are calibrated to probabilities."""

    net: ModuleT
    calibration: Scaling

    @property
    def device(self) -> torch.device:
        """The device that the net is on."""
        return next(self.net.parameters()).device

    def to(self, device: torch.device | str) -> Self:
        """This model, moved to a device."""
        self.net.to(device)
        return self

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of logits (B, L); 0 where the logit is `EXCLUDED_LOGIT`."""
        return np.where(logits > EXCLUDED_LOGIT, self.calibration(logits), np.float32(0))

    def calibrated(self, logits: np.ndarray, gold: sparse.csr_matrix) -> Self:
        """This model with its calibration fitted on logits (B, L) of dev notes; gold: 0/1 (B, L)."""
        model = copy(self)
        model.calibration = PlattScaling.fit(logits, gold)
        return model


@dataclass
class NeuralModel(Calibrated[NetT], Generic[NetT, SettingsT, TokenizerT]):
    """P(code | note) = calibration(net(tokenizer(note)))."""

    labels: LabelSpace
    train_counts: np.ndarray  # (L,) training notes of each code
    tokenizer: TokenizerT
    net: NetT
    settings: SettingsT  # the table [model] of the recipe, with all sizes resolved
    calibration: Scaling = field(default_factory=PlattScaling)

    kind = ""  # in the registry
    within_versions = True
    tokenizer_class: ClassVar[type]  # TokenizerT, with from_json
    settings_class: ClassVar[type]  # SettingsT

    # Methods that a subclass may override.

    @classmethod
    def build_net(cls, settings: SettingsT, labels: LabelSpace, tokenizer: TokenizerT, config: dict[str, Any]) -> NetT:
        """A net of the right sizes; the saved weights are then loaded into it. config: what `extra_config` returned."""
        raise NotImplementedError

    def extra_config(self) -> dict[str, Any]:
        """Further JSON values for model.json."""
        return {}

    def load_extra_config(self, config: dict[str, Any]) -> None:
        """Restores what `extra_config` returned when the model was saved; called after the weights are loaded."""

    def extra_tensors(self) -> dict[str, Tensor]:
        """Further tensors for model.safetensors; their names must not start with "net."."""
        return {}

    def load_extra_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `extra_tensors` returned; tensors: all tensors of the file."""

    def weights_changed(self) -> None:
        """Clears caches that depend on the weights of the net; called after each change of the weights."""

    def batch_logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) of a batch."""
        return self.net.logits(batch)

    def batch_attention(self, batch: Batch) -> Tensor:
        """The attention weights (B, L, T) of the labels of a batch over its tokens."""
        return self.net.attention(batch)

    # Methods that all neural models share.

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); zeros for a note without a token."""
        return self.to_probabilities(self.logits_of([self.tokenize(note) for note in notes]))

    def tokenize(self, note: Note) -> Encoding:
        """The tokens of a note, and further inputs of the net."""
        return self.tokenizer.tokenize(note.text)

    def logits_of(self, reads: Sequence[Encoding], columns: Sequence[int] | None = None) -> np.ndarray:
        """Logits (B, L), float32, of tokenized notes; columns: only these labels.

        All logits of a note without tokens are `EXCLUDED_LOGIT`.
        """
        width = len(self.labels) if columns is None else len(columns)
        logits = np.full((len(reads), width), EXCLUDED_LOGIT, dtype=np.float32)
        selected = None if columns is None else torch.tensor(columns, dtype=torch.int64)
        lengths = np.array([len(read.ids) for read in reads], dtype=np.int64)
        with evaluating(self.net):
            for rows in by_length(lengths, _TOKENS.get(self.device.type, _TOKENS["cpu"]), _NOTES):
                batch = Batch(*pad_notes([reads[row].ids for row in rows]), labels=selected).to(self.device)
                logits[rows] = self.batch_logits(batch).float().cpu().numpy()
        return logits

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the spans of the note with the most attention, strongest first."""
        words = self.attention_weights(note, labels)
        return best_spans(note.text, words.weights, words.starts, words.ends, limit)

    def attention_weights(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label over the words of a note."""
        read = self.tokenizer.tokenize(note.text)
        if not len(read.ids) or not len(labels):
            return WordWeights(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros((len(labels), 0), np.float32))
        selected = torch.tensor(labels, dtype=torch.int64)
        with evaluating(self.net):
            batch = Batch(*pad_notes([read.ids]), labels=selected).to(self.device)
            weights = self.batch_attention(batch)[0, :, : len(read.ids)].float().cpu().numpy()
        return by_word(read, weights)

    def save(self, folder: Path) -> None:
        """Writes model.json and model.safetensors."""
        tensors, tied = _distinct(self.net.state_dict())
        config = {
            "kind": self.kind,
            "codes": self.labels.to_json(),
            "reader": self.tokenizer.to_json(),
            "shape": self.settings.model_dump(mode="json"),
            "calibration": asdict(self.calibration),
            "tied": tied,
            "more": self.extra_config(),
        }
        (folder / "model.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
        packed = save(
            {
                "notes": torch.from_numpy(np.asarray(self.train_counts, dtype=np.int64)),
                **tensors,
                **self.extra_tensors(),
            }
        )
        (folder / "model.safetensors").write_bytes(packed)  # save_file raises no OSError when the disk is full

    @classmethod
    def load(cls, folder: Path, device: str | None = None) -> Self:
        """The model that `save` wrote, on a device; None: a GPU if there is one, else the CPU."""
        folder = Path(folder)
        config = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "model.safetensors")
        labels = LabelSpace(config["codes"])
        tokenizer = cls.tokenizer_class.from_json(config["reader"])
        settings = cls.settings_class.model_validate(config["shape"])
        net = cls.build_net(settings, labels, tokenizer, config["more"])
        weights = {name.removeprefix(_NET): tensor for name, tensor in tensors.items() if name.startswith(_NET)}
        weights |= {name: weights[stored] for name, stored in config["tied"].items()}
        net.load_state_dict(weights)
        model = cls(
            labels, tensors["notes"].numpy(), tokenizer, net.eval(), settings, scaling_from_json(config["calibration"])
        )
        model.load_extra_config(config["more"])
        model.load_extra_tensors(tensors)
        return model.to(device or default_device())


def by_word(read: Encoding, weights: np.ndarray) -> WordWeights:
    """The weights (labels, T) of tokens, summed over the word pieces of each word."""
    first = np.flatnonzero(np.diff(read.starts, prepend=-1))
    words = np.add.reduceat(weights, first, axis=1)
    starts, ends = read.starts[first], read.ends[first]
    words[:, ends <= starts] = 0
    return WordWeights(starts, ends, words)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """A context in which the net is in evaluation mode without gradients; its mode is restored afterwards."""
    training = net.training
    net.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        net.train(training)


_NET = "net."


def _distinct(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each weight once, on the CPU, and a map from the names of tied weights to the name that is stored."""
    stored: dict[tuple, str] = {}
    tensors, tied = {}, {}
    for name, weight in weights.items():
        memory = (weight.device, weight.data_ptr(), weight.shape, weight.stride())
        if weight.numel() and memory in stored:
            tied[name] = stored[memory]
        else:
            stored[memory] = name
            tensors[_NET + name] = weight.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors, tied


def by_length(lengths: np.ndarray, tokens: int, notes: int) -> Iterator[np.ndarray]:
    """Rows of batches of similar length, the longest first, without notes that have no tokens.

    A batch has at most `tokens` tokens, padding included, and at most `notes` notes, but at least one note.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    start = 0
    while start < len(order):
        size = max(1, min(notes, tokens // int(lengths[order[start]])))
        yield order[start : start + size]
        start += size


def default_device() -> torch.device:
    """A GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
