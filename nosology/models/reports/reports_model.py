"""The model of kind `reports`: linear SVMs over marked words, and nets of HMHAN that add to their logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nosology.core import EvidenceSpan, Note
from nosology.encoders.state_cache import CachedStates
from nosology.encoders.tokenizers import TokenIds
from nosology.models.evidence_spans import best_spans
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.models.reports.word_features import WordFeatures, WordReport, WordSvms
from nosology.text.tokens import tokenize

_WEIGHTS, _BIAS = "words.weights", "words.bias"  # names in saved weights
_OLD_WEIGHTS, _OLD_BIAS, _OLD_NET_WEIGHT = "net.nets.0.words", "net.nets.0.word_bias", "net.nets.0.share"


@dataclass
class Reports(Hmhan):
    """logit = SVM logit + net weight x (logit of the nets, which were trained with the SVM logit as offset - it)."""

    words: WordFeatures = field(default_factory=WordFeatures)
    svms: WordSvms = field(default_factory=lambda: WordSvms.empty(0))
    net_weight: float = 1.0  # chosen on held-out reports

    kind = "reports"

    def tokenize(self, note: Note, *, by_section: bool = True) -> WordReport:
        """The tokens of a report, with its metadata columns (`note.extra`) and its word features.

        by_section: also the features with their section, which the description of a code does not have.
        """
        report = super().tokenize(note)
        features, values = self.words.vector(note.text, by_section=by_section)
        return WordReport(report.ids, report.starts, report.ends, report.columns, features, values)

    def knows_words(self, encoding: TokenIds) -> bool:
        """Whether a report has a word with a feature."""
        assert isinstance(encoding, WordReport)
        return super().knows_words(encoding) and len(encoding.features) > 0

    def logits_of(
        self,
        encodings: Sequence[TokenIds],
        labels: Sequence[int] | None = None,
        cached_states: CachedStates | None = None,
        offset: np.ndarray | None = None,
    ) -> np.ndarray:
        """Logits (B, L), float32, in the order of the reports; labels: only these.

        cached_states: as in `Hmhan.logits_of`. offset: (B, all labels), in place of the logits of the SVMs.
        """
        svm_logits = self.svms.logits(encodings) if offset is None else offset
        chosen = svm_logits if labels is None else svm_logits[:, list(labels)]
        if not self.net_weight:  # the nets need not be run
            has_tokens = np.array([len(encoding.ids) > 0 for encoding in encodings], dtype=bool)
            return np.where(has_tokens[:, None], chosen, np.float32(EXCLUDED_LOGIT))
        return mixed_logits(super().logits_of(encodings, labels, cached_states, svm_logits), chosen, self.net_weight)

    @property
    def has_net_weight(self) -> bool:
        """Whether the nets have a weight above 0; otherwise words alone decide."""
        return self.net_weight > 0

    def tuned_like(self, other: Self) -> Self:
        """This model with what was tuned on held-out reports for another one, without its code sets."""
        return replace(super().tuned_like(other), net_weight=other.net_weight)

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the words that add most to its SVM logit."""
        contributions = self.words.contributions(note.text, self.svms.weights[:, list(labels)])
        tokens = tokenize(note.text)
        return best_spans(note.text, contributions.T, tokens.starts, tokens.ends, limit)

    def extra_config(self) -> dict[str, Any]:
        """The additions of HMHAN, the word features and the net weight."""
        return super().extra_config() | {"words": self.words.to_json(), "net_weight": self.net_weight}

    def load_extra_config(self, config: dict[str, Any]) -> None:
        super().load_extra_config(config)
        self.words = WordFeatures.from_json(config["words"])
        self.net_weight = config.get("net_weight", 1.0)

    def extra_tensors(self) -> dict[str, Tensor]:
        """The SVMs."""
        return {_WEIGHTS: torch.from_numpy(self.svms.weights), _BIAS: torch.from_numpy(self.svms.bias)}

    def load_extra_tensors(self, tensors: dict[str, Tensor]) -> None:
        if _WEIGHTS in tensors:
            self.svms = WordSvms(tensors[_WEIGHTS].numpy(), tensors[_BIAS].numpy())
        else:  # version 0.2: kind hmhan, with the SVMs in each net; the first row of the weights was padding
            self.svms = WordSvms(tensors[_OLD_WEIGHTS][1:].numpy(), tensors[_OLD_BIAS].numpy())
            self.net_weight = float(tensors[_OLD_NET_WEIGHT])


def mixed_logits(logits: np.ndarray, svm_logits: np.ndarray, net_weight: float) -> np.ndarray:
    """svm_logits + net_weight x (logits - svm_logits) (B, L); logits: of nets that add to the SVM logits."""
    return np.where(logits > EXCLUDED_LOGIT, svm_logits + np.float32(net_weight) * (logits - svm_logits), logits)
