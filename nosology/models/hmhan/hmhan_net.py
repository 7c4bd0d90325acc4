"""HMHAN and its two baselines (paper 002): states, attention, one head for all codes.

    H = encoder(report)                                    (B, T, D)
    C = norm(Q + heads(Q, H))          one query a category  (B, K, D)
    q = E + C[category of the code]                        (B, L, D)
    V = norm(q + heads(q, H))                              (B, L, D)
    logit = w_l . MLP([V; columns]) + b_l + what words say by themselves

The head ends in one row a code, a part that all codes share and a part of its own that begins at 0: so it is the same
head under all three attentions, and a code seen once leans on what all codes have learned. What words say by themselves
is fitted before the net is (`training/word_scores.py`) and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nosology.attention.hierarchical_attention import ATTENTIONS
from nosology.encoders.state_cache import GatheredStates
from nosology.encoders.transformer import WindowedTransformer
from nosology.models.hmhan.hmhan_settings import HmhanShape, LossSettings
from nosology.training.data_loader import Batch, token_mask
from nosology.training.losses import focal_loss, weighted_bce


@dataclass(frozen=True)
class SyntheticBatch:
    """S rows between two reports of a batch each; they have a loss and nothing else."""

    pairs: Tensor  # (S, 2) rows of the batch
    shares: Tensor  # (S,) of the way from the first to the second
    targets: Tensor  # (S, L)

    def to(self, device: torch.device | str) -> SyntheticBatch:
        """The rows on a device."""
        return SyntheticBatch(*(value.to(device, non_blocking=True) for value in vars(self).values()))

    def pin_memory(self) -> SyntheticBatch:
        """The rows in memory that a GPU copies from while the program goes on."""
        return SyntheticBatch(*(value.pin_memory() for value in vars(self).values()))


@dataclass(frozen=True)
class ReportBatch(Batch):
    """B reports; where there are synthetic rows, the reports after the last row of `targets` are there for them."""

    states: Tensor | GatheredStates | None = None  # (B, T, D) of a frozen encoder
    columns: Tensor | None = None  # (B, C)
    features: Tensor | None = None  # (B, F) numbers of words, 0 after the last
    values: Tensor | None = None  # (B, F)
    offsets: Tensor | None = None  # (B, L) what words say, where that is not to be asked of the net's own machine
    synthetic: SyntheticBatch | None = None

    def to(self, device: torch.device | str) -> ReportBatch:
        """The batch on a device; lengths stay, and so does what other fields make needless."""
        names = ["labels", "targets", "columns", "states" if self.states is not None else "tokens"]
        names += ["features", "values"] if self.offsets is None else ["offsets"]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        moved = {name: value.to(device, non_blocking=True) for name, value in given.items()}
        return replace(self, **moved, synthetic=self.synthetic and self.synthetic.to(device))


class Head(nn.Module):
    """MLP over [code vector; columns], then one row a code."""

    def __init__(self, width: int, columns: int, projected: int, hidden: Sequence[int], labels: int, dropout: float):
        super().__init__()
        self.columns = nn.Linear(columns, projected) if columns else None
        sizes = [width + (projected if columns else 0), *hidden]
        layers = [
            part
            for before, after in pairwise(sizes)
            for part in (nn.Linear(before, after), nn.LayerNorm(after), nn.GELU(), nn.Dropout(dropout))
        ]
        self.trunk = nn.Sequential(*layers)
        self.shared = nn.Parameter(torch.zeros(sizes[-1]))  # the head adds nothing at first
        self.own = nn.Parameter(torch.zeros(labels, sizes[-1]))
        self.bias = nn.Parameter(torch.zeros(labels))

    def expect(self, rates: Tensor) -> None:
        """Lets each code begin with the share (L,) of the train reports that have it."""
        with torch.no_grad():
            self.bias.copy_(torch.logit(rates.clamp(1e-4, 0.9)))

    def forward(self, vectors: Tensor, columns: Tensor | None, labels: Tensor | None) -> Tensor:
        """Logits (B, L) of vectors (B, L or 1, D) and columns (B, C)."""
        if self.columns is not None:
            known = self.columns(columns.to(vectors.dtype))[:, None].expand(-1, vectors.shape[1], -1)
            vectors = torch.cat([vectors, known], dim=-1)
        own, bias = (self.own, self.bias) if labels is None else (self.own[labels], self.bias[labels])
        found = self.trunk(vectors)
        return (found * (self.shared + own).to(found.dtype)).sum(-1).float() + bias


class HmhanNet(nn.Module):
    """One net: encoder, attention, head, and the lexical branch where there is one."""

    def __init__(
        self,
        shape: HmhanShape,
        loss: LossSettings,
        encoder: WindowedTransformer,
        categories: Tensor,
        columns: int = 0,
        projected: int = 64,
        words: int = 0,
    ):
        """categories: (L,) the category of each code. columns: C. words: features of the lexical branch."""
        super().__init__()
        labels, width = len(categories), encoder.width
        self.loss = loss
        self.encoder = encoder
        self.encoder.requires_grad_(not shape.frozen)
        self.dropout = nn.Dropout(shape.state_dropout)
        self.look = ATTENTIONS[shape.attention](width, categories, shape.heads)
        self.head = Head(width, columns, projected, shape.hidden, labels, shape.dropout)
        self.register_buffer("words", torch.zeros(words + 1, labels) if words else None)  # row 0 is the pad's
        self.register_buffer("word_bias", torch.zeros(labels) if words else None)
        self.register_buffer("share", torch.ones(()))  # of what the net adds to what words say
        self.register_buffer("weights", torch.ones(labels))  # of true codes

    def forward(self, batch: ReportBatch) -> Tensor:
        """The mean loss over reports (real and synthetic) x labels."""
        states, inside = self.states(batch)
        vectors = self.look(states, inside, batch.labels)
        wide = self.wide(batch)
        logits = self.share * self.head(vectors, _columns(batch), batch.labels) + wide
        real = len(batch.targets)
        cells = self._cells(logits[:real], batch.targets, batch.labels)
        if getattr(batch, "synthetic", None) is None:
            return cells.mean()
        more = self._cells(self._between(batch, vectors, wide), batch.synthetic.targets, batch.labels)
        return (cells.sum() + more.sum()) / (cells.numel() + more.numel())

    def _between(self, batch: ReportBatch, vectors: Tensor, wide: Tensor) -> Tensor:
        """Logits (S, L) of what lies between vectors (B, L, D), after attention, and what words say (B, L)."""
        made = batch.synthetic

        def between(values: Tensor) -> Tensor:
            first, second = values[made.pairs[:, 0]], values[made.pairs[:, 1]]
            return torch.lerp(first, second, made.shares.to(values.dtype).view(-1, *[1] * (values.ndim - 1)))

        columns = None if batch.columns is None else between(batch.columns)
        return self.share * self.head(between(vectors), columns, batch.labels) + between(wide)

    def logits(self, batch: ReportBatch) -> Tensor:
        """Logits (B, L) for the batch's labels, or for all where it names none."""
        states, inside = self.states(batch)
        found = self.head(self.look(states, inside, batch.labels), _columns(batch), batch.labels)
        return self.share * found + self.wide(batch)

    def attention(self, batch: ReportBatch) -> Tensor:
        """The weights (B, L, T) of each code over the tokens."""
        return self.look.attention(*self.states(batch), batch.labels)

    def category_attention(self, batch: ReportBatch) -> Tensor:
        """The weights (B, K, T) of each category over the tokens; hierarchical attention alone has them."""
        return self.look.category_attention(*self.states(batch))

    def states(self, batch: ReportBatch) -> tuple[Tensor, Tensor]:
        """The states (B, T, D) of the tokens, and where there are any (B, T)."""
        given = getattr(batch, "states", None)
        if given is None:
            states = self.encoder(batch.tokens, batch.lengths)
        else:
            states = given.to(self.head.shared.dtype)
        return self.dropout(states), token_mask(batch.lengths, states.shape[1], states.device)

    def wide(self, batch: ReportBatch) -> Tensor:
        """What the words say (B, L); nothing (B, 1) where there is no lexical branch."""
        if self.words is None:
            return torch.zeros(len(batch.lengths), 1, device=self.share.device)
        chosen = slice(None) if batch.labels is None else batch.labels
        if getattr(batch, "offsets", None) is not None:
            return batch.offsets[:, chosen]
        weights = self.words[:, chosen]
        with torch.autocast(weights.device.type, enabled=False):
            found = F.embedding_bag(batch.features, weights, per_sample_weights=batch.values, mode="sum", padding_idx=0)
        return found + self.word_bias[chosen]

    def _cells(self, logits: Tensor, targets: Tensor, labels: Tensor | None) -> Tensor:
        """The loss of each cell (B, L)."""
        told = self.loss
        cells = torch.zeros_like(logits)
        if told.focal:
            cells = cells + told.focal * focal_loss(logits, targets, told.gamma, told.alpha)
        if told.bce:
            weights = self.weights if labels is None else self.weights[labels]
            cells = cells + told.bce * weighted_bce(logits, targets, weights)
        return cells


class HmhanNets(nn.Module):
    """Several nets whose logits are averaged; they are trained one by one."""

    def __init__(self, nets: Sequence[HmhanNet]):
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, batch: ReportBatch) -> Tensor:
        """The mean of the nets' losses."""
        return torch.stack([net(batch) for net in self.nets]).mean()

    def logits(self, batch: ReportBatch) -> Tensor:
        """The mean (B, L) of the nets' logits; nets that add nothing to words are not asked."""
        if not self.adds:
            return torch.stack([net.wide(batch) for net in self.nets]).mean(0)
        batch = self._encoded(batch)
        return torch.stack([net.logits(batch) for net in self.nets]).mean(0)

    @property
    def adds(self) -> bool:
        """Whether the nets add anything to what words say."""
        return any(bool(net.share) for net in self.nets)

    def attention(self, batch: ReportBatch) -> Tensor:
        """The mean of the weights (B, L, T) that the nets' codes lay on the tokens."""
        batch = self._encoded(batch)
        return torch.stack([net.attention(batch) for net in self.nets]).mean(0)

    def category_attention(self, batch: ReportBatch) -> Tensor:
        """The mean of the weights (B, K, T) that the nets' categories lay on the tokens."""
        batch = self._encoded(batch)
        return torch.stack([net.category_attention(batch) for net in self.nets]).mean(0)

    def _encoded(self, batch: Batch) -> Batch:
        """The batch with its states, where one frozen encoder serves all nets: it then reads a report once."""
        shared = len(self.nets) > 1 and len({id(net.encoder) for net in self.nets}) == 1
        if not shared or self.training or getattr(batch, "states", None) is not None:
            return batch
        given = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return ReportBatch(**given | {"states": self.nets[0].encoder(batch.tokens, batch.lengths)})


def _columns(batch: ReportBatch) -> Tensor | None:
    return getattr(batch, "columns", None)
