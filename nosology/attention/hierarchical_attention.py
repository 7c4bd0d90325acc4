"""Two-level attention of HMHAN (Sasikala et al. 2025): categories attend to the report, then each code attends to it.

Level 1: one query per category, several heads over the tokens, residual, layer norm.
Level 2: the query of a code is its own vector plus the level-1 output of its category; then the same steps.
`ATTENTIONS` also has two baselines: the mean of the tokens, and one query with one head for all codes.
Masks (B, T) are True at tokens, which come first, and False at padding. For a report without tokens the output of
attention is zero, and only the queries remain.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nosology.core import ConfigError
from nosology.encoders.sdpa import masked_attention, nonempty_mask


class MultiHeadAttention(nn.Module):
    """Multi-head cross-attention from queries to states.

    Queries and keys start with the same projection, values with the identity: a new query then attends to the tokens
    that are similar to it, which helps codes with few notes. Keys have no bias: it would add the same to the scores of
    all tokens.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise ConfigError(f"model.heads must divide the width of the encoder's states, {width}; got {heads}")
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.key.weight.copy_(self.query.weight)
            for layer in (self.value, self.out):
                layer.weight.copy_(torch.eye(width))
            for layer in (self.query, self.value, self.out):
                layer.bias.zero_()

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Attention output (B, Q, D) of queries (B or 1, Q, D) over states (B, T, D); mask: (B, T)."""
        if self._has_few(queries):
            seen = torch.einsum("bhqt,btd->bqhd", self._weights(queries, states, mask).to(states.dtype), states)
            values = torch.einsum("bqhd,hcd->bqhc", seen, self._by_head(self.value))
            output = values.flatten(2) + self.value.bias
        else:
            q = self._split(self.query(queries)).expand(len(states), -1, -1, -1)
            attended = masked_attention(q, self._split(self.key(states)), self._split(self.value(states)), mask)
            output = attended.transpose(1, 2).flatten(2)
        return self.out(output) * mask[:, :1, None]

    def weights(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """The weights (B, Q, T), averaged over the heads; they sum to 1 and are 0 at padding."""
        return self._weights(queries, states, mask).mean(1) * mask[:, None]

    def _weights(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """The weights (B, H, Q, T) of each head; those of a report without tokens are at position 0."""
        q = self._split(self.query(queries))
        if self._has_few(queries):
            of_states = torch.einsum("bhqc,hcd->bhqd", q, self._by_head(self.key)).expand(len(states), -1, -1, -1)
            scores = (of_states.flatten(1, 2) @ states.mT).unflatten(1, (self.heads, -1))
        else:
            scores = q @ self._split(self.key(states)).mT
        scores = scores / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~nonempty_mask(mask)[:, None, None], float("-inf"))
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

    def _has_few(self, queries: Tensor) -> bool:
        """Whether it takes less to project the queries of each head to the width of the states than all states."""
        return self.heads * queries.shape[1] < queries.shape[2]

    def _by_head(self, layer: nn.Linear) -> Tensor:
        """The weights (H, D / H, D) of a layer."""
        return layer.weight.unflatten(0, (self.heads, -1))

    def _split(self, x: Tensor) -> Tensor:
        """(B, N, D) as (B, H, N, D / H)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class HierarchicalAttention(nn.Module):
    """Attention on two levels: one vector per code from the states of a report."""

    category_of_label: Tensor

    def __init__(self, width: int, category_of_label: Tensor, heads: int = 4):
        """category_of_label: (L,) index of the category of each code."""
        super().__init__()
        self.register_buffer("category_of_label", category_of_label.long())
        self.category_queries = nn.Parameter(0.5 * torch.randn(int(category_of_label.max()) + 1, width))
        self.codes = nn.Parameter(0.5 * torch.randn(len(category_of_label), width))
        self.first, self.second = MultiHeadAttention(width, heads), MultiHeadAttention(width, heads)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def initialize_queries(self, codes: Tensor, categories: Tensor) -> None:
        """Sets the queries to the vectors of descriptions, padded with zeros: codes (L, D), categories (K, D)."""
        padding = (0, self.codes.shape[1] - codes.shape[1])
        with torch.no_grad():
            self.codes.copy_(pad(codes, padding))
            self.category_queries.copy_(pad(categories, padding))

    def forward(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The vectors (B, L, D) of the codes; labels: indices of codes, None: all."""
        queries = self._level_2_queries(states, mask, labels)
        return self.second_norm(queries + self.second(queries, states, mask))

    def category_vectors(self, states: Tensor, mask: Tensor) -> Tensor:
        """The level-1 outputs (B, K, D) of the categories."""
        queries = self._level_1_queries(states)
        return self.first_norm(queries + self.first(queries, states, mask))

    def _level_1_queries(self, states: Tensor) -> Tensor:
        return self.category_queries.to(states.dtype)[None]

    def _level_2_queries(self, states: Tensor, mask: Tensor, labels: Tensor | None) -> Tensor:
        codes, category = self.codes, self.category_of_label
        if labels is not None:
            codes, category = codes[labels], category[labels]
        return codes.to(states.dtype) + self.category_vectors(states, mask)[:, category]

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T) of the codes over the tokens."""
        return self.second.weights(self._level_2_queries(states, mask, labels), states, mask)

    def category_attention(self, states: Tensor, mask: Tensor) -> Tensor:
        """The weights (B, K, T) of the categories over the tokens."""
        return self.first.weights(self._level_1_queries(states), states, mask)


class SingleQueryAttention(nn.Module):
    """Baseline: one query and one head; all codes share one vector ("custom attention" of the paper)."""

    def __init__(self, width: int, category_of_label: Tensor, heads: int = 1):
        super().__init__()
        self.query = nn.Parameter(0.5 * torch.randn(1, width))
        self.cross_attention, self.norm = MultiHeadAttention(width, 1), nn.LayerNorm(width)
        self.labels = len(category_of_label)

    def forward(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The shared vector (B, 1, D)."""
        queries = self.query.to(states.dtype)[None]
        return self.norm(queries + self.cross_attention(queries, states, mask))

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T), the same for all codes."""
        weights = self.cross_attention.weights(self.query.to(states.dtype)[None], states, mask)
        return weights.expand(-1, self.labels if labels is None else len(labels), -1)


class MeanPooling(nn.Module):
    """Baseline without attention: the mean of the tokens."""

    def __init__(self, width: int, category_of_label: Tensor, heads: int = 0):
        super().__init__()
        self.norm, self.labels = nn.LayerNorm(width), len(category_of_label)

    def forward(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The shared vector (B, 1, D)."""
        return self.norm(_uniform_weights(mask, states.dtype)[:, None] @ states)

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T), the same for all tokens."""
        weights = _uniform_weights(mask, torch.float32)[:, None]
        return weights.expand(-1, self.labels if labels is None else len(labels), -1)


ATTENTIONS: dict[str, type[HierarchicalAttention] | type[SingleQueryAttention] | type[MeanPooling]] = {
    "hierarchical": HierarchicalAttention,
    "single": SingleQueryAttention,
    "none": MeanPooling,
}


def _uniform_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return mask.to(dtype) / mask.sum(1, keepdim=True).clamp(min=1)
