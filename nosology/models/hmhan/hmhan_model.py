"""The model of kind `hmhan`: codes for reports with their metadata columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace, label_versions
from nosology.core.model import WordWeights
from nosology.encoders.state_cache import CachedStates
from nosology.encoders.tokenizers import Encoding, ReportTokenizer
from nosology.encoders.transformer import WindowedTransformer
from nosology.models.evidence_spans import best_spans
from nosology.models.hmhan.code_groups import CodeCategories, CodeCombinations
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet, ReportBatch, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import HmhanSettings, LossSettings
from nosology.models.hmhan.report_features import EncodedReport, MetadataColumns, WordFeatures
from nosology.models.neural import EXCLUDED_LOGIT, NeuralModel, by_length, by_word, evaluating
from nosology.text.tokens import tokenize
from nosology.training.data_loader import Batch, pad_notes, pad_rows

_BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # padding included; more do not fit into the cache of a CPU
_BATCH_NOTES = 256
_NO_FEATURES = np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.float32)


def collate_reports(
    encodings: Sequence[Encoding],
    labels: Tensor | None = None,
    targets: Tensor | None = None,
    synthetic: SyntheticBatch | None = None,
) -> ReportBatch:
    """The batch of some reports; a plain Encoding has neither columns nor word features."""
    reports = [
        item if isinstance(item, EncodedReport) else EncodedReport(item.ids, item.starts, item.ends, *_NO_FEATURES)
        for item in encodings
    ]
    tokens, lengths = pad_notes([report.ids for report in reports])
    n_columns = len(reports[0].columns)
    columns = torch.from_numpy(np.stack([report.columns for report in reports])) if n_columns else None
    width = max(1, max(len(report.features) for report in reports))
    features = pad_rows([report.features for report in reports], width, 0, np.int64)
    values = pad_rows([report.values for report in reports], width, 0, np.float32)
    return ReportBatch(
        tokens, lengths, labels, targets, columns=columns, features=features, values=values, synthetic=synthetic
    )


@dataclass
class Hmhan(NeuralModel):
    """HMHAN or one of its baselines: one net or an ensemble."""

    net: HmhanEnsemble  # pyrefly: ignore[bad-override-mutable-attribute]  # always the type of `build_net`
    settings: HmhanSettings  # pyrefly: ignore[bad-override-mutable-attribute]  # always of `settings_class`
    columns: MetadataColumns = field(default_factory=MetadataColumns)
    words: WordFeatures | None = None
    combinations: CodeCombinations | None = None

    kind, tokenizer_class, settings_class = "hmhan", ReportTokenizer, HmhanSettings

    def tokenize(self, note: Note) -> EncodedReport:
        """The tokens of a report, with its metadata columns (`note.extra`) and its word features."""
        encoding = self.tokenizer.tokenize(note.text)
        columns = self.columns.vector(note.extra)
        features, values = self.words.vector(note.text) if self.words else _NO_FEATURES[1:]
        return EncodedReport(encoding.ids, encoding.starts, encoding.ends, columns, features, values)

    def approximate_probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L) to about 0.01, faster on a CPU with bf16 instructions."""
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # new in torch 2.11
        has_bf16 = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bf16):
            return self.probabilities(notes)

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of logits (B, L), with the prior over code sets; 0 for `EXCLUDED_LOGIT`."""
        probabilities = super().to_probabilities(logits)
        if self.combinations is None:
            return probabilities
        versions = label_versions(self.labels)
        result = np.zeros_like(probabilities)
        # One ICD version at a time: sets of different versions do not compete for probability.
        for version in np.unique(versions):
            of_version = versions == version
            result += np.where(of_version, self.combinations(np.where(of_version, probabilities, 0)), np.float32(0))
        return result

    def logits_of(
        self,
        reads: Sequence[Encoding],
        columns: Sequence[int] | None = None,
        cached_states: CachedStates | None = None,
    ) -> np.ndarray:
        """Logits (B, L), float32, in the order of the reports; columns: of these labels only.

        cached_states: states of the reports; the frozen encoder then does not run.
        """
        logits = np.full((len(reads), len(self.labels if columns is None else columns)), EXCLUDED_LOGIT, np.float32)
        labels = None if columns is None else torch.tensor(columns, dtype=torch.int64)
        lengths = np.array([len(read.ids) for read in reads], dtype=np.int64)
        gpu = self.device.type == "cuda"
        half = gpu or torch.is_autocast_enabled("cpu")
        with evaluating(self.net), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            for rows in by_length(lengths, _BATCH_TOKENS["cuda" if gpu else "cpu"], _BATCH_NOTES):
                batch = collate_reports([reads[row] for row in rows], labels=labels)
                if cached_states is not None:
                    states = cached_states.padded_batch(rows.tolist(), batch.tokens.shape[1])
                    batch = replace(batch, states=torch.from_numpy(states))
                logits[rows] = self.net.logits(batch.to(self.device)).float().cpu().numpy()
        return logits

    @cached_property
    def categories(self) -> CodeCategories:
        """The categories of the labels."""
        return CodeCategories.at_level(self.labels, self.settings.level)

    @property
    def has_category_attention(self) -> bool:
        """Whether the attention is hierarchical."""
        return self.settings.attention == "hierarchical"

    @property
    def has_net_weight(self) -> bool:
        """Whether the net has a weight above 0; otherwise word features alone decide."""
        return self.net.has_net_weight

    def category_attention(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label's category over the words of a report."""
        encoding = self.tokenizer.tokenize(note.text)
        if not len(encoding) or not self.has_category_attention:
            return WordWeights(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros((len(labels), 0), np.float32))
        with evaluating(self.net):
            batch = Batch(*pad_notes([encoding.ids])).to(self.device)
            weights = self.net.category_attention(batch)[0, :, : len(encoding)].float().cpu().numpy()
        return by_word(encoding, weights[self.categories.of_label[list(labels)]])

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the words that add most to its logit; without word features, those with most attention."""
        weights = [net.words[1:][:, list(labels)] for net in self.net.nets if net.words is not None]
        if self.words is None or not weights:
            return super().evidence(note, labels, limit)
        contributions = self.words.contributions(note.text, torch.stack(weights).mean(0).cpu().numpy())
        tokens = tokenize(note.text)
        return [best_spans(note.text, row, tokens.starts, tokens.ends, limit) for row in contributions.T]

    # Additional content of model.json.

    def extra_config(self) -> dict[str, Any]:
        """Encoder configuration, loss, columns, word features and code sets."""
        net = self.net.nets[0]
        return {
            "transformer": net.encoder.to_json(),
            "loss": net.loss.model_dump(mode="json"),
            "projected": net.head.columns.out_features if net.head.columns is not None else 0,
            "columns": self.columns.to_json(),
            "words": self.words.to_json() if self.words else None,
            "combinations": self.combinations.to_json() if self.combinations else None,
            "nets": len(self.net.nets),
        }

    def load_extra_config(self, config: dict[str, Any]) -> None:
        self.columns = MetadataColumns.from_json(config["columns"])
        self.words = WordFeatures.from_json(config["words"]) if config["words"] else None
        combinations = config["combinations"]
        self.combinations = CodeCombinations.from_json(combinations, len(self.labels)) if combinations else None

    @classmethod
    def build_net(  # pyrefly: ignore[bad-override]  # called with `settings_class` and `tokenizer_class` only
        cls, settings: HmhanSettings, labels: LabelSpace, tokenizer: ReportTokenizer, config: dict[str, Any]
    ) -> HmhanEnsemble:
        """Nets of the right sizes, without learned weights."""
        words = len(config["words"]["names"]) if config["words"] else 0
        loss = LossSettings.model_validate({"corrected": False} | config["loss"])  # version 0.2 did not correct
        columns = len(MetadataColumns.from_json(config["columns"]))
        categories = torch.from_numpy(CodeCategories.at_level(labels, settings.level).of_label)
        n_encoders = 1 if settings.frozen else config["nets"]  # nets share a frozen encoder
        encoders = [WindowedTransformer.from_json(config["transformer"]) for _ in range(n_encoders)]
        return HmhanEnsemble(
            [
                HmhanNet(settings, loss, encoders[i % n_encoders], categories, columns, config["projected"], words)
                for i in range(config["nets"])
            ]
        )
