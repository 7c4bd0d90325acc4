"""Attention with one learned query a label, and one learned classifier a label on what it found."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nosology.encoders.without_cudnn import without_cudnn

_APART = 0.03  # the spread of queries and weights that begin apart, as in LAAT
_CELLS = 32_000_000  # notes x tokens x labels that are scored at once where no gradient is kept


class Learned(nn.Module):
    """One vector a label out of the states of a note, and one logit out of the vector.

    With a projection, as in LAAT (Vu et al. 2020):
        Z = tanh(W H)               (2)
        A = softmax(U Z)            (3), over the tokens of the note
        V = H A'                    (4)
        logit_l = beta_l . v_l + b_l
    Without one (projection = 0) the queries meet the states themselves, as in CAML (Mullenbach et al. 2018): Z = H.
    """

    def __init__(
        self,
        width: int,
        labels: int,
        projection: int = 0,
        rates: Tensor | None = None,
        *,
        tie_initialization: bool = True,
        spread: float = 0.5,
    ):
        """width: D. labels: L. rates: (L,) the share of notes with each label, where its logit begins; None: a half.

        tie_initialization: a label's classifier starts as a copy of its query, so that what it attends to speaks for it
        from the first step; few notes are then enough. False: independent weights, as in the papers.
        spread: standard deviation of the first queries; smaller for larger states.
        """
        super().__init__()
        self.projection = nn.Linear(width, projection, bias=False) if projection else None
        self.queries = nn.Parameter(torch.empty(labels, projection or width))
        self.weights = nn.Parameter(torch.empty(labels, width))
        self.bias = nn.Parameter(torch.zeros(labels) if rates is None else torch.logit(rates.float(), eps=1e-5))
        with torch.no_grad():
            self.queries.normal_(std=spread if tie_initialization else _APART)
            self.weights.normal_(std=_APART)
            if tie_initialization:
                self.weights.copy_(self.queries if self.projection is None else self.queries @ self.projection.weight)

    def logits(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (B, L) of states (B, T, D); mask: (B, T), True at tokens. labels: (L,) of these labels, None: all."""
        keys = self._keys(states)
        chosen = slice(None) if labels is None else labels
        parts = zip(*(self._parts(weight[chosen], mask) for weight in (self.queries, self.weights, self.bias)))
        return torch.cat([self._part(keys, states, mask, *part) for part in parts], dim=1)

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T) of each label over the tokens: 1 together, 0 after the end of a note."""
        queries = self.queries if labels is None else self.queries[labels]
        scores = queries.to(states.dtype) @ self._keys(states).transpose(1, 2)
        return scores.float().masked_fill(~_some(mask)[:, None], float("-inf")).softmax(-1) * mask[:, None]

    def _keys(self, states: Tensor) -> Tensor:
        return states if self.projection is None else self.projection(states).tanh()

    def _parts(self, weight: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """A weight (L, ...) in parts of as many labels as may be scored at once."""
        if torch.is_grad_enabled():
            return (weight,)
        return weight.split(max(1, _CELLS // mask.numel()))

    def _part(
        self, keys: Tensor, states: Tensor, mask: Tensor, queries: Tensor, weights: Tensor, bias: Tensor
    ) -> Tensor:
        queries = queries.to(keys.dtype).expand(len(states), 1, -1, -1)
        keys, values = keys[:, None], states[:, None]  # one head: without it no fused kernel takes them
        with without_cudnn():
            found = scaled_dot_product_attention(queries, keys, values, _some(mask)[:, None, None], scale=1.0)[:, 0]
        return (found * weights).sum(-1) + bias  # found: (B, L, D)


def _some(mask: Tensor) -> Tensor:
    """The mask, with one token for a note that has none: a softmax over nothing is no number."""
    first = torch.zeros_like(mask)
    first[:, 0] = ~mask.any(1)
    return mask | first
