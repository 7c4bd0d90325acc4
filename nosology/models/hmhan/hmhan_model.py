"""The coder of kind `hmhan`: reports, with the columns that stand beside them, to codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace, label_versions
from nosology.core.model import WordWeights
from nosology.encoders.state_cache import CachedStates
from nosology.encoders.tokenizers import Encoding, ReportTokenizer
from nosology.encoders.transformer import WindowedTransformer
from nosology.models.hmhan.categories import Categories
from nosology.models.hmhan.columns import Columns
from nosology.models.hmhan.combinations import Combinations
from nosology.models.hmhan.hmhan_net import HmhanNet, HmhanNets, ReportBatch, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import HmhanShape, LossSettings
from nosology.models.hmhan.words import Words
from nosology.models.neural import EXCLUDED_LOGIT, NeuralModel, by_length, by_word, evaluating
from nosology.models.spans import best_spans
from nosology.text.tokens import tokenize
from nosology.training.data_loader import Batch, pad_notes, pad_rows

_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # of a batch, pads included; a CPU's cache holds no more
_NOTES = 256
_BARE = np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Report(Encoding):
    """A report as the net is given it."""

    columns: np.ndarray  # (C,) float32
    features: np.ndarray  # (K,) int64
    values: np.ndarray  # (K,) float32


def report_batch(
    reads: Sequence[Encoding],
    labels: Tensor | None = None,
    targets: Tensor | None = None,
    synthetic: SyntheticBatch | None = None,
) -> ReportBatch:
    """The batch of some reports, with what is asked about them; a plain Read has neither columns nor words."""
    reports = [read if isinstance(read, Report) else Report(read.ids, read.starts, read.ends, *_BARE) for read in reads]
    tokens, lengths = pad_notes([report.ids for report in reports])
    wide = len(reports[0].columns)
    columns = (
        torch.from_numpy(np.concatenate([report.columns for report in reports]).reshape(-1, wide)) if wide else None
    )
    most = max(1, max(len(report.features) for report in reports))
    features = pad_rows([report.features for report in reports], most, 0, np.int64)
    values = pad_rows([report.values for report in reports], most, 0, np.float32)
    return ReportBatch(
        tokens, lengths, labels, targets, columns=columns, features=features, values=values, synthetic=synthetic
    )


@dataclass
class Hmhan(NeuralModel):
    """HMHAN or one of its baselines; several nets where the recipe asks for members."""

    categories: Categories | None = None
    columns: Columns = field(default_factory=Columns)
    words: Words | None = None
    combinations: Combinations | None = None

    kind, tokenizer_class, settings_class = "hmhan", ReportTokenizer, HmhanShape

    def tokenize(self, note: Note) -> Report:
        """The tokens of a report, with its metadata columns (`note.extra`) and its word features."""
        found = self.tokenizer.tokenize(note.text)
        columns = self.columns.vector(note.extra)
        features, values = self.words.vector(note.text) if self.words else _BARE[1:]
        return Report(found.ids, found.starts, found.ends, columns, features, values)

    def approximate_probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L) to about 0.01, faster on a CPU with bf16 instructions."""
        able = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.11 does not tell
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(able.get("avx512_bf16") or able.get("amx_bf16"))):
            return self.probabilities(notes)

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of logits (B, L), after what sets of codes say; 0 where there is `EXCLUDED_LOGIT`."""
        found = super().to_probabilities(logits)
        if self.combinations is None:
            return found
        versions = label_versions(self.labels)
        # Of two sets of different ICD versions each may be the note's, and neither takes from the other.
        parts = [(versions == version, np.where(versions == version, found, 0)) for version in np.unique(versions)]
        return sum(np.where(own, self.combinations(part), np.float32(0)) for own, part in parts)

    def logits_of(
        self, reads: Sequence[Encoding], columns: Sequence[int] | None = None, places: CachedStates | None = None
    ) -> np.ndarray:
        """Logits (B, L), float32, in the order of the reports; columns: of these labels alone.

        places: the reports' states, of a frozen encoder, which then need not be asked for them again.
        """
        wide = len(self.labels) if columns is None else len(columns)
        found = np.full((len(reads), wide), EXCLUDED_LOGIT, dtype=np.float32)
        wanted = None if columns is None else torch.tensor(columns, dtype=torch.int64)
        lengths = np.array([len(read.ids) for read in reads], dtype=np.int64)
        gpu = self.device.type == "cuda"
        half = gpu or torch.is_autocast_enabled("cpu")
        with evaluating(self.net), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            for rows in by_length(lengths, _TOKENS["cuda" if gpu else "cpu"], _NOTES):
                batch = report_batch([reads[row] for row in rows], labels=wanted)
                if places is not None:
                    batch = replace(batch, states=torch.from_numpy(places.padded_batch(rows, batch.tokens.shape[1])))
                found[rows] = self.net.logits(batch.to(self.device)).float().cpu().numpy()
        return found

    @property
    def has_category_attention(self) -> bool:
        """Whether the attention is hierarchical."""
        return self.settings.attention == "hierarchical"

    def category_attention(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label's category over the words of a report."""
        read = self.tokenizer.tokenize(note.text)
        if not len(read) or not self.has_category_attention:
            return WordWeights(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros((len(labels), 0), np.float32))
        with evaluating(self.net):
            batch = Batch(*pad_notes([read.ids])).to(self.device)
            weights = self.net.category_attention(batch)[0, :, : len(read)].float().cpu().numpy()
        return by_word(read, weights[self.categories.of[list(labels)]])

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the words that add most to its logit; without word features, those with most attention."""
        if self.words is None:
            return super().evidence(note, labels, limit)
        found = tokenize(note.text)
        mean = torch.stack([net.words[1:][:, list(labels)] for net in self.net.nets]).mean(0).cpu().numpy()
        added = self.words.contributions(note.text, mean)
        return [best_spans(note.text, row, found.starts, found.ends, limit) for row in added.T]

    # What model.json and model.safetensors hold besides.

    def extra_config(self) -> dict[str, Any]:
        """How the encoder is built, the columns, the words, the sets of codes."""
        first: HmhanNet = self.net.nets[0]
        return {
            "transformer": first.encoder.to_json(),
            "loss": first.loss.model_dump(mode="json"),
            "projected": first.head.columns.out_features if first.head.columns is not None else 0,
            "columns": self.columns.to_json(),
            "words": self.words.to_json() if self.words else None,
            "combinations": self.combinations.to_json() if self.combinations else None,
            "nets": len(self.net.nets),
        }

    def load_extra_config(self, config: dict[str, Any]) -> None:
        """Takes over what `extra_config` returned."""
        self.columns = Columns.from_json(config["columns"])
        self.words = Words.from_json(config["words"]) if config["words"] else None
        kept = config["combinations"]
        self.combinations = Combinations.from_json(kept, len(self.labels)) if kept else None
        self.categories = Categories.at(self.labels, self.settings.level)

    @classmethod
    def build_net(
        cls, settings: HmhanShape, labels: LabelSpace, tokenizer: ReportTokenizer, config: dict[str, Any]
    ) -> nn.Module:
        """Nets without learned weights."""
        words = len(config["words"]["names"]) if config["words"] else 0
        loss = LossSettings.model_validate(config["loss"])
        columns = len(Columns.from_json(config["columns"]))
        of = torch.from_numpy(Categories.at(labels, settings.level).of)
        encoders = [
            WindowedTransformer.from_json(config["transformer"])
            for _ in range(1 if settings.frozen else config["nets"])
        ]
        return HmhanNets(
            [
                HmhanNet(settings, loss, encoders[i % len(encoders)], of, columns, config["projected"], words)
                for i in range(config["nets"])
            ]
        )
