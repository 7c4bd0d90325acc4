"""What all neural coders have in common: notes into batches, logits into probabilities, attention into evidence.

A kind of coder is a subclass: it names its tokenizer and its settings and says how an empty net is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

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
from nosology.models.spans import best_spans
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling
from nosology.training.data_loader import Batch, pad_notes, token_mask

_TOKENS = {"cpu": 16_384, "cuda": 131_072}  # of a batch, pads included
_NOTES = 256


class Tokenizer(Protocol):
    """Anything that turns a note into tokens with their places."""

    def tokenize(self, text: str) -> Encoding:
        """The tokens of a note."""

    def to_json(self) -> dict[str, Any]:
        """What `from_json` of the same class makes the tokenizer of."""


class LabelNet(nn.Module):
    """A net of states, one a token, and a learned attention over them."""

    learned: LabelAttention

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D) of a batch's tokens."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """The mean binary cross entropy over the batch's notes x labels."""
        return binary_cross_entropy_with_logits(self.logits(batch).float(), batch.targets)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) for the batch's labels, or for all where it names none."""
        return self.learned.logits(self.states(batch), _mask(batch), batch.labels)

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens."""
        return self.learned.attention(self.states(batch), _mask(batch), batch.labels)


class Calibrated:
    """A model with a net on a device, and logits that a calibration makes probabilities of."""

    net: nn.Module
    calibration: PlattScaling

    @property
    def device(self) -> torch.device:
        """The device that the net is on."""
        return next(self.net.parameters()).device

    def to(self, device: torch.device | str) -> Self:
        """This model, moved to a device."""
        self.net.to(device)
        return self

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of logits (B, L); 0 where there is `EXCLUDED_LOGIT` to go by."""
        return np.where(logits > EXCLUDED_LOGIT, self.calibration(logits), np.float32(0))

    def calibrated(self, logits: np.ndarray, gold: sparse.csr_matrix) -> Self:
        """This model with its calibration fitted on logits (B, L) of notes that it has not seen; gold: 0/1 (B, L)."""
        model = copy(self)
        model.calibration = PlattScaling.fit(logits, gold)
        return model


@dataclass
class NeuralModel(Calibrated):
    """P(code | note) = calibration(net(tokenizer(note)))."""

    labels: LabelSpace
    train_counts: np.ndarray  # (L,) training notes of each code
    tokenizer: Tokenizer
    net: nn.Module
    settings: Settings  # the recipe's table [model], with every size a number
    calibration: PlattScaling = field(default_factory=PlattScaling)

    kind: ClassVar[str]
    within_versions: ClassVar[bool] = True
    tokenizer_class: ClassVar[type]  # with from_json
    settings_class: ClassVar[type[Settings]]

    # What a kind says about itself.

    @classmethod
    def build_net(
        cls, settings: Settings, labels: LabelSpace, tokenizer: Tokenizer, config: dict[str, Any]
    ) -> nn.Module:
        """A net of the right sizes, whose weights are then read from the bundle; more: what `extra_config` returned."""
        raise NotImplementedError

    def extra_config(self) -> dict[str, Any]:
        """Anything else that has to stand in model.json."""
        return {}

    def load_extra_config(self, config: dict[str, Any]) -> None:
        """Takes over what `extra_config` returned when the model was saved; the weights are there already."""

    def extra_tensors(self) -> dict[str, Tensor]:
        """Anything else that has to stand in model.safetensors, under names of its own."""
        return {}

    def load_extra_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `extra_tensors` returned; the other tensors of the file are among them."""

    def weights_changed(self) -> None:
        """Drops whatever is cached of the net's weights; called after each change of them."""

    def batch_logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) of a batch."""
        return self.net.logits(batch)

    def batch_attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) that the labels of a batch lay on its tokens."""
        return self.net.attention(batch)

    # What all kinds do.

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); zeros for a note without a token."""
        return self.to_probabilities(self.logits_of([self.tokenize(note) for note in notes]))

    def tokenize(self, note: Note) -> Encoding:
        """The tokens of a note, with all else that the net reads."""
        return self.tokenizer.tokenize(note.text)

    def logits_of(self, reads: Sequence[Encoding], columns: Sequence[int] | None = None) -> np.ndarray:
        """Logits (B, L), float32, of notes that are read already, in their order; columns: of these labels alone.

        A note without a token has the logit `EXCLUDED_LOGIT` throughout.
        """
        wide = len(self.labels) if columns is None else len(columns)
        found = np.full((len(reads), wide), EXCLUDED_LOGIT, dtype=np.float32)
        wanted = None if columns is None else torch.tensor(columns, dtype=torch.int64)
        lengths = np.array([len(read.ids) for read in reads], dtype=np.int64)
        with evaluating(self.net):
            for rows in by_length(lengths, _TOKENS.get(self.device.type, _TOKENS["cpu"]), _NOTES):
                batch = Batch(*pad_notes([reads[row].ids for row in rows]), labels=wanted).to(self.device)
                found[rows] = self.batch_logits(batch).float().cpu().numpy()
        return found

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the spans of the note with the most attention, strongest first."""
        words = self.attention_weights(note, labels)
        return [best_spans(note.text, row, words.starts, words.ends, limit) for row in words.weights]

    def attention_weights(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label over the words of a note."""
        read = self.tokenizer.tokenize(note.text)
        if not len(read.ids) or not len(labels):
            return WordWeights(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros((len(labels), 0), np.float32))
        wanted = torch.tensor(labels, dtype=torch.int64)
        with evaluating(self.net):
            batch = Batch(*pad_notes([read.ids]), labels=wanted).to(self.device)
            weights = self.batch_attention(batch)[0, :, : len(read.ids)].float().cpu().numpy()
        return by_word(read, weights)

    def save(self, folder: Path) -> None:
        """Writes model.json and model.safetensors."""
        tensors, tied = _distinct(self.net.state_dict())
        described = {
            "kind": self.kind,
            "codes": self.labels.to_json(),
            "reader": self.tokenizer.to_json(),
            "shape": self.settings.model_dump(mode="json"),
            "calibration": self.calibration.to_json(),
            "tied": tied,
            "more": self.extra_config(),
        }
        (folder / "model.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
        packed = save(
            {
                "notes": torch.from_numpy(np.asarray(self.train_counts, dtype=np.int64)),
                **tensors,
                **self.extra_tensors(),
            }
        )
        (folder / "model.safetensors").write_bytes(packed)  # save_file would not say OSError when the disk is full

    @classmethod
    def load(cls, folder: Path, device: str | None = None) -> Self:
        """The model that `save` wrote, on a device: a GPU where there is one and nothing else is said."""
        folder = Path(folder)
        described = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "model.safetensors")
        labels = LabelSpace(described["codes"])
        tokenizer = cls.tokenizer_class.from_json(described["reader"])
        settings = cls.settings_class.model_validate(described["shape"])
        net = cls.build_net(settings, labels, tokenizer, described["more"])
        weights = {name.removeprefix(_NET): tensor for name, tensor in tensors.items() if name.startswith(_NET)}
        weights |= {name: weights[kept] for name, kept in described["tied"].items()}
        net.load_state_dict(weights)
        model = cls(
            labels, tensors["notes"].numpy(), tokenizer, net.eval(), settings, PlattScaling(**described["calibration"])
        )
        model.load_extra_config(described["more"])
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
    """Inside, a net is in evaluation mode and no gradient is kept; afterwards it is as it was."""
    training = net.training
    net.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        net.train(training)


_NET = "net."


def _distinct(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each weight once, on the CPU, and for names that share the weight of another name, that name."""
    kept: dict[tuple, str] = {}
    tensors, tied = {}, {}
    for name, weight in weights.items():
        place = (weight.device, weight.data_ptr(), weight.shape, weight.stride())
        if weight.numel() and place in kept:
            tied[name] = kept[place]
        else:
            kept[place] = name
            tensors[_NET + name] = weight.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors, tied


def by_length(lengths: np.ndarray, tokens: int, notes: int) -> Iterator[np.ndarray]:
    """Rows of batches of similar length, the longest first; notes without a token are in none.

    A batch has at most `tokens` tokens, pads included, and `notes` notes, but always one note.
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


def _mask(batch: Batch) -> Tensor:
    return token_mask(batch.lengths, batch.tokens.shape[1], batch.tokens.device)
