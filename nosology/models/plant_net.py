"""PLANT: an AWD-LSTM reads a note; each label looks where it has learned to and where it was told to (paper 003)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import linear

from nosology.attention.pair_scores import pair_scores
from nosology.attention.planted import Decoder, Planted, Seen, kept_first, logits, read
from nosology.attention.planted_loss import planted_loss
from nosology.encoders.awd_lstm import AwdLstm, Dropouts
from nosology.models.batch import Batch, mask
from nosology.models.plant_settings import PlantShape, RankerSettings
from nosology.models.relevance import Relevance

_INSIDE = 4096  # labels whose attention is in memory at once where a note is only to be coded


class Ranker(nn.Module):
    """f(label, word): how far up a label's list a word belongs (equation 2)."""

    def __init__(self, settings: RankerSettings, size: int, labels: int):
        super().__init__()
        self.scorer = settings.scorer
        self.labels = nn.Parameter(0.1 * torch.randn(labels, size))  # e_l
        wide = settings.hidden if settings.scorer == "mlp" else size
        self.of_label = nn.Linear(size, wide)
        self.of_word = nn.Linear(size, wide, bias=False)
        self.weights = nn.Parameter(torch.randn(wide) / wide**0.5)

    def forward(self, words: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores (L, W), float32, of labels, all where none are named, with words given by their vectors (W, E).

        Where nothing is learned they are computed in float64: the kept tokens of two words with nearly equal scores
        must not depend on what else is in the batch, and the rounding of a matrix product does.
        """
        kind = torch.float32 if self.training else torch.float64
        own = (self.labels if labels is None else self.labels[labels]).to(kind)
        with torch.autocast(own.device.type, enabled=False):
            left = linear(own, self.of_label.weight.to(kind), self.of_label.bias.to(kind))
            right = linear(words.to(kind), self.of_word.weight.to(kind))
            weights = self.weights.to(kind)
            made = (left * weights) @ right.T if self.scorer == "dot" else pair_scores(left, right, weights)
        return made.float()


class PlantNet(nn.Module):
    """One direction of PLANT."""

    def __init__(
        self,
        shape: PlantShape,
        ranker: RankerSettings,
        words: int,
        labels: int,
        relevance: Relevance | None,
        backward: bool,
    ):
        super().__init__()
        self.shape, self.backward_reading = shape, backward
        self.encoder = AwdLstm(words, shape.size, shape.hidden, shape.layers, Dropouts(**shape.drop.model_dump()))
        self.ranker = Ranker(ranker, shape.size, labels) if shape.planted else None
        self.queries = nn.Parameter(0.1 * torch.randn(labels, shape.size))  # U
        self.weights = nn.Parameter(0.1 * torch.randn(labels, shape.size))  # W
        self.bias = nn.Parameter(torch.zeros(labels))
        self.relevance: sparse.csc_matrix | None = None  # (L, V)
        if relevance is not None:
            self.tell(relevance)

    def tell(self, relevance: Relevance) -> None:
        """Takes over which words tell the labels."""
        self.relevance = relevance.matrix().tocsc() if self.shape.static else None

    def groups(self) -> list[tuple[str, list[nn.Parameter]]]:
        """The parts of the net, the last first: the order in which they begin to learn."""
        parts = [("decoder", [self.queries, self.weights, self.bias])]
        if self.ranker is not None:
            parts.append(("ranker", list(self.ranker.parameters())))
        parts += [("encoder", list(layer.parameters())) for layer in reversed(self.encoder.rnns)]
        return [*parts, ("encoder", [self.encoder.encoder.weight])]

    def forward(self, batch: Batch) -> Tensor:
        """The mean binary cross entropy over the batch's notes x labels."""
        tokens = self._turned(batch.tokens, batch.lengths)
        states, _ = self.encoder(tokens)
        inside = mask(batch.lengths, tokens.shape[1], tokens.device)
        planted, places = self._planted(tokens, batch.labels)
        return planted_loss(
            states,
            inside,
            places,
            self._decoder(batch.labels),
            planted,
            batch.targets,
            chunk=self.shape.chunk,
            literal_zero=self.shape.literal_zero,
        )

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L), window by window: what is in memory does not grow with the notes' lengths."""
        decoder = self._decoder(batch.labels)
        return torch.cat([self._read(batch, part, labels) for part, labels in self._label_parts(decoder, batch)], dim=1)

    def _label_parts(self, decoder: Decoder, batch: Batch) -> Iterator[tuple[Decoder, Tensor]]:
        chosen = batch.labels if batch.labels is not None else torch.arange(len(self.bias))
        for start in range(0, len(chosen), _INSIDE):
            part = slice(start, start + _INSIDE)
            yield Decoder(decoder.queries[part], decoder.weights[part], decoder.bias[part]), chosen[part]

    def _read(self, batch: Batch, decoder: Decoder, labels: Tensor) -> Tensor:
        """Logits (B, L) of some labels."""
        seen, state = None, None
        tokens = self._turned(batch.tokens, batch.lengths)
        for first in range(0, tokens.shape[1], self.shape.window):
            part = tokens[:, first : first + self.shape.window]
            states, state = self.encoder(part, state)
            inside = mask(batch.lengths - first, part.shape[1], part.device)
            planted, places = self._planted(part, labels)
            seen = seen or Seen.nothing(len(part), len(decoder.bias), 0, states)
            seen = read(states, inside, places, decoder, planted, seen)
        return logits(seen, decoder, self.shape.literal_zero)

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens: learned, static and planted, made to sum to 1."""
        tokens = self._turned(batch.tokens, batch.lengths)
        states, _ = self.encoder(tokens)
        inside = mask(batch.lengths, tokens.shape[1], tokens.device)[:, None]
        decoder, (planted, places) = self._decoder(batch.labels), self._planted(tokens, batch.labels)
        scores = torch.einsum("btd,ld->blt", states, decoder.queries).float()
        weights = torch.softmax(scores.masked_fill(~inside, -torch.inf), dim=2).nan_to_num()
        if planted.static is not None:
            weights = weights + planted.static[:, places].movedim(0, 1) * inside
        if planted.scores is not None:
            weights = weights + self._kept(planted.scores[:, places].movedim(0, 1).float(), inside)
        weights = weights / weights.sum(2, keepdim=True).clamp(min=1e-12)
        return self._turned_back(weights, batch.lengths)

    def _kept(self, scores: Tensor, inside: Tensor) -> Tensor:
        """The softmax over the tokens that the ranker's attention keeps."""
        kept = kept_first(scores, inside, self.shape.inattention)
        return torch.softmax(scores.masked_fill(~kept, -torch.inf), dim=2).nan_to_num()

    def _decoder(self, labels: Tensor | None) -> Decoder:
        if labels is None:
            return Decoder(self.queries, self.weights, self.bias)
        labels = labels.to(self.bias.device)
        return Decoder(self.queries[labels], self.weights[labels], self.bias[labels])

    def _planted(self, tokens: Tensor, labels: Tensor | None) -> tuple[Planted, Tensor]:
        """What labels are told about the different words of tokens (B, T), and which of them each token is (B, T)."""
        words, places = torch.unique(tokens, return_inverse=True)
        chosen = None if labels is None else labels.to(tokens.device)
        static = scores = None
        if self.relevance is not None:
            columns = self.relevance[:, words.cpu().numpy()]
            columns = columns if labels is None else columns.tocsr()[labels.cpu().numpy()]
            static = torch.from_numpy(columns.toarray()).to(tokens.device)
        if self.ranker is not None:
            scores = self.ranker(self.encoder.encoder(words), chosen)
        return Planted(static, scores, self.shape.inattention), places

    def _turned(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The notes, read from their ends where this is the backward direction."""
        if not self.backward_reading:
            return tokens
        return tokens.gather(1, self._places(tokens, lengths))

    def _turned_back(self, weights: Tensor, lengths: Tensor) -> Tensor:
        if not self.backward_reading:
            return weights
        places = self._places(weights[:, 0], lengths)
        return weights.gather(2, places[:, None].expand_as(weights))

    @staticmethod
    def _places(tokens: Tensor, lengths: Tensor) -> Tensor:
        """Where each token (B, T) of a note turned round stands; pads stay where they are."""
        place = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)
        end = lengths.to(tokens.device)[:, None]
        return torch.where(place < end, end - 1 - place, place)
