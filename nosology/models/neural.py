"""Base class of neural models: it batches notes, calibrates logits, and takes evidence from attention.

A model is a subclass. It names its tokenizer and its settings and builds a net (docs/adding_a_model.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save
from scipy import sparse
from torch import Tensor, nn

from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace
from nosology.core.model import WordWeights
from nosology.core.parallel import batched
from nosology.core.settings import Settings
from nosology.encoders.tokenizers import Encoding, TokenIds, Tokenizer
from nosology.models.evidence_spans import best_spans, by_word
from nosology.models.label_net import LabelNet, slice_batch
from nosology.models.note_blocks import tokenized_blocks, tokenized_blocks_ahead, tokenizing_processes
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling, Scaling, scaling_from_json
from nosology.training.data_loader import Batch, pad_notes, pin_memory
from nosology.training.inference import (
    HostCopy,
    batch_limits,
    by_length,
    default_device,
    evaluating,
    one_ahead,
    uses_bf16,
)

_CPU_BLOCK, _GPU_BLOCK = 64, 1024
_SPANS = 5  # of evidence per code
_ROWS = 256  # notes whose probabilities are computed at once
_MAX_CELLS = 1 << 26  # notes x labels x tokens whose attention is in memory at once


C = TypeVar("C")
# What is made of the probabilities of a note, and the labels whose evidence is wanted.
ChosenEvidence = tuple[C, Sequence[int]]
ModuleT = TypeVar("ModuleT", bound=nn.Module)
NetT = TypeVar("NetT", bound=LabelNet)
SettingsT = TypeVar("SettingsT", bound=Settings)
TokenizerT = TypeVar("TokenizerT", bound=Tokenizer)


class CalibratedNet(Generic[ModuleT]):
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
        probabilities = np.empty(logits.shape, np.float32)
        for start in range(0, len(logits), _ROWS):  # a large matrix would need its size three times more
            rows = logits[start : start + _ROWS]
            probabilities[start : start + _ROWS] = np.where(rows > EXCLUDED_LOGIT, self.calibration(rows), 0)
        return probabilities

    def calibrated(self, logits: np.ndarray, gold: sparse.csr_matrix) -> Self:
        """This model with its calibration fitted on logits (B, L) of dev notes; gold: 0/1 (B, L)."""
        model = copy(self)
        model.calibration = PlattScaling.fit(logits, gold)
        return model


@dataclass
class NeuralModel(CalibratedNet[NetT], Generic[NetT, SettingsT, TokenizerT]):
    """P(code | note) = calibration(net(tokenizer(note)))."""

    labels: LabelSpace
    train_counts: np.ndarray  # (L,) training notes of each code
    tokenizer: TokenizerT
    net: NetT
    settings: SettingsT  # the table [model] of the recipe, with all sizes resolved
    calibration: Scaling = field(default_factory=PlattScaling)
    precision: str = "auto"  # of scoring; "auto": trained in bf16, and scored in it where the device has it

    kind = ""  # in the registry
    within_versions = True
    reads_text_only: ClassVar[bool] = True  # False: `tokenize` also reads other fields of a note
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

    def score_batch(self, batch: Batch, encodings: Sequence[TokenIds]) -> Tensor:
        """Logits (B, L) of a batch; encodings: the tokenized notes of the batch."""
        return self.batch_logits(batch)

    def note_attention(self, batch: Batch) -> Tensor:
        """The attention weights (B, K, T) of the labels (B, K) of each note over its tokens."""
        return self.net.note_attention(batch)

    # Methods that all neural models share.

    @contextmanager
    def inference(self) -> Iterator[None]:
        """A context in which the net is in evaluation mode, without gradients, in the precision of its training."""
        bf16 = uses_bf16(self.precision, self.device)
        with evaluating(self.net), torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext():
            yield

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); zeros for a note without a token."""
        return self.to_probabilities(self.logits_of(self.token_ids(notes)))

    def tokenize(self, note: Note) -> Encoding:
        """The tokens of a note, and further inputs of the net."""
        return self.tokenizer.tokenize(note.text)

    def token_ids(self, notes: Sequence[Note]) -> Sequence[TokenIds]:
        """What `tokenize` returns for each note, without offsets."""
        return list(self.tokenizer.token_ids(note.text for note in notes))

    def blocks(self, notes: Iterable[Note]) -> Iterator[tuple[list[Note], Sequence[Encoding]]]:
        """Blocks of notes with their tokens; for a GPU, other processes tokenize the next blocks meanwhile."""
        on_gpu = self.device.type == "cuda"
        workers = tokenizing_processes() if on_gpu and self.reads_text_only else 0
        if workers:
            return tokenized_blocks_ahead(notes, self.block_size, self.tokenizer, workers)
        return tokenized_blocks(notes, self.block_size, self.tokenize)

    def probability_blocks(self, notes: Iterable[Note], labels: Sequence[int] | None = None) -> Iterator[np.ndarray]:
        """Probabilities (b, L) of one block of notes after the other, in order; labels: only these."""
        blocks = batched(notes, self.block_size)
        return map(self.to_probabilities, self.logit_blocks(map(self.token_ids, blocks), labels))

    def logit_blocks(
        self, blocks: Iterable[Sequence[TokenIds]], labels: Sequence[int] | None = None
    ) -> Iterator[np.ndarray]:
        """Logits (b, L) of one block of tokenized notes after the other, in order; labels: only these.

        A GPU scores a block while the next one is read and tokenized.
        """
        started = (self._start_scoring(block, labels) for block in blocks)
        for logits in one_ahead(started) if self.device.type == "cuda" else started:
            yield logits()

    @property
    def block_size(self) -> int:
        """The number of notes that are read and sorted by length together."""
        return _GPU_BLOCK if self.device.type == "cuda" else _CPU_BLOCK

    def explained(
        self, notes: Iterable[Note], choose: Callable[[np.ndarray], ChosenEvidence[C]]
    ) -> Iterator[tuple[C, list[list[EvidenceSpan]]]]:
        """For each note, in order, what `explain` returns; notes are read lazily, in blocks."""
        return chain.from_iterable(self.explain(block, encodings, choose) for block, encodings in self.blocks(notes))

    def logits_of(self, encodings: Sequence[TokenIds], labels: Sequence[int] | None = None) -> np.ndarray:
        """Logits (B, L), float32, of tokenized notes; labels: only these.

        All logits of a note without tokens are `EXCLUDED_LOGIT`.
        """
        with self.inference():
            scored = ((rows, logits) for rows, _, logits in self._scored(encodings, labels))
            return self._joined(len(encodings), labels, one_ahead(scored))

    def _start_scoring(self, encodings: Sequence[TokenIds], labels: Sequence[int] | None) -> Callable[[], np.ndarray]:
        """A function that waits for the logits of `logits_of`, whose computation has been started."""
        with self.inference():
            batches = [(rows, logits) for rows, _, logits in self._scored(encodings, labels)]
        return lambda: self._joined(len(encodings), labels, batches)

    def _joined(
        self, notes: int, labels: Sequence[int] | None, batches: Iterable[tuple[np.ndarray, HostCopy]]
    ) -> np.ndarray:
        """The logits (B, L) of batches in one matrix."""
        width = len(self.labels if labels is None else labels)
        logits = np.full((notes, width), EXCLUDED_LOGIT, dtype=np.float32)
        for rows, of_batch in batches:
            logits[rows] = of_batch.numpy()
        return logits

    def _scored(
        self, encodings: Sequence[TokenIds], labels: Sequence[int] | None, *, keep_states: bool = False
    ) -> Iterator[tuple[np.ndarray, Batch, HostCopy]]:
        """Batches of notes with tokens: their rows, the batch on the device, and its logits.

        keep_states: the batch has the states that its attention needs.
        """
        selected = None if labels is None else torch.tensor(labels, dtype=torch.int64)
        lengths = np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64)
        for rows in by_length(lengths, *batch_limits(self.device)):
            batch = Batch(*pad_notes([encodings[row].ids for row in rows]), labels=selected)
            batch = (pin_memory(batch) if self.device.type == "cuda" else batch).to(self.device)
            batch = self.net.with_states(batch) if keep_states else batch
            yield rows, batch, HostCopy(self.score_batch(batch, [encodings[row] for row in rows]).float())

    def explain(
        self, notes: Sequence[Note], encodings: Sequence[Encoding], choose: Callable[[np.ndarray], ChosenEvidence[C]]
    ) -> list[tuple[C, list[list[EvidenceSpan]]]]:
        """For each note what `choose` makes of its probabilities (L,), and the evidence of the labels that it chooses.

        Each note is encoded once for both. The CPU finds the spans of a batch while a GPU scores the next.
        """
        nothing = np.zeros(len(self.labels), np.float32)
        empty = ((row, (choose(nothing)[0], [])) for row, encoding in enumerate(encodings) if not len(encoding.ids))
        results: dict[int, tuple[C, list[list[EvidenceSpan]]]] = dict(empty)

        def attend(rows: np.ndarray, batch: Batch, logits: HostCopy):
            chosen = [choose(row) for row in self.to_probabilities(logits.numpy())]
            return rows, chosen, self._attention_copies(batch, [columns for _, columns in chosen])

        with self.inference():
            scored = one_ahead(self._scored(encodings, None, keep_states=True))
            for rows, chosen, copies in one_ahead(attend(*item) for item in scored):
                weights = chain.from_iterable(copy.numpy() for copy in copies)
                for row, (choice, columns), of_note in zip(rows.tolist(), chosen, weights):
                    words = by_word(encodings[row], of_note[: len(columns), : len(encodings[row].ids)])
                    text = notes[row].text
                    results[row] = choice, best_spans(text, words.weights, words.starts, words.ends, _SPANS)
        return [results[row] for row in range(len(encodings))]

    def _attention_copies(self, batch: Batch, chosen: Sequence[Sequence[int]]) -> list[HostCopy]:
        """The attention (b, K, T) of each part of a batch; chosen: the labels of each note, at most K."""
        most = max(1, *map(len, chosen))
        labels = torch.from_numpy(np.stack([np.pad(np.asarray(c, np.int64), (0, most - len(c))) for c in chosen]))
        size = max(1, _MAX_CELLS // (most * batch.tokens.shape[1]))
        parts = (slice(start, start + size) for start in range(0, len(chosen), size))
        return [HostCopy(self.note_attention(slice_batch(batch, part, labels[part])).float()) for part in parts]

    def evidence(self, note: Note, labels: Sequence[int], limit: int = _SPANS) -> list[list[EvidenceSpan]]:
        """For each label, the spans of the note with the most attention, strongest first."""
        words = self.attention_weights(note, labels)
        return best_spans(note.text, words.weights, words.starts, words.ends, limit)

    def attention_weights(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label over the words of a note."""
        encoding = self.tokenizer.tokenize(note.text)
        if not len(encoding.ids) or not len(labels):
            return WordWeights(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros((len(labels), 0), np.float32))
        selected = torch.tensor(labels, dtype=torch.int64)
        with self.inference():
            batch = Batch(*pad_notes([encoding.ids]), labels=selected).to(self.device)
            weights = self.batch_attention(batch)[0, :, : len(encoding.ids)].float().cpu().numpy()
        return by_word(encoding, weights)

    def save(self, folder: Path) -> None:
        """Writes model.json and model.safetensors."""
        tensors, tied = _distinct(self.net.state_dict())
        config = {
            "codes": self.labels.to_json(),
            "reader": self.tokenizer.to_json(),
            "shape": self.settings.model_dump(mode="json"),
            "calibration": asdict(self.calibration),
            "precision": self.precision,
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
        calibration, precision = scaling_from_json(config["calibration"]), config.get("precision", "auto")
        model = cls(labels, tensors["notes"].numpy(), tokenizer, net.eval(), settings, calibration, precision)
        model.load_extra_config(config["more"])
        model.load_extra_tensors(tensors)
        return model.to(device or default_device())


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
