"""PLANT (pretrained and leveraged attention, Saha Roy et al. 2024): an AWD-LSTM below three kinds of attention.

Learned attention has one query per label, static attention is the mutual information of words and labels, and planted
attention comes from a ranker that has learned to order words by mutual information.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nosology.attention.planted_attention import (
    AttentionState,
    LabelDecoder,
    PlantedScores,
    accumulate,
    accumulated_logits,
    planted_loss,
    top_k_mask,
)
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import SPECIALS, WordTokenizer
from nosology.encoders.word_encoders import AwdLstm, locked_dropout
from nosology.models.label_net import LabelNet
from nosology.models.neural import NeuralModel
from nosology.models.plant.cached_note_states import CachedNoteStates
from nosology.models.plant.plant_settings import PlantSettings, RankerSettings
from nosology.models.plant.ranker import Ranker
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import Batch, token_mask

_LONG_NOTE = 2048  # tokens; `chunk` is the number of such notes per chunk of the loss
_MAX_LABELS = 4096  # whose attention is in memory at once during inference
_WIDE_WINDOW = 16_384  # tokens of all notes per window: wider windows are faster
_MAX_SELECTED = 1 << 26  # notes x labels x tokens that planted attention carries from window to window
_RELEVANCE = "relevance."


class StaticRelevance(nn.Module):
    """The relevance of words for labels as buffers on the device of the net, sorted by word."""

    bounds: Tensor  # (V + 1,) of the entries of each word
    rows: Tensor  # the label of each entry
    scores: Tensor  # of each entry

    def __init__(self, relevance: Relevance):
        super().__init__()
        by_word = relevance.matrix().tocsc()
        self.labels = len(relevance)
        self.register_buffer("bounds", torch.from_numpy(by_word.indptr.astype(np.int64)), False)
        self.register_buffer("rows", torch.from_numpy(by_word.indices.astype(np.int64)), False)
        self.register_buffer("scores", torch.from_numpy(by_word.data.astype(np.float32)), False)

    def forward(self, words: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores (L, W), float32, of labels (None: all) with words (W,)."""
        first, counts = self.bounds[words], self.bounds[words + 1] - self.bounds[words]
        column = torch.arange(len(words), device=words.device).repeat_interleave(counts)
        entry = torch.arange(len(column), device=words.device) + (first - counts.cumsum(0) + counts)[column]
        scores = self.scores.new_zeros(self.labels, len(words))
        scores[self.rows[entry], column] = self.scores[entry]
        return scores if labels is None else scores[labels]


class PlantNet(LabelNet):
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
        self.encoder = AwdLstm(words, settings.size, settings.hidden, settings.layers, settings.dropout)
        self.ranker = Ranker(ranker, settings.size, words, labels) if settings.planted else None
        self.queries = nn.Parameter(0.1 * torch.randn(labels, settings.size))  # U
        independent = 0.1 * torch.randn(labels, settings.size)
        tied = self.queries.detach().clone()
        self.weights = nn.Parameter(tied if settings.tie_initialization else independent)  # W
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
        return [*parts, ("encoder", list(self.encoder.encoder.parameters()))]

    def forward(self, batch: Batch) -> Tensor:
        """The loss: the mean binary cross-entropy over notes x labels."""
        assert batch.targets is not None
        tokens = self._reverse(batch.tokens, batch.lengths)
        states = locked_dropout(self._states(tokens, batch), self.encoder.dropout.output, self.training)
        mask, labels = batch.mask, batch.labels
        if not self.settings.stateful:
            tokens, states, mask = self._last_windows(tokens, states, batch.lengths)
        if labels is not None and torch.equal(labels, torch.arange(len(self.bias))):
            labels = None  # saves an indexing operation
        planted, places = self._planted(tokens, labels)
        chunk = max(1, self.settings.chunk * _LONG_NOTE // max(1, tokens.shape[1]))
        return planted_loss(states, mask, places, self._decoder(labels), planted, batch.targets, chunk=chunk)

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

    def _first_decoded(self, lengths: Tensor) -> Tensor:
        """The first token (B,) of each note that the decoder reads: 0, or without state that of its last windows."""
        if self.settings.stateful:
            return torch.zeros_like(lengths)
        windows = (lengths + self.settings.window - 1) // self.settings.window
        return (windows - self.settings.last_windows).clamp(min=0) * self.settings.window

    def _last_windows(self, tokens: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (B, T), states (B, T, D) and mask (B, T) of the windows that a decoder without state reads."""
        first = self._first_decoded(lengths)
        width = max(1, int((lengths - first).max()))
        places = (first[:, None] + torch.arange(width)).clamp(max=tokens.shape[1] - 1).to(tokens.device)
        chosen = states.gather(1, places[..., None].expand(-1, -1, states.shape[2]))
        return tokens.gather(1, places), chosen, token_mask(lengths - first, width, tokens.device)

    def _decoded(self, lengths: Tensor, first: int, width: int, device: torch.device) -> Tensor:
        """Whether the decoder reads each token (B, width) of a window that starts at token `first`."""
        before = token_mask(self._first_decoded(lengths) - first, width, device)
        return token_mask(lengths - first, width, device) & ~before

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L), computed window by window: memory does not grow with the length of the notes."""
        labels = batch.labels if batch.labels is not None else torch.arange(len(self.bias))
        kept = self.settings.inattention if self.settings.inattention_scope == "note" else 1
        size = max(_MAX_LABELS, _MAX_SELECTED // (len(batch.tokens) * max(1, kept)))
        return torch.cat([self._chunk_logits(batch, chunk.split(_MAX_LABELS)) for chunk in labels.split(size)], dim=1)

    def _chunk_logits(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """Logits (B, L) of parts of the labels; each window is encoded once for all parts."""
        tokens, lstm_state = self._reverse(batch.tokens, batch.lengths), None
        decoders = [self._decoder(labels) for labels in parts]
        sums = [AttentionState.empty(len(tokens), len(labels), 0, self.bias) for labels in parts]
        window = self.settings.window
        # A multiple: `window` may be the scope of inattention.
        window *= max(1, _WIDE_WINDOW // (len(tokens) * window))
        for first in range(0, tokens.shape[1], window):
            part = tokens[:, first : first + window]
            states, lstm_state = self.encoder(part, lstm_state)
            inside = self._decoded(batch.lengths, first, part.shape[1], part.device)
            for number, labels in enumerate(parts):
                planted, places = self._planted(part, labels)
                sums[number] = accumulate(states, inside, places, decoders[number], planted, sums[number])
        return torch.cat([accumulated_logits(*pair) for pair in zip(sums, decoders)], dim=1)

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens: learned, static and planted, normalized to sum 1."""
        labels = torch.arange(len(self.bias)) if batch.labels is None else batch.labels
        return self.note_attention(replace(batch, labels=labels[None]))

    def note_attention(self, batch: Batch) -> Tensor:
        """The weights (B, K, T) of the labels (B, K) of each note, or (1, K) of all notes, over the tokens."""
        assert batch.labels is not None
        tokens = self._reverse(batch.tokens, batch.lengths)
        states, _ = self.encoder(tokens)
        inside = self._decoded(batch.lengths, 0, tokens.shape[1], tokens.device)[:, None]
        distinct, rows = torch.unique(batch.labels, return_inverse=True)
        rows = rows.to(tokens.device)
        decoder, (planted, places) = self._decoder(distinct), self._planted(tokens, distinct)
        cells = rows[:, :, None], places[:, None]  # label and word of each cell (B, K, T)
        scores = (decoder.queries[rows] @ states.transpose(1, 2)).float()
        weights = torch.softmax(scores.masked_fill(~inside, -torch.inf), dim=2).nan_to_num()
        if planted.static is not None:
            weights = weights + planted.static[cells] * inside
        if planted.scores is not None:
            scores = planted.scores[cells].float()
            selected = top_k_mask(scores, inside, planted.k, planted.scope)
            scores = scores.masked_fill(~selected, 0.0 if planted.literal_zero else -torch.inf)
            weights = weights + torch.softmax(scores.masked_fill(~inside, -torch.inf), dim=2).nan_to_num()
        weights = weights / weights.sum(2, keepdim=True).clamp(min=1e-12)
        return self._reverse(weights, batch.lengths)

    def _decoder(self, labels: Tensor | None) -> LabelDecoder:
        if labels is None:
            return LabelDecoder(self.queries, self.weights, self.bias)
        labels = labels.to(self.bias.device, non_blocking=True)
        return LabelDecoder(self.queries[labels], self.weights[labels], self.bias[labels])

    def _planted(self, tokens: Tensor, labels: Tensor | None) -> tuple[PlantedScores, Tensor]:
        """The planted scores of the distinct words of tokens (B, T), and the index of the word of each token (B, T)."""
        words, places = torch.unique(tokens, return_inverse=True)
        chosen = None if labels is None else labels.to(tokens.device, non_blocking=True)
        static = self.static_relevance(words, chosen) if self.static_relevance is not None else None
        scores = self.ranker(words, self.encoder.encoder(words), chosen) if self.ranker is not None else None
        settings = self.settings
        scope = settings.window if settings.inattention_scope == "window" else 0
        return PlantedScores(static, scores, settings.inattention, scope, settings.literal_zero), places

    def _reverse(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Values of tokens (B, T) or (B, L, T), reversed if this net reads backward; padding stays at the end."""
        if not self.backward_reading:
            return values
        place, end = torch.arange(values.shape[-1], device=values.device), lengths.to(values.device)[:, None]
        places = torch.where(place < end, end - 1 - place, place)
        return values.gather(-1, (places if values.dim() == 2 else places[:, None]).expand_as(values))


class PlantNets(LabelNet):
    """The nets of one or both reading directions; a trained pair averages its probabilities."""

    def __init__(self, nets: Sequence[PlantNet]):
        super().__init__()
        self.nets = nn.ModuleList(nets)

    @classmethod
    def of(
        cls, settings: PlantSettings, ranker: RankerSettings, words: int, labels: int, relevance: Relevance | None
    ) -> PlantNets:
        """Untrained nets, one per direction of the settings."""
        return cls([PlantNet(settings, ranker, words, labels, relevance, way) for way in directions(settings)])

    @property
    def by_direction(self) -> list[PlantNet]:
        """The nets, typed."""
        return [net for net in self.nets if isinstance(net, PlantNet)]

    def forward(self, batch: Batch) -> Tensor:
        """The loss of one direction; directions are trained one by one."""
        return self.nets[0](batch) if len(self.nets) == 1 else super().forward(batch)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) of the mean of the nets' probabilities."""
        logits = [net.logits(batch) for net in self.by_direction]
        if len(logits) == 1:
            return logits[0]
        yes, no = (torch.stack([nn.functional.logsigmoid(sign * x) for x in logits]).logsumexp(0) for sign in (1, -1))
        return yes - no

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens, mean over the nets."""
        return torch.stack([net.attention(batch) for net in self.by_direction]).mean(0)

    def note_attention(self, batch: Batch) -> Tensor:
        """The weights (B, K, T) of the labels (B, K) of each note over its tokens, mean over the nets."""
        return torch.stack([net.note_attention(batch) for net in self.by_direction]).mean(0)


@dataclass
class Plant(NeuralModel[PlantNets, PlantSettings, WordTokenizer]):
    """A model of kind `plant`; `relevance` has the most informative words of each code."""

    relevance: Relevance = field(default_factory=Relevance.empty)
    ranker: RankerSettings = field(default_factory=RankerSettings)

    kind, tokenizer_class, settings_class = "plant", WordTokenizer, PlantSettings

    @classmethod
    def of(
        cls,
        labels: LabelSpace,
        train_counts: np.ndarray,
        tokenizer: WordTokenizer,
        settings: PlantSettings,
        ranker: RankerSettings,
        relevance: Relevance,
    ) -> Plant:
        """An untrained model."""
        net = PlantNets.of(settings, ranker, len(tokenizer.vocabulary), len(labels), relevance)
        return cls(labels, train_counts, tokenizer, net, settings, relevance=relevance, ranker=ranker)

    def relevant_words(self, label: int, limit: int = 10) -> list[tuple[str, float]]:
        """The most informative words of a label with their scores, highest first."""
        ids, scores = self.relevance.best(label, limit)
        words = self.tokenizer.vocabulary.words
        return [(words[number - SPECIALS], float(score)) for number, score in zip(ids.tolist(), scores)]

    @classmethod
    def build_net(
        cls, settings: PlantSettings, labels: LabelSpace, tokenizer: WordTokenizer, config: dict[str, Any]
    ) -> PlantNets:
        """Nets without learned weights."""
        ranker = RankerSettings.model_validate(config["ranker"])
        return PlantNets.of(settings, ranker, len(tokenizer.vocabulary), len(labels), None)

    def extra_config(self) -> dict[str, Any]:
        """The settings of the ranker."""
        return {"ranker": self.ranker.model_dump(mode="json")}

    def load_extra_config(self, config: dict[str, Any]) -> None:
        """Restores what `extra_config` returned."""
        self.ranker = RankerSettings.model_validate(config["ranker"])

    def extra_tensors(self) -> dict[str, Tensor]:
        """The relevance of words."""
        return {_RELEVANCE + name: torch.from_numpy(array) for name, array in self.relevance.arrays().items()}

    def load_extra_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `extra_tensors` returned."""
        arrays = {n.removeprefix(_RELEVANCE): t.numpy() for n, t in tensors.items() if n.startswith(_RELEVANCE)}
        self.relevance = Relevance.from_arrays(arrays)
        for net in self.net.by_direction:
            net.set_relevance(self.relevance)


def directions(settings: PlantSettings) -> list[bool]:
    """One value per net: whether it reads notes backward."""
    return {"forward": [False], "backward": [True], "both": [False, True]}[settings.direction]


def direction_name(backward: bool) -> str:
    """The name of a reading direction in files, reports and messages."""
    return "backward" if backward else "forward"
