"""The net of HMHAN and its two baselines (Sasikala et al. 2025): encoder, attention, one head for all codes.

    H = encoder(report)                                    (B, T, D)
    C = norm(Q + heads(Q, H))        one query per category  (B, K, D)
    q = E + C[category of the code]                        (B, L, D)
    V = norm(q + heads(q, H))                              (B, L, D)
    logit = w_l . MLP([V; columns]) + b_l + offset

w_l is the sum of a vector shared by all codes and a vector of the code, which starts at 0. So the head is the same for
all three kinds of attention, and a code seen once relies on what all codes have learned. With early fusion the columns
are appended to each state of H instead. An offset, if there is one, is the logit of another model, which stays fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from nosology.attention.hierarchical_attention import ATTENTIONS, HierarchicalAttention
from nosology.encoders.state_cache import GatheredStates
from nosology.encoders.transformer import WindowedTransformer
from nosology.models.hmhan.hmhan_settings import HmhanSettings, LossSettings
from nosology.training.data_loader import Batch, token_mask
from nosology.training.losses import LossBias, focal_loss, weighted_bce


@dataclass(frozen=True)
class SyntheticBatch:
    """S synthetic rows, each between two reports of a batch; they only enter the loss."""

    pairs: Tensor  # (S, 2) rows of the batch
    fractions: Tensor  # (S,) position between the first (0) and the second (1)
    targets: Tensor  # (S, L)

    def to(self, device: torch.device | str) -> SyntheticBatch:
        return SyntheticBatch(*(value.to(device, non_blocking=True) for value in vars(self).values()))

    def pin_memory(self) -> SyntheticBatch:
        """The rows in pinned memory, for asynchronous copies to a GPU."""
        return SyntheticBatch(*(value.pin_memory() for value in vars(self).values()))

    def interpolate(self, values: Tensor) -> Tensor:
        """Values (S, ...) between the values (B, ...) of the two reports of each row."""
        first, second = values[self.pairs[:, 0]], values[self.pairs[:, 1]]
        return torch.lerp(first, second, self.fractions.to(values.dtype).view(-1, *[1] * (values.ndim - 1)))


@dataclass(frozen=True)
class ReportBatch(Batch):
    """B reports. Reports after the last row of `targets` are only there as neighbours of synthetic rows."""

    # (B, T, D) of a frozen encoder, gathered when the batch is moved to a device
    states: Tensor | GatheredStates | None = None  # pyrefly: ignore[bad-override]
    columns: Tensor | None = None  # (B, C)
    offset: Tensor | None = None  # (B, all labels) logits of another model, to which the net adds
    synthetic: SyntheticBatch | None = None

    @staticmethod
    def from_batch(batch: Batch) -> ReportBatch:
        """A batch of tokens as a batch of reports without columns."""
        if isinstance(batch, ReportBatch):
            return batch
        return ReportBatch(batch.tokens, batch.lengths, batch.labels, batch.targets, batch.notes)

    def to(self, device: torch.device | str) -> ReportBatch:
        """The batch on a device. Lengths, and fields that other fields replace, stay on the CPU."""
        names = ["labels", "targets", "columns", "offset", "states" if self.states is not None else "tokens"]
        present = {name: value for name in names if (value := getattr(self, name)) is not None}
        moved = {name: value.to(device, non_blocking=True) for name, value in present.items()}
        return replace(self, **moved, synthetic=self.synthetic and self.synthetic.to(device))


class HmhanHead(nn.Module):
    """An MLP over [code vector; projected columns], then a dot product with the vector of each code."""

    def __init__(self, width: int, columns: int, projected: int, hidden: Sequence[int], labels: int, dropout: float):
        super().__init__()
        self.columns = nn.Linear(columns, projected) if columns else None
        sizes = [width + (projected if columns else 0), *hidden]
        layers = [
            layer
            for n_in, n_out in pairwise(sizes)
            for layer in (nn.Linear(n_in, n_out), nn.LayerNorm(n_out), nn.GELU(), nn.Dropout(dropout))
        ]
        self.mlp = nn.Sequential(*layers)
        self.shared_weight = nn.Parameter(torch.zeros(sizes[-1]))  # zero: an untrained head adds nothing
        self.code_weight = nn.Parameter(torch.zeros(labels, sizes[-1]))
        self.bias = nn.Parameter(torch.zeros(labels))

    def initialize_output(self, bias: Tensor | None, zero_weights: bool) -> None:
        """Sets the initial bias (L,) of the codes; None: torch's default, as for weights that are not zero."""
        bound = len(self.shared_weight) ** -0.5
        with torch.no_grad():
            if not zero_weights:
                self.shared_weight.uniform_(-bound, bound)
            if bias is None:
                self.bias.uniform_(-bound, bound)
            else:
                self.bias.copy_(bias)

    def forward(self, vectors: Tensor, columns: Tensor | None, labels: Tensor | None) -> Tensor:
        """Logits (B, L) of vectors (B, L or 1, D) and columns (B, C)."""
        if self.columns is not None:
            if columns is None:
                raise ValueError("columns must be given for a head with columns; got None")
            projected = self.columns(columns.to(vectors.dtype))[:, None].expand(-1, vectors.shape[1], -1)
            vectors = torch.cat([vectors, projected], dim=-1)
        code_weight, bias = self.code_weight, self.bias
        if labels is not None:
            code_weight, bias = code_weight[labels], bias[labels]
        hidden = self.mlp(vectors)
        return (hidden * (self.shared_weight + code_weight).to(hidden.dtype)).sum(-1).float() + bias


class HmhanNet(nn.Module):
    """One net: encoder, attention and head."""

    class_weights: Tensor
    prior_shift: Tensor

    def __init__(
        self,
        settings: HmhanSettings,
        loss: LossSettings,
        encoder: WindowedTransformer,
        category_of_label: Tensor,
        columns: int = 0,
        projected: int = 64,
        early: bool = False,
    ):
        """category_of_label: (L,) index of the category of each code. columns: C.

        early: columns are read before attention.
        """
        super().__init__()
        labels, early = len(category_of_label), early and columns > 0
        width = encoder.width + (projected if early else 0)
        self.loss = loss
        self.encoder = encoder
        self.encoder.requires_grad_(not settings.frozen)
        self.dropout = nn.Dropout(settings.state_dropout)
        self.early_columns = nn.Linear(columns, projected) if early else None
        self.code_attention = ATTENTIONS[settings.attention](width, category_of_label, settings.heads)
        self.head = HmhanHead(width, 0 if early else columns, projected, settings.hidden, labels, settings.dropout)
        self.register_buffer("class_weights", torch.ones(labels))
        self.register_buffer("prior_shift", torch.zeros(labels))  # of the log odds of codes, by synthetic rows
        self.register_load_state_dict_pre_hook(_convert_old_weights)

    @property
    def column_layer(self) -> nn.Linear | None:
        """The projection of the columns; None without columns."""
        return self.head.columns if self.early_columns is None else self.early_columns

    def forward(self, batch: ReportBatch) -> Tensor:
        """The mean loss over all cells: reports (real and synthetic) x labels."""
        if batch.targets is None:
            raise ValueError("targets must be given to compute a loss; got None")
        vectors, offset = self.code_vectors(batch), self._offset(batch)
        logits = self.head(vectors, batch.columns, batch.labels) + offset
        losses = self._losses(logits[: len(batch.targets)], batch.targets, batch.labels)
        if batch.synthetic is None:
            return losses.mean()
        logits = self._synthetic_logits(batch, batch.synthetic, vectors, offset)
        synthetic = self._losses(logits, batch.synthetic.targets, batch.labels)
        return (losses.sum() + synthetic.sum()) / (losses.numel() + synthetic.numel())

    def logits(self, batch: ReportBatch) -> Tensor:
        """Logits (B, L) of the labels of the batch; of all labels if it has none. See `unbiased`."""
        states, mask = self._exact_states(batch)
        with torch.autocast(states.device.type, enabled=False):
            vectors = self.code_attention(states, mask, batch.labels)
            logits = self.head(vectors, batch.columns, batch.labels) + self._offset(batch)
        return self.unbiased(logits, batch.labels)

    def synthetic_logits(self, batch: ReportBatch, synthetic: SyntheticBatch) -> Tensor:
        """Logits (S, L) of synthetic rows between reports of a batch. See `unbiased`."""
        logits = self._synthetic_logits(batch, synthetic, self.code_vectors(batch), self._offset(batch))
        return self.unbiased(logits, batch.labels)

    def _synthetic_logits(
        self, batch: ReportBatch, synthetic: SyntheticBatch, vectors: Tensor, offset: Tensor
    ) -> Tensor:
        """Logits (S, L) of rows between the code vectors (B, L, D), columns and offsets (B, L) of two reports."""
        columns = None if batch.columns is None else synthetic.interpolate(batch.columns)
        return self.head(synthetic.interpolate(vectors), columns, batch.labels) + synthetic.interpolate(offset)

    def _offset(self, batch: ReportBatch) -> Tensor:
        """The offset (B, L) of the labels of the batch; zeros (B, 1) without an offset."""
        if batch.offset is None:
            return torch.zeros(len(batch.lengths), 1, device=self.class_weights.device)
        return batch.offset if batch.labels is None else batch.offset[:, batch.labels]

    def loss_bias(self, labels: Tensor | None = None) -> LossBias:
        """The bias that the loss and synthetic rows give to the logits of labels; None: all."""
        loss, chosen = self.loss, slice(None) if labels is None else labels
        return LossBias(
            loss.bce, self.class_weights[chosen], loss.focal, loss.gamma, loss.alpha, shift=self.prior_shift[chosen]
        )

    def unbiased(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """The logits (B, L) of the net as logits of probabilities, if `loss.corrected`."""
        return self.loss_bias(labels).remove(logits) if self.loss.corrected else logits

    def code_vectors(self, batch: ReportBatch) -> Tensor:
        """The output of attention, one vector per code (B, L, D); (B, 1, D) for the baselines."""
        return self.code_attention(*self.states(batch), batch.labels)

    def attention(self, batch: ReportBatch) -> Tensor:
        """The attention weights (B, L, T) of each code over the tokens."""
        states, mask = self._exact_states(batch)
        with torch.autocast(states.device.type, enabled=False):
            return self.code_attention.attention(states, mask, batch.labels)

    def category_attention(self, batch: ReportBatch) -> Tensor:
        """The attention weights (B, K, T) of each category over the tokens; needs hierarchical attention."""
        if not isinstance(self.code_attention, HierarchicalAttention):
            raise ValueError(f"attention must be hierarchical; got {type(self.code_attention).__name__}")
        states, mask = self._exact_states(batch)
        with torch.autocast(states.device.type, enabled=False):
            return self.code_attention.category_attention(states, mask)

    def _exact_states(self, batch: ReportBatch) -> tuple[Tensor, Tensor]:
        """As `states`, in the type of the weights, for attention and head: a logit in bf16 has eight bits."""
        states, mask = self.states(batch)
        return states.to(self.head.shared_weight.dtype), mask

    def states(self, batch: ReportBatch) -> tuple[Tensor, Tensor]:
        """The encoder states (B, T, D) of the tokens, with early columns if there are any, and their mask (B, T)."""
        if batch.states is None:
            states = self.encoder(batch.tokens, batch.lengths)
        else:
            states = batch.states.to(self.head.shared_weight.device).to(self.head.shared_weight.dtype)
        states = self.dropout(states)
        if self.early_columns is not None:
            if batch.columns is None:
                raise ValueError("columns must be given for a net with columns; got None")
            projected = self.early_columns(batch.columns.to(states.dtype))[:, None]
            states = torch.cat([states, projected.expand(-1, states.shape[1], -1)], dim=-1)
        return states, token_mask(batch.lengths, states.shape[1], states.device)

    def _losses(self, logits: Tensor, targets: Tensor, labels: Tensor | None) -> Tensor:
        """The loss of each cell (B, L)."""
        loss = self.loss
        losses = torch.zeros_like(logits)
        if loss.focal:
            losses = losses + loss.focal * focal_loss(logits, targets, loss.gamma, loss.alpha)
        if loss.bce:
            weights = self.class_weights if labels is None else self.class_weights[labels]
            losses = losses + loss.bce * weighted_bce(logits, targets, weights)
        return losses


def _convert_old_weights(net: HmhanNet, weights: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Changes the saved weights of version 0.2.

    Word weights belong to kind `reports` now, there was no prior shift, and keys had a bias, which changed no output.
    """
    for name in list(weights):
        old = next((old for old in _OLD_NAMES if f"{name}.".startswith(f"{prefix}{old}.")), None)
        if old is not None:
            weights[prefix + _OLD_NAMES[old] + name.removeprefix(prefix + old)] = weights.pop(name)
    key_biases = [f"code_attention.{part}.key.bias" for part in ("first", "second", "cross_attention")]
    for name in ("words", "word_bias", "share", *key_biases):
        weights.pop(prefix + name, None)
    weights.setdefault(f"{prefix}prior_shift", torch.zeros_like(weights[f"{prefix}class_weights"]))


# Modules and weights of version 0.2, and their names of today; a module comes after those in it.
_OLD_NAMES = {
    "look.look": "code_attention.cross_attention",
    "look.categories": "code_attention.category_queries",
    "look.category": "code_attention.category_of_label",
    "look": "code_attention",
    "head.trunk": "head.mlp",
    "head.own": "head.code_weight",
    "head.shared": "head.shared_weight",
    "weights": "class_weights",
}


class HmhanEnsemble(nn.Module):
    """Nets whose logits are averaged; they are trained one after another."""

    nets: Sequence[HmhanNet]

    def __init__(self, nets: Sequence[HmhanNet]):
        super().__init__()
        self.nets = nn.ModuleList(nets)  # pyrefly: ignore[bad-assignment]  # ModuleList has no type of its items

    def forward(self, batch: Batch) -> Tensor:
        reports = ReportBatch.from_batch(batch)
        return torch.stack([net(reports) for net in self.nets]).mean()

    def logits(self, batch: Batch) -> Tensor:
        """The mean (B, L) of the logits of the nets."""
        reports = self._with_states(batch)
        return torch.stack([net.logits(reports) for net in self.nets]).mean(0)

    def attention(self, batch: Batch) -> Tensor:
        """The mean of the attention weights (B, L, T) of the nets."""
        reports = self._with_states(batch)
        return torch.stack([net.attention(reports) for net in self.nets]).mean(0)

    def category_attention(self, batch: Batch) -> Tensor:
        """The mean of the category attention weights (B, K, T) of the nets."""
        reports = self._with_states(batch)
        return torch.stack([net.category_attention(reports) for net in self.nets]).mean(0)

    def _with_states(self, batch: Batch) -> ReportBatch:
        """The batch with encoder states, if all nets share one frozen encoder: it then runs once per batch."""
        reports = ReportBatch.from_batch(batch)
        shared = len(self.nets) > 1 and len({id(net.encoder) for net in self.nets}) == 1
        if not shared or self.training or reports.states is not None:
            return reports
        return replace(reports, states=self.nets[0].encoder(reports.tokens, reports.lengths))
