"""The net of PLANT: an AWD-LSTM encoder, and learned, static and planted attention (PLANT, see REFERENCES.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from nosology.attention.planted_attention import (
    AttentionState,
    LabelDecoder,
    PlantedScores,
    accumulate,
    accumulated_logits,
    pair_scores,
    planted_loss,
    top_k_mask,
)
from nosology.encoders.word_encoders import AwdLstm, DropoutRates, locked_dropout
from nosology.models.plant.plant_settings import PlantSettings, RankerSettings
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import Batch, token_mask

_OWN = 0.3  # initial standard deviation of the ranker's word vectors
_LONG = 2048  # tokens of a note; `chunk` is the number of such notes per chunk of the loss
_INSIDE = 4096  # labels whose attention is in memory at once during inference
_POSITIONS = 16_384  # tokens of all notes per window on a GPU: wider windows are faster
_KEPT = 1 << 26  # notes x labels x tokens that inattention carries from window to window


class Ranker(nn.Module):
    """f(label, word): the rank score of a word for a label (equation 2).

    A word has its vector of the language model and a vector of the ranker. Similar words share information through the
    first; the second separates words whose vectors in the language model are nearly equal.
    """

    def __init__(self, settings: RankerSettings, size: int, words: int, labels: int):
        super().__init__()
        self.scorer = settings.scorer
        self.labels = nn.Parameter(0.1 * torch.randn(labels, size))  # e_l
        wide = settings.hidden if settings.scorer == "mlp" else size
        self.words = nn.Parameter(_OWN * torch.randn(words, wide))
        self.of_label = nn.Linear(size, wide)
        self.of_word = nn.Linear(size, wide, bias=False)
        self.weights = nn.Parameter(torch.randn(wide) / wide**0.5)

    def forward(self, words: Tensor, vectors: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores (L, W), float32, of labels (None: all) with words (W,) that have vectors (W, E).

        Outside of training they are computed in float64. The choice between two words with nearly equal scores must not
        depend on the other notes of the batch, but the rounding of a matrix product in float32 does.
        """
        kind = torch.float32 if self.training else torch.float64
        own = (self.labels if labels is None else self.labels[labels]).to(kind)
        with torch.autocast(own.device.type, enabled=False):
            left = linear(own, self.of_label.weight.to(kind), self.of_label.bias.to(kind))
            right = linear(vectors.to(kind), self.of_word.weight.to(kind)) + self.words[words].to(kind)
            weights = self.weights.to(kind)
            made = (left * weights) @ right.T if self.scorer == "dot" else pair_scores(left, right, weights)
        return made.float()


class StaticRelevance(nn.Module):
    """The relevance of words for labels as buffers on the device of the net, sorted by word."""

    def __init__(self, relevance: Relevance):
        super().__init__()
        by_word = relevance.matrix().tocsc()
        self.labels = len(relevance)
        for name, array in (("bounds", by_word.indptr), ("rows", by_word.indices), ("scores", by_word.data)):
            self.register_buffer(
                name, torch.from_numpy(array.astype(np.float32 if name == "scores" else np.int64)), False
            )

    def forward(self, words: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores (L, W), float32, of labels (None: all) with words (W,)."""
        first, counts = self.bounds[words], self.bounds[words + 1] - self.bounds[words]
        column = torch.arange(len(words), device=words.device).repeat_interleave(counts)
        entry = torch.arange(len(column), device=words.device) + (first - counts.cumsum(0) + counts)[column]
        found = self.scores.new_zeros(self.labels, len(words))
        found[self.rows[entry], column] = self.scores[entry]
        return found if labels is None else found[labels]


class PlantNet(nn.Module):
    """One direction of PLANT."""

    def __init__(
        self,
        settings: PlantSettings,
        ranker: RankerSettings,
        words: int,
        labels: int,
        relevance: Relevance | None,
        backward: bool,
    ):
        super().__init__()
        self.settings, self.backward_reading = settings, backward
        self.encoder = AwdLstm(
            words, settings.size, settings.hidden, settings.layers, DropoutRates(**settings.drop.model_dump())
        )
        self.ranker = Ranker(ranker, settings.size, words, labels) if settings.planted else None
        self.queries = nn.Parameter(0.1 * torch.randn(labels, settings.size))  # U
        drawn = 0.1 * torch.randn(labels, settings.size)
        self.weights = nn.Parameter(self.queries.detach().clone() if settings.tie_initialization else drawn)  # W
        self.bias = nn.Parameter(torch.zeros(labels))
        self.static_relevance: StaticRelevance | None = None
        self.cache = CachedNoteStates(settings.cache_gb)
        if relevance is not None:
            self.set_relevance(relevance)

    def set_relevance(self, relevance: Relevance) -> None:
        """Sets the scores of static attention."""
        self.static_relevance = StaticRelevance(relevance).to(self.bias.device) if self.settings.static else None

    def groups(self) -> list[tuple[str, list[nn.Parameter]]]:
        """The parts of the net, the last first: the order in which gradual unfreezing starts to train them."""
        parts = [("decoder", [self.queries, self.weights, self.bias])]
        if self.ranker is not None:
            parts.append(("ranker", list(self.ranker.parameters())))
        parts += [("encoder", list(layer.parameters())) for layer in reversed(self.encoder.rnns)]
        return [*parts, ("encoder", [self.encoder.encoder.weight])]

    def forward(self, batch: Batch) -> Tensor:
        """The mean binary cross entropy over the batch's notes x labels."""
        tokens = self._reverse(batch.tokens, batch.lengths)
        states = locked_dropout(self._states(tokens, batch), self.encoder.drop.output, self.training)
        inside = token_mask(batch.lengths, tokens.shape[1], tokens.device)
        labels = self._some(batch.labels)
        planted, places = self._planted(tokens, labels)
        return planted_loss(
            states,
            inside,
            places,
            self._decoder(labels),
            planted,
            batch.targets,
            chunk=max(1, self.settings.chunk * _LONG // tokens.shape[1]),
            literal_zero=self.settings.literal_zero,
        )

    def _states(self, tokens: Tensor, batch: Batch) -> Tensor:
        """States (B, T, D) for training. States of a frozen encoder are computed once per note, without dropout."""
        if any(parameter.requires_grad for parameter in self.encoder.parameters()):
            self.cache.clear()
            return self.encoder(tokens)[0]

        def encode(rows: list[int]) -> Tensor:
            self.encoder.eval()
            states = self.encoder(tokens[rows] if len(rows) < len(tokens) else tokens)[0]
            self.encoder.train(self.training)
            return states

        if batch.notes is None:
            return encode(list(range(len(tokens))))
        return self.cache.states(batch.notes, batch.lengths, tokens.shape[1], encode)

    def _some(self, labels: Tensor | None) -> Tensor | None:
        """The labels; None if they are all labels, which saves an indexing operation."""
        every = labels is None or (len(labels) == len(self.bias) and torch.equal(labels, torch.arange(len(self.bias))))
        return None if every else labels

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L), computed window by window: memory does not grow with the length of the notes."""
        chosen = batch.labels if batch.labels is not None else torch.arange(len(self.bias))
        wide = max(_INSIDE, _KEPT // (len(batch.tokens) * max(1, self.settings.inattention)))
        return torch.cat([self._read(batch, labels.split(_INSIDE)) for labels in chosen.split(wide)], dim=1)

    def _read(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """Logits (B, L) of parts of the labels; each window is encoded once for all parts."""
        tokens, state = self._reverse(batch.tokens, batch.lengths), None
        decoders = [self._decoder(labels) for labels in parts]
        seen = [AttentionState.empty(len(tokens), len(labels), 0, self.bias) for labels in parts]
        window = max(self.settings.window, _POSITIONS // len(tokens) if tokens.is_cuda else 0)
        for first in range(0, tokens.shape[1], window):
            part = tokens[:, first : first + window]
            states, state = self.encoder(part, state)
            inside = token_mask(batch.lengths - first, part.shape[1], part.device)
            for number, labels in enumerate(parts):
                planted, places = self._planted(part, labels)
                seen[number] = accumulate(states, inside, places, decoders[number], planted, seen[number])
        made = zip(seen, decoders)
        return torch.cat(
            [accumulated_logits(left, decoder, self.settings.literal_zero) for left, decoder in made], dim=1
        )

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens: learned, static and planted, normalized to sum 1."""
        tokens = self._reverse(batch.tokens, batch.lengths)
        states, _ = self.encoder(tokens)
        inside = token_mask(batch.lengths, tokens.shape[1], tokens.device)[:, None]
        decoder, (planted, places) = self._decoder(batch.labels), self._planted(tokens, batch.labels)
        scores = torch.einsum("btd,ld->blt", states, decoder.queries).float()
        weights = torch.softmax(scores.masked_fill(~inside, -torch.inf), dim=2).nan_to_num()
        if planted.static is not None:
            weights = weights + planted.static[:, places].movedim(0, 1) * inside
        if planted.scores is not None:
            weights = weights + self._kept(planted.scores[:, places].movedim(0, 1).float(), inside)
        weights = weights / weights.sum(2, keepdim=True).clamp(min=1e-12)
        return self._reverse_back(weights, batch.lengths)

    def _kept(self, scores: Tensor, inside: Tensor) -> Tensor:
        """The softmax over the tokens that the attention of the ranker keeps."""
        kept = top_k_mask(scores, inside, self.settings.inattention)
        others = 0.0 if self.settings.literal_zero else -torch.inf
        scores = scores.masked_fill(~kept, others).masked_fill(~inside, -torch.inf)
        return torch.softmax(scores, dim=2).nan_to_num()

    def _decoder(self, labels: Tensor | None) -> LabelDecoder:
        if labels is None:
            return LabelDecoder(self.queries, self.weights, self.bias)
        labels = labels.to(self.bias.device)
        return LabelDecoder(self.queries[labels], self.weights[labels], self.bias[labels])

    def _planted(self, tokens: Tensor, labels: Tensor | None) -> tuple[PlantedScores, Tensor]:
        """The planted scores of the distinct words of tokens (B, T), and the index of the word of each token (B, T)."""
        words, places = torch.unique(tokens, return_inverse=True)
        chosen = None if labels is None else labels.to(tokens.device)
        static = self.static_relevance(words, chosen) if self.static_relevance is not None else None
        scores = self.ranker(words, self.encoder.encoder(words), chosen) if self.ranker is not None else None
        return PlantedScores(static, scores, self.settings.inattention), places

    def _reverse(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The notes, reversed if this net reads backward."""
        if not self.backward_reading:
            return tokens
        return tokens.gather(1, self._places(tokens, lengths))

    def _reverse_back(self, weights: Tensor, lengths: Tensor) -> Tensor:
        if not self.backward_reading:
            return weights
        places = self._places(weights[:, 0], lengths)
        return weights.gather(2, places[:, None].expand_as(weights))

    @staticmethod
    def _places(tokens: Tensor, lengths: Tensor) -> Tensor:
        """The positions (B, T) of the tokens of reversed notes; padding keeps its position."""
        place = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)
        end = lengths.to(tokens.device)[:, None]
        return torch.where(place < end, end - 1 - place, place)


_FREE = 0.5  # of the free GPU memory at the first cached state; the rest is for training


class CachedNoteStates:
    """Cached encoder states by note, on the device of the encoder. Notes beyond the memory limit are not cached."""

    def __init__(self, limit_gb: float):
        self.limit = int(limit_gb * 2**30)
        self.bytes = 0
        self._budget = self.limit
        self._states: dict[int, Tensor] = {}

    def states(self, notes: Tensor, lengths: Tensor, width: int, read: Callable[[list[int]], Tensor]) -> Tensor:
        """States (B, T, D) of notes (B,), from the cache or, for rows that are not cached, from `read`.

        lengths: (B,), on the CPU; width: T. The values at padding are undefined.
        """
        kept = [self._states.get(name) for name in notes.tolist()]
        missing = [row for row, state in enumerate(kept) if state is None]
        if missing:
            made = read(missing)
            for row, state in zip(missing, made):
                kept[row] = state[: lengths[row]]
                self._keep(int(notes[row]), kept[row])
            if len(missing) == len(kept):
                return made
        whole = kept[0].new_zeros(len(kept), width, kept[0].shape[1])
        for row, state in zip(whole, kept):
            row[: len(state)] = state
        return whole

    def clear(self) -> None:
        """Empties the cache: the encoder is trained now, or the training has ended."""
        self._states.clear()
        self.bytes = 0

    def _keep(self, name: int, state: Tensor) -> None:
        if not self.bytes:
            free = torch.cuda.mem_get_info(state.device)[0] if state.is_cuda else self.limit / _FREE
            self._budget = min(self.limit, int(_FREE * free))
        size = state.numel() * state.element_size()
        if name not in self._states and self.bytes + size <= self._budget:
            self._states[name] = state.detach().clone(memory_format=torch.contiguous_format)
            self.bytes += size
