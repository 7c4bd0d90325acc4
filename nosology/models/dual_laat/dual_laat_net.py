"""The net of DualLAAT (Liu and Nguyen 2025, appendix B): one encoder for notes and one for code descriptions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nosology.attention.dual_attention import DualHead, attention_weights, dual_logits, dual_loss
from nosology.encoders.tokenizers import PAD
from nosology.encoders.word_encoders import ConvEncoder, RecurrentEncoder, word_embedding
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.training.data_loader import Batch, token_mask

_CODES = 4096  # descriptions encoded at a time
_SIDE = 0.3  # initial weight of neighbouring words in a convolution, with tied initialization
_SHARP = 4.0  # initial scale of the projections: how sharp the first attention is


class DualLaatNet(nn.Module):
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
        self.descriptions = torch.zeros(0, 1, dtype=torch.int64)  # on the CPU: a GPU asked for lengths has to stop

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
            self.text_encoder.conv.bias.zero_()
        self.code_encoder.load_state_dict(self.text_encoder.state_dict())
        for text, code in zip(self.text_projections, self.code_projections):
            text.weight.normal_(std=_SHARP / math.sqrt(text.in_features * text.out_features))
            text.bias.zero_()
            code.load_state_dict(text.state_dict())

    @torch.no_grad()
    def initialize_bias(self, rate: float) -> None:
        """Sets the output bias so that the untrained net predicts this rate: most labels of a note are negative."""
        self.classifier[-1].bias.fill_(math.log(rate / (1 - rate)))

    def forward(self, batch: Batch) -> Tensor:
        """The mean binary cross entropy over the batch's notes x labels."""
        states = self.states(batch)
        queries = self.queries(self.descriptions[batch.labels])
        return dual_loss(
            states, self._attended(batch, states), queries, batch.targets, self._head(), self.settings.chunk
        )

    @torch.no_grad()
    def logits(self, batch: Batch, queries: Tensor | None = None) -> Tensor:
        """Logits (B, L) for the labels of the batch (None: all), or for given queries (M, L, P)."""
        if queries is None:
            wanted = self.descriptions if batch.labels is None else self.descriptions[batch.labels]
            queries = self.all_queries(wanted)
        states = self.states(batch)
        return dual_logits(
            states, self._attended(batch, states), queries.to(states.dtype), self._head().to(states.dtype)
        )

    @torch.no_grad()
    def attention(self, batch: Batch, queries: Tensor | None = None) -> Tensor:
        """The weights (B, L, T) of each label over the tokens, mean of the heads."""
        if queries is None:
            queries = self.all_queries(self.descriptions if batch.labels is None else self.descriptions[batch.labels])
        states = self.states(batch)
        lengths = self._attended(batch, states).clamp(min=1).to(states.device)
        head = self._head().to(states.dtype)
        weights, _ = attention_weights(states.contiguous(), lengths, queries.to(states.dtype), head)
        return weights.float().mean(1).transpose(0, 1)[..., : batch.tokens.shape[1]]

    def states(self, batch: Batch) -> Tensor:
        """Equation 1: the states (B, T, D) of the notes' tokens."""
        tokens, lengths = batch.tokens, batch.lengths
        if (
            self.settings.reference_padding
        ):  # the tokenizer has laid out all pads that count; those of the batch's rectangle do not
            tokens = tokens[:, : max(1, int(lengths.max()))]
            lengths = torch.full_like(lengths, tokens.shape[1])
        return self.text_encoder(self.dropout(self.embedding(tokens)), lengths)

    def queries(self, descriptions: Tensor) -> Tensor:
        """Equation 2 and the code's half of equation 3: queries (M, L, P) of descriptions (L, words) on the CPU."""
        lengths = (descriptions != PAD).sum(1)
        width = max(1, int(lengths.max())) if not self.settings.reference_padding else descriptions.shape[1]
        descriptions = descriptions[:, :width]
        if self.settings.reference_padding:
            lengths = torch.full_like(lengths, width)
        x = self.dropout(self.embedding(descriptions.to(self.embedding.weight.device, non_blocking=True)))
        codes = _pooled(self.code_encoder, x, lengths)
        return torch.stack([projection(codes).tanh() for projection in self.code_projections])

    @torch.no_grad()
    def all_queries(self, descriptions: Tensor) -> Tensor:
        """Queries of many descriptions, computed in parts."""
        parts = [self.queries(part) for part in descriptions.split(_CODES)]
        return torch.cat(parts, dim=1)

    def _attended(self, batch: Batch, states: Tensor) -> Tensor:
        """How many of the states of each note (B,) a code may attend to."""
        return torch.full_like(batch.lengths, states.shape[1]) if self.settings.reference_padding else batch.lengths

    def _head(self) -> DualHead:
        first, _, last = self.classifier
        return DualHead(
            torch.cat([projection.weight for projection in self.text_projections]),
            torch.cat([projection.bias for projection in self.text_projections]),
            first.weight,
            first.bias,
            last.weight[0],
            last.bias,
        )


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
