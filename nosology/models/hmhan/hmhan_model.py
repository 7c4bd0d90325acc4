"""The model of kind `hmhan`: codes for reports with their metadata columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace, label_versions
from nosology.core.model import WordWeights
from nosology.encoders.state_cache import CachedStates
from nosology.encoders.tokenizers import Encoding, ReportTokenizer, TokenIds
from nosology.encoders.transformer import WindowedTransformer
from nosology.models.evidence_spans import by_word
from nosology.models.hmhan.code_groups import CodeCategories, CodeCombinations
from nosology.models.hmhan.encoder_states import report_batch_limits
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet, ReportBatch, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import HmhanSettings, LossSettings
from nosology.models.hmhan.report_features import EncodedReport, MetadataColumns
from nosology.models.neural import EXCLUDED_LOGIT, C, ChosenEvidence, NeuralModel
from nosology.training.data_loader import pad_notes
from nosology.training.inference import by_length


def collate_reports(
    encodings: Sequence[TokenIds],
    labels: Tensor | None = None,
    targets: Tensor | None = None,
    synthetic: SyntheticBatch | None = None,
) -> ReportBatch:
    """The batch of some reports; plain token ids have no columns."""
    tokens, lengths = pad_notes([encoding.ids for encoding in encodings])
    rows = [encoding.columns for encoding in encodings if isinstance(encoding, EncodedReport)]
    columns = torch.from_numpy(np.stack(rows)) if rows and len(rows[0]) else None
    return ReportBatch(tokens, lengths, labels, targets, columns=columns, synthetic=synthetic)


@dataclass
class Hmhan(NeuralModel):
    """HMHAN or one of its baselines: one net or an ensemble."""

    net: HmhanEnsemble  # pyrefly: ignore[bad-override-mutable-attribute]  # always the type of `build_net`
    settings: HmhanSettings  # pyrefly: ignore[bad-override-mutable-attribute]  # always of `settings_class`
    columns: MetadataColumns = field(default_factory=MetadataColumns)
    combinations: CodeCombinations | None = None
    # (L,) shares of the train reports: the probabilities of a report without a known word. None: those are 0.
    train_shares: np.ndarray | None = None

    kind, tokenizer_class, settings_class = "hmhan", ReportTokenizer, HmhanSettings
    reads_text_only = False

    @property
    def within_versions(self) -> bool:  # pyrefly: ignore[bad-override]  # a constant of the other models
        """Whether it was trained within ICD versions."""
        return self.settings.within_versions

    def tokenize(self, note: Note) -> EncodedReport:
        """The tokens of a report, with its metadata columns (`note.extra`)."""
        encoding = self.tokenizer.tokenize(note.text)
        return EncodedReport(encoding.ids, encoding.starts, encoding.ends, self.columns.vector(note.extra))

    def token_ids(self, notes: Sequence[Note]) -> Sequence[EncodedReport]:
        """The tokens of reports, with their metadata columns."""
        return [self.tokenize(note) for note in notes]

    def knows_words(self, encoding: TokenIds) -> bool:
        """Whether a report has a word that the model knows."""
        return len(encoding) > 0

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); without a known word the shares of train reports, without any text zeros."""
        return self.probabilities_of(notes, self.token_ids(notes))

    def probability_blocks(self, notes: Iterable[Note], labels: Sequence[int] | None = None) -> Iterator[np.ndarray]:
        """Probabilities (b, L) of one block of notes after the other, in order; labels: only these.

        All labels are scored: calibration and the prior over code sets need them.
        """
        for block, encodings in self.blocks(notes):
            probabilities = self.probabilities_of(block, encodings)
            yield probabilities if labels is None else probabilities[:, labels]

    def probabilities_of(self, notes: Sequence[Note], encodings: Sequence[TokenIds]) -> np.ndarray:
        """The probabilities (B, L) of notes; encodings: the tokenized notes."""
        probabilities = self.to_probabilities(self.logits_of(encodings))
        if self.train_shares is not None:
            unknown = [
                bool(note.text.strip()) and not self.knows_words(encoding) for note, encoding in zip(notes, encodings)
            ]
            probabilities[unknown] = self.train_shares
        return probabilities

    def tuned_like(self, other: Self) -> Self:
        """This model with what was tuned on held-out reports for another one, without its code sets."""
        return replace(self, calibration=other.calibration)

    def approximate_probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L) to about 0.01, faster on a CPU with bf16 instructions."""
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # new in torch 2.11
        has_bf16 = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bf16):
            return self.probabilities(notes)

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of logits (B, L), with the prior over code sets; 0 for `EXCLUDED_LOGIT`."""
        probabilities = super().to_probabilities(logits)
        return probabilities if self.combinations is None else self.with_prior(self.combinations, probabilities)

    def with_prior(
        self, combinations: CodeCombinations, probabilities: np.ndarray, exclude: sparse.csr_matrix | None = None
    ) -> np.ndarray:
        """Probabilities (B, L) with a prior over code sets applied; exclude: as for `CodeCombinations`."""
        if not self.within_versions:
            return combinations(probabilities, exclude)
        versions = label_versions(self.labels)
        result = np.zeros_like(probabilities)
        # One ICD version at a time: sets of different versions do not compete for probability.
        for version in np.unique(versions):
            of_version = versions == version
            applied = combinations(np.where(of_version, probabilities, 0), exclude)
            result += np.where(of_version, applied, np.float32(0))
        return result

    def logits_of(
        self,
        encodings: Sequence[TokenIds],
        labels: Sequence[int] | None = None,
        cached_states: CachedStates | None = None,
        offset: np.ndarray | None = None,
    ) -> np.ndarray:
        """Logits (B, L), float32, in the order of the reports; labels: only these.

        cached_states: states of the reports; the frozen encoder then does not run. offset: (B, all labels) logits of
        another model, to which the net adds.
        """
        logits = np.full((len(encodings), len(self.labels if labels is None else labels)), EXCLUDED_LOGIT, np.float32)
        selected = None if labels is None else torch.tensor(labels, dtype=torch.int64)
        lengths = np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64)
        with self.inference():
            for rows in by_length(lengths, *report_batch_limits(self.device)):
                batch = collate_reports([encodings[row] for row in rows], labels=selected)
                if cached_states is not None:
                    states = cached_states.padded_batch(rows.tolist(), batch.tokens.shape[1])
                    batch = replace(batch, states=states)
                if offset is not None:
                    batch = replace(batch, offset=torch.from_numpy(offset[rows]))
                logits[rows] = self.net.logits(batch.to(self.device)).float().cpu().numpy()
        return logits

    def explain(
        self, notes: Sequence[Note], encodings: Sequence[Encoding], choose: Callable[[np.ndarray], ChosenEvidence[C]]
    ) -> list[tuple[C, list[list[EvidenceSpan]]]]:
        """For each report what `choose` makes of its probabilities (L,), and the evidence of the labels it chooses."""
        chosen = map(choose, self.probabilities_of(notes, encodings))
        return [(choice, self.evidence(note, columns)) for note, (choice, columns) in zip(notes, chosen)]

    @cached_property
    def categories(self) -> CodeCategories:
        """The categories of the labels."""
        return CodeCategories.at_level(self.labels, self.settings.level)

    @property
    def has_category_attention(self) -> bool:
        """Whether the attention is hierarchical."""
        return self.settings.attention == "hierarchical"

    def attention_weights(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label over the words of a report."""
        chosen = torch.tensor(list(labels), dtype=torch.int64)
        return self._word_weights(note, labels, lambda batch: self.net.attention(replace(batch, labels=chosen)))

    def category_attention(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label's category over the words of a report."""
        if not self.has_category_attention:
            return _no_weights(labels)
        of_label = self.categories.of_label[list(labels)]
        return self._word_weights(note, labels, lambda batch: self.net.category_attention(batch)[:, of_label])

    def _word_weights(self, note: Note, labels: Sequence[int], weigh: Callable[[ReportBatch], Tensor]) -> WordWeights:
        """The weights of words by `weigh`, which returns those of tokens (1, labels, T)."""
        report = self.tokenize(note)
        if not len(report) or not len(labels):
            return _no_weights(labels)
        with self.inference():
            weights = weigh(collate_reports([report]).to(self.device))[0, :, : len(report)].float().cpu().numpy()
        return by_word(report, weights)

    # Additional content of model.json.

    def extra_config(self) -> dict[str, Any]:
        """Encoder configuration, loss, columns, code sets and shares of train."""
        net = self.net.nets[0]
        return {
            "transformer": net.encoder.to_json(),
            "loss": net.loss.model_dump(mode="json"),
            "projected": net.column_layer.out_features if net.column_layer is not None else 0,
            "fusion": "late" if net.early_columns is None else "early",
            "columns": self.columns.to_json(),
            "combinations": self.combinations.to_json() if self.combinations else None,
            "nets": len(self.net.nets),
            "train_shares": None if self.train_shares is None else self.train_shares.tolist(),
        }

    def load_extra_config(self, config: dict[str, Any]) -> None:
        self.columns = MetadataColumns.from_json(config["columns"])
        combinations = config["combinations"]
        self.combinations = CodeCombinations.from_json(combinations, len(self.labels)) if combinations else None
        shares = config.get("train_shares")  # absent in bundles of version 0.2
        self.train_shares = None if shares is None else np.array(shares, np.float32)

    @classmethod
    def build_net(  # pyrefly: ignore[bad-override]  # called with `settings_class` and `tokenizer_class` only
        cls, settings: HmhanSettings, labels: LabelSpace, tokenizer: ReportTokenizer, config: dict[str, Any]
    ) -> HmhanEnsemble:
        """Nets of the right sizes, without learned weights."""
        loss = LossSettings.model_validate({"corrected": False} | config["loss"])  # version 0.2 did not correct
        columns = len(MetadataColumns.from_json(config["columns"]))
        categories = torch.from_numpy(CodeCategories.at_level(labels, settings.level).of_label)
        early = config.get("fusion") == "early"  # absent in bundles of version 0.2
        n_encoders = 1 if settings.frozen else config["nets"]  # nets share a frozen encoder
        encoders = [WindowedTransformer.from_json(config["transformer"]) for _ in range(n_encoders)]
        return HmhanEnsemble(
            [
                HmhanNet(settings, loss, encoders[i % n_encoders], categories, columns, config["projected"], early)
                for i in range(config["nets"])
            ]
        )


def _no_weights(labels: Sequence[int]) -> WordWeights:
    """The weights of no words."""
    return WordWeights(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros((len(labels), 0), np.float32))
