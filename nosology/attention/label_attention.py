"""Label attention: one learned query and one learned classifier per label, as in CAML and LAAT."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nosology.encoders.sdpa import masked_attention, nonempty_mask

_INDEPENDENT_STD = 0.03  # of queries and weights without tied initialization, as in LAAT
_MAX_CELLS = {"cpu": 1 << 25, "cuda": 1 << 27}  # notes x tokens x labels that are scored at once without gradients


class LabelAttention(nn.Module):
    """One vector per label from the states of a note, and one logit from the vector.

    With a projection, as in LAAT (Vu et al. 2020):
        Z = tanh(W H)               (2)
        A = softmax(U Z)            (3), over the tokens of the note
        V = H A'                    (4)
        logit_l = beta_l . v_l + b_l
    Without one (projection = 0), Z = H, as in CAML (Mullenbach et al. 2018).
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
        """width: D. labels: L. rates: (L,) share of notes with each label, the initial probability; None: a half.

        tie_initialization: the classifier of a label starts as a copy of its query, so that tokens with high attention
        raise the logit from the first step; few notes are then enough. False: independent, as in the papers.
        spread: standard deviation of the initial queries; smaller for larger states.
        """
        super().__init__()
        self.projection = nn.Linear(width, projection, bias=False) if projection else None
        self.queries = nn.Parameter(torch.empty(labels, projection or width))
        self.weights = nn.Parameter(torch.empty(labels, width))
        self.bias = nn.Parameter(torch.zeros(labels) if rates is None else torch.logit(rates.float(), eps=1e-5))
        with torch.no_grad():
            self.queries.normal_(std=spread if tie_initialization else _INDEPENDENT_STD)
            self.weights.normal_(std=_INDEPENDENT_STD)
            if tie_initialization:
                self.weights.copy_(self.queries if self.projection is None else self.queries @ self.projection.weight)

    def logits(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (B, L) of states (B, T, D); mask: (B, T), True at tokens. labels: (L,) indices, None: all."""
        keys = self._keys(states)
        chosen = slice(None) if labels is None else labels
        chunks = zip(*(self._split(weight[chosen], mask) for weight in (self.queries, self.weights, self.bias)))
        return torch.cat([self._chunk_logits(keys, states, mask, *chunk) for chunk in chunks], dim=1)

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T) of each label over the tokens; they sum to 1 and are 0 at padding."""
        queries = self.queries if labels is None else self.queries[labels]
        scores = queries.to(states.dtype) @ self._keys(states).transpose(1, 2)
        return scores.float().masked_fill(~nonempty_mask(mask)[:, None], float("-inf")).softmax(-1) * mask[:, None]

    def _keys(self, states: Tensor) -> Tensor:
        return states if self.projection is None else self.projection(states).tanh()

    def _split(self, weight: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """A weight (L, ...) in chunks of as many labels as fit into memory."""
        if torch.is_grad_enabled():
            return (weight,)
        return weight.split(max(1, _MAX_CELLS.get(mask.device.type, _MAX_CELLS["cpu"]) // mask.numel()))

    def _chunk_logits(
        self, keys: Tensor, states: Tensor, mask: Tensor, queries: Tensor, weights: Tensor, bias: Tensor
    ) -> Tensor:
        queries = queries.to(keys.dtype).expand(len(states), 1, -1, -1)
        # A dimension of one head: fused kernels require it.
        vectors = masked_attention(queries, keys[:, None], states[:, None], mask, scale=1.0)[:, 0]  # (B, L, D)
        return (vectors * weights).sum(-1) + bias
