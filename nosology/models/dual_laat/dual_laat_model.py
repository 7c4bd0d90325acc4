"""The model of kind `dual_laat`. It encodes code descriptions, so it can score codes without training notes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import UNKNOWN, Encoding, WordTokenizer
from nosology.models.dual_laat.candidate_retriever import CandidateRetriever
from nosology.models.dual_laat.dual_laat_net import DualLaatNet
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.models.neural import EXCLUDED_LOGIT, NeuralModel, evaluating
from nosology.training.data_loader import Batch, pad_notes

_RETRIEVER = "proposer."  # prefix in the bundle format


@dataclass
class DualLaat(NeuralModel):
    """A coder of kind `dual_laat`; encoded descriptions are cached."""

    descriptions: list[str] = field(default_factory=list)  # of each label
    retriever: CandidateRetriever | None = None  # first stage of two-stage inference
    candidates: int = 0  # codes per note that the net scores; 0: all

    kind, tokenizer_class, settings_class = "dual_laat", WordTokenizer, DualLaatSettings
    _queries: Tensor | None = None

    @property
    def queries(self) -> Tensor:
        """The queries (M, L, P) of all labels, computed at the first use."""
        if self._queries is None or self._queries.device != self.device:
            with evaluating(self.net):
                self._queries = self.net.all_queries(self.description_ids(self.descriptions))
        return self._queries

    def weights_changed(self) -> None:
        """Drops the cached queries; to be called when the weights of the net have changed."""
        self._queries = None

    def description_ids(self, descriptions: Sequence[str]) -> Tensor:
        """The tokens (L, words) of descriptions; one without a word is read as one unknown word."""
        limit = self.settings.max_description
        read = [self.tokenizer.description_ids(text, limit) for text in descriptions]
        tokens, lengths = pad_notes([ids if len(ids) else self.tokenizer.vocabulary.ids([""]) for ids in read])
        return tokens[:, : int(lengths.max())]

    def unreadable_codes(self) -> list[Code]:
        """The codes whose descriptions have no word that the coder knows: their scores say nothing about them."""
        known = (self.description_ids(self.descriptions) > UNKNOWN).any(1).tolist()
        return [code for code, some in zip(self.labels.codes, known) if not some]

    def with_codes(self, codes: Sequence[tuple[Code, str]]) -> Self:
        """This coder for other codes, each given with its description; no weight changes."""
        model = copy(self)
        model.labels = LabelSpace(code for code, _ in codes)
        model.descriptions = [text for _, text in codes]
        seen = dict(zip(self.labels.codes, self.train_counts.tolist()))
        model.train_counts = np.array([seen.get(code, 0) for code in model.labels.codes], dtype=np.int64)
        if self.retriever:
            columns = {code: column for column, code in enumerate(self.labels.codes)}
            kept = [columns.get(code, -1) for code in model.labels.codes]
            model.retriever = self.retriever.for_codes(kept, model.description_ids(model.descriptions).numpy())
        model.weights_changed()
        return model

    def two_stage(self, candidates: int) -> Self:
        """This coder in two stages: retrieve this number of candidates per note, then score only them; 0: all codes."""
        model = copy(self)
        model.candidates = candidates if self.retriever else 0
        return model

    def logits_of(self, reads: Sequence[Encoding], columns: Sequence[int] | None = None) -> np.ndarray:
        """Logits (B, L); in two stages, a code that is not among a note's candidates has the logit `EXCLUDED_LOGIT`."""
        if columns is not None or not 0 < self.candidates < len(self.labels):
            return super().logits_of(reads, columns)
        found = np.full((len(reads), len(self.labels)), EXCLUDED_LOGIT, dtype=np.float32)
        for row, read in enumerate(reads):
            if len(read.ids):
                chosen = self.retriever.retrieve(read.ids, self.candidates)
                found[row, chosen] = super().logits_of([read], chosen)[0]
        return found

    def batch_logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) of a batch."""
        return self.net.logits(batch, self._chosen(batch))

    def batch_attention(self, batch: Batch) -> Tensor:
        """The attention weights (B, L, T) of the labels of a batch over its tokens."""
        return self.net.attention(batch, self._chosen(batch))

    def _chosen(self, batch: Batch) -> Tensor:
        return self.queries if batch.labels is None else self.queries[:, batch.labels.to(self.device)]

    def extra_config(self) -> dict[str, Any]:
        """Embedding size, descriptions and number of candidates."""
        return {
            "size": self.net.embedding.embedding_dim,
            "descriptions": self.descriptions,
            "candidates": self.candidates,
        }

    def load_extra_config(self, config: dict[str, Any]) -> None:
        """Restores what `extra_config` returned."""
        self.descriptions = config["descriptions"]
        self.candidates = config["candidates"]

    def extra_tensors(self) -> dict[str, Tensor]:
        """The arrays of the retriever."""
        arrays = self.retriever.arrays() if self.retriever else {}
        return {_RETRIEVER + name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def load_extra_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `extra_tensors` returned."""
        found = {n.removeprefix(_RETRIEVER): t.numpy() for n, t in tensors.items() if n.startswith(_RETRIEVER)}
        self.retriever = CandidateRetriever.from_arrays(found) if found else None

    @classmethod
    def build_net(
        cls, settings: DualLaatSettings, labels: LabelSpace, tokenizer: WordTokenizer, config: dict
    ) -> DualLaatNet:
        """A net without learned weights."""
        with torch.device("meta"):
            net = DualLaatNet(settings, len(tokenizer.vocabulary), config["size"])
        return net.to_empty(device="cpu")
