"""DualLAAT (dual label attention, Liu and Nguyen 2026, appendix B): notes and code descriptions are both encoded.

It can therefore score codes without training notes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from nosology.attention.dual_attention import DualHead, dual_logits, dual_loss, mean_attention
from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import PAD, UNKNOWN, TokenIds, WordTokenizer
from nosology.encoders.word_encoders import ConvEncoder, RecurrentEncoder, word_embedding
from nosology.models.dual_laat.candidate_retriever import CandidateRetriever
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.models.label_net import LabelNet
from nosology.models.neural import EXCLUDED_LOGIT, NeuralModel
from nosology.training.data_loader import Batch, pad_notes, token_mask

_CODES = 4096  # descriptions encoded at a time
_SIDE = 0.3  # initial weight of neighbouring words in a convolution, with tied initialization
_SHARP = 4.0  # initial scale of the projections: how sharp the first attention is


class DualLaatNet(LabelNet):
    """Scores any code that has a description.

    `descriptions` (codes, words) are the token ids by which the codes of a batch's `labels` are read, PAD at the end.
    """

    def __init__(self, settings: DualLaatSettings, words: int, size: int, vectors: Tensor | None = None):
        super().__init__()
        self.settings = settings
        self.embedding = word_embedding(words, size, vectors)
        self.dropout = nn.Dropout(settings.dropout)
        self.text_encoder = _encoder(settings, size)
        self.code_encoder = _encoder(settings, size)
        states, projected = self.text_encoder.width, settings.width
        self.text_projections = nn.ModuleList(nn.Linear(states, projected) for _ in range(settings.heads))
        self.code_projections = nn.ModuleList(nn.Linear(states, projected) for _ in range(settings.heads))
        joined = settings.heads * states
        self.classifier = nn.Sequential(nn.Linear(joined, joined), nn.ReLU(), nn.Linear(joined, 1))
        if settings.tie_initialization:
            self._tie_initialization()
        self.descriptions = torch.zeros(0, 1, dtype=torch.int64)  # on the CPU: reading lengths from a GPU waits for it

    @torch.no_grad()
    def _tie_initialization(self) -> None:
        """Gives both encoders the same initial weights, so that each code attends to the words of its description.

        With independent weights, as in the paper, both encoders must first be aligned by training, and a few hundred
        notes are too few for that. A convolution starts as a random rotation of the word vector with a small part of
        its neighbours. The scale of the scores does not depend on the width.
        """
        if isinstance(self.text_encoder, ConvEncoder):
            weight, middle = self.text_encoder.conv.weight, self.text_encoder.left_padding
            weight.normal_()
            weight[:, :, :middle] *= _SIDE
            weight[:, :, middle + 1 :] *= _SIDE
            self.text_encoder.conv.get_parameter("bias").zero_()
        self.code_encoder.load_state_dict(self.text_encoder.state_dict())
        for text, code in zip(_linear_layers(self.text_projections), self.code_projections):
            text.weight.normal_(std=_SHARP / math.sqrt(text.in_features * text.out_features))
            text.bias.zero_()
            code.load_state_dict(text.state_dict())

    @torch.no_grad()
    def initialize_bias(self, rate: float) -> None:
        """Sets the output bias so that the untrained net predicts this rate: most labels of a note are negative."""
        _linear_layers(self.classifier)[-1].bias.fill_(math.log(rate / (1 - rate)))

    def forward(self, batch: Batch) -> Tensor:
        """The loss: the mean binary cross-entropy over notes x labels."""
        assert batch.targets is not None
        states, queries = self.states(batch), self.queries(self.descriptions[batch.labels])
        attended = self._attended(batch, states)
        return dual_loss(states, attended, queries, batch.targets, self._head(), self.settings.chunk)

    @torch.no_grad()
    def logits(self, batch: Batch, queries: Tensor | None = None) -> Tensor:
        """Logits (B, L) for queries (M, L, P); None: for those of the labels of the batch."""
        states = self.states(batch) if batch.states is None else batch.states
        queries = self._label_queries(batch) if queries is None else queries
        head = self._head().to(states.dtype)
        return dual_logits(states, self._attended(batch, states), queries.to(states.dtype), head)

    @torch.no_grad()
    def attention(self, batch: Batch, queries: Tensor | None = None) -> Tensor:
        """The weights (B, L, T) of each label over the tokens, mean of the heads; queries: as in `logits`.

        For queries (M, B, L, P) each note has its own labels.
        """
        states = self.states(batch) if batch.states is None else batch.states
        queries = self._label_queries(batch) if queries is None else queries
        lengths = self._attended(batch, states).clamp(min=1).to(states.device)
        weights = mean_attention(states, lengths, queries.to(states.dtype), self._head().to(states.dtype))
        return weights[..., : batch.tokens.shape[1]]

    def with_states(self, batch: Batch) -> Batch:
        """The batch with the states of its tokens."""
        return replace(batch, states=self.states(batch))

    def _label_queries(self, batch: Batch) -> Tensor:
        return self.all_queries(self.descriptions if batch.labels is None else self.descriptions[batch.labels])

    def states(self, batch: Batch) -> Tensor:
        """Equation 1: the states (B, T, D) of the notes' tokens."""
        tokens, lengths = batch.tokens, batch.lengths
        if self.settings.reference_padding:  # the padding of the tokenizer takes part, that of the batch does not
            tokens = tokens[:, : max(1, int(lengths.max()))]
            lengths = torch.full_like(lengths, tokens.shape[1])
        return self.text_encoder(self.dropout(self.embedding(tokens)), lengths)

    def queries(self, descriptions: Tensor) -> Tensor:
        """Equation 2 and the code's half of equation 3: queries (M, L, P) of descriptions (L, words) on the CPU."""
        lengths = (descriptions != PAD).sum(1)
        if self.settings.reference_padding:
            lengths = torch.full_like(lengths, descriptions.shape[1])
        else:
            descriptions = descriptions[:, : max(1, int(lengths.max()))]
        x = self.dropout(self.embedding(descriptions.to(self.embedding.weight.device, non_blocking=True)))
        codes = _pooled(self.code_encoder, x, lengths)
        return torch.stack([projection(codes).tanh() for projection in self.code_projections])

    @torch.no_grad()
    def all_queries(self, descriptions: Tensor) -> Tensor:
        """Queries of many descriptions, computed in parts."""
        return torch.cat([self.queries(part) for part in descriptions.split(_CODES)], dim=1)

    def _attended(self, batch: Batch, states: Tensor) -> Tensor:
        """How many of the states of each note (B,) a code may attend to."""
        return torch.full_like(batch.lengths, states.shape[1]) if self.settings.reference_padding else batch.lengths

    def _head(self) -> DualHead:
        keys, (first, last) = _linear_layers(self.text_projections), _linear_layers(self.classifier)
        key, key_bias = torch.cat([layer.weight for layer in keys]), torch.cat([layer.bias for layer in keys])
        return DualHead(key, key_bias, first.weight, first.bias, last.weight[0], last.bias)


def _linear_layers(modules: nn.ModuleList | nn.Sequential) -> list[nn.Linear]:
    return [module for module in modules if isinstance(module, nn.Linear)]


def _encoder(settings: DualLaatSettings, size: int) -> ConvEncoder | RecurrentEncoder:
    if settings.encoder == "conv":
        return ConvEncoder(size, settings.width, settings.kernel, symmetric_padding=settings.reference_padding)
    return RecurrentEncoder(size, settings.width, "gru")


def _pooled(encoder: ConvEncoder | RecurrentEncoder, x: Tensor, lengths: Tensor) -> Tensor:
    """One vector per code (L, D): the final states of both directions, or the maximum over the words."""
    if isinstance(encoder, RecurrentEncoder):
        return encoder.last(x, lengths)
    states = encoder(x, lengths)
    beyond = ~token_mask(lengths.clamp(min=1) + states.shape[1] - x.shape[1], states.shape[1], x.device)
    return states.masked_fill(beyond[..., None], float("-inf")).amax(1)


class EncodedDescriptions(NamedTuple):
    """The queries (M, L, P) of the labels, and which of them are computed (L,)."""

    queries: Tensor
    known: Tensor


_RETRIEVER = "proposer."  # prefix in the bundle format


@dataclass
class DualLaat(NeuralModel[DualLaatNet, DualLaatSettings, WordTokenizer]):
    """A model of kind `dual_laat`; encoded descriptions are cached."""

    descriptions: list[str] = field(default_factory=list)  # of each label
    retriever: CandidateRetriever | None = None  # first stage of two-stage inference
    candidates: int = 0  # codes per note that the net scores; 0: all

    kind, tokenizer_class, settings_class = "dual_laat", WordTokenizer, DualLaatSettings
    _queries: EncodedDescriptions | None = None

    @property
    def queries(self) -> Tensor:
        """The queries (M, L, P) of all labels, computed at the first use."""
        return self._encoded(torch.arange(len(self.labels)))

    def _encoded(self, labels: Tensor) -> Tensor:
        """The queries (M, L, P) of all labels, of which those of `labels` are computed; each is computed once."""
        cache = self._queries
        missing = labels if cache is None or cache.queries.device != self.device else labels[~cache.known[labels]]
        if len(missing):
            with self.inference():
                new = self.net.all_queries(self.description_ids([self.descriptions[label] for label in missing]))
                if len(missing) == len(self.labels):
                    self._queries = cache = EncodedDescriptions(new, torch.ones(len(self.labels), dtype=torch.bool))
                    return cache.queries
                if cache is None or cache.queries.device != self.device:
                    empty = new.new_zeros(len(new), len(self.labels), new.shape[2])
                    self._queries = cache = EncodedDescriptions(empty, torch.zeros(len(self.labels), dtype=torch.bool))
                cache.queries[:, missing.to(self.device)] = new
                cache.known[missing] = True
        assert cache is not None
        return cache.queries

    def weights_changed(self) -> None:
        """Clears the cached queries."""
        self._queries = None

    def description_ids(self, descriptions: Sequence[str]) -> Tensor:
        """The tokens (L, words) of descriptions; one without a word is read as one unknown word."""
        limit = self.settings.max_description
        encoded = [self.tokenizer.description_ids(text, limit) for text in descriptions]
        tokens, lengths = pad_notes([ids if len(ids) else self.tokenizer.vocabulary.ids([""]) for ids in encoded])
        return tokens[:, : int(lengths.max())]

    def unreadable_codes(self) -> list[Code]:
        """The codes whose descriptions contain no known word: their scores mean nothing."""
        known = (self.description_ids(self.descriptions) > UNKNOWN).any(1).tolist()
        return [code for code, some in zip(self.labels.codes, known) if not some]

    def with_codes(self, codes: Sequence[tuple[Code, str]]) -> Self:
        """The same model for other codes, given with their descriptions; no weight changes."""
        model = copy(self)
        model.labels = LabelSpace(code for code, _ in codes)
        model.descriptions = [text for _, text in codes]
        seen = dict(zip(self.labels.codes, self.train_counts.tolist()))
        model.train_counts = np.array([seen.get(code, 0) for code in model.labels.codes], dtype=np.int64)
        if self.retriever:
            columns = {code: column for column, code in enumerate(self.labels.codes)}
            old = [columns.get(code, -1) for code in model.labels.codes]
            model.retriever = self.retriever.for_codes(old, model.description_ids(model.descriptions).numpy())
        model.weights_changed()
        return model

    def two_stage(self, candidates: int) -> Self:
        """The same model in two stages: retrieve `candidates` codes per note, then score only them; 0: all codes."""
        model = copy(self)
        model.candidates = candidates if self.retriever else 0
        return model

    def score_batch(self, batch: Batch, encodings: Sequence[TokenIds]) -> Tensor:
        """Logits (B, L); in two stages, a code that is not among a note's candidates has the logit `EXCLUDED_LOGIT`."""
        if self.retriever is None or not 0 < self.candidates < len(self.labels):
            return self.batch_logits(batch)
        states = self.net.states(batch) if batch.states is None else batch.states
        logits = states.new_full((len(encodings), len(self.labels)), EXCLUDED_LOGIT, dtype=torch.float32)
        candidates = [
            torch.from_numpy(self.retriever.retrieve(encoding.ids, self.candidates)) for encoding in encodings
        ]
        # On a CPU the first note should not wait until all descriptions are encoded.
        needed = torch.cat(candidates).unique() if states.device.type == "cpu" else torch.arange(len(self.labels))
        queries = self._encoded(needed)
        for row, chosen in enumerate(chosen.to(states.device) for chosen in candidates):
            note = slice(row, row + 1)
            one = Batch(batch.tokens[note], batch.lengths[note], states=states[note])
            logits[row, chosen] = self.net.logits(one, queries[:, chosen])[0].float()
        return logits if batch.labels is None else logits[:, batch.labels.to(logits.device, non_blocking=True)]

    def batch_logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) of a batch."""
        return self.net.logits(batch, self._batch_queries(batch))

    def batch_attention(self, batch: Batch) -> Tensor:
        """The attention weights (B, L, T) of the labels of a batch over its tokens."""
        return self.net.attention(batch, self._batch_queries(batch))

    def note_attention(self, batch: Batch) -> Tensor:
        """The attention weights (B, K, T) of the labels (B, K) of each note over its tokens."""
        return self.batch_attention(batch)

    def _batch_queries(self, batch: Batch) -> Tensor:
        if batch.labels is None:
            return self.queries
        few = self.candidates and self.device.type == "cpu"
        queries = self._encoded(batch.labels.unique()) if few else self.queries
        return queries[:, batch.labels.to(self.device, non_blocking=True)]

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
        arrays = {n.removeprefix(_RETRIEVER): t.numpy() for n, t in tensors.items() if n.startswith(_RETRIEVER)}
        self.retriever = CandidateRetriever.from_arrays(arrays) if arrays else None

    @classmethod
    def build_net(
        cls, settings: DualLaatSettings, labels: LabelSpace, tokenizer: WordTokenizer, config: dict[str, Any]
    ) -> DualLaatNet:
        """A net without learned weights."""
        # On the CPU: an embedding on the meta device imports torch._dynamo, which takes seconds.
        with torch.random.fork_rng(devices=[]):
            return DualLaatNet(settings, len(tokenizer.vocabulary), config["size"])
