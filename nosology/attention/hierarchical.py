"""Attention in two levels (paper 002): categories look at a report, and each code looks where its category did not.

Level 1: one query a category, several heads over the tokens, residual, layer norm.
Level 2: the query of a code is its own vector plus what its category has found; the same again.
The two baselines of the paper's Table 4 stand beside it: no attention (the mean of the tokens), and one query with one
head for all codes. All take the mask and obey it; a report without a token gives what its queries are without one.
Masks are those of reports: True at their tokens, which stand first, and False after their ends.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nosology.core import ConfigError
from nosology.encoders.without_cudnn import without_cudnn


class MultiHead(nn.Module):
    """Queries look at states with several heads.

    Queries and keys are projected alike at first, and values not at all: a query then finds the tokens that are like
    it, which is all that a code seen once can hope for.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise ConfigError(f"model.heads must divide the width of the encoder's states, {width}; got {heads}")
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        with torch.no_grad():
            self.key.weight.copy_(self.query.weight)
            for layer in (self.value, self.out):
                layer.weight.copy_(torch.eye(width))
            for layer in (self.query, self.key, self.value, self.out):
                layer.bias.zero_()

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """What queries (B, Q, D) find in states (B, T, D); mask: (B, T), True at tokens. (B, Q, D)."""
        q, k, v = self._split(self.query(queries)), self._split(self.key(states)), self._split(self.value(states))
        with without_cudnn():
            found = scaled_dot_product_attention(q, k, v, _some(mask)[:, None, None])
        return self.out(found.transpose(1, 2).flatten(2)) * mask[:, :1, None]

    def weights(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """The mean over the heads of the weights (B, Q, T): 1 together, 0 after the end of a report."""
        q, k = self._split(self.query(queries)), self._split(self.key(states))
        scores = (q @ k.transpose(-1, -2)).float() / q.shape[-1] ** 0.5
        return scores.masked_fill(~_some(mask)[:, None, None], float("-inf")).softmax(-1).mean(1) * mask[:, None]

    def _split(self, x: Tensor) -> Tensor:
        """(B, N, D) as (B, H, N, D / H)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Hierarchical(nn.Module):
    """Both levels."""

    def __init__(self, width: int, categories: Tensor, heads: int = 4):
        """categories: (L,) the category of each code, counted from 0."""
        super().__init__()
        self.register_buffer("category", categories.long())
        self.categories = nn.Parameter(0.5 * torch.randn(int(categories.max()) + 1, width))
        self.codes = nn.Parameter(0.5 * torch.randn(len(categories), width))
        self.first, self.second = MultiHead(width, heads), MultiHead(width, heads)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def begin(self, codes: Tensor, categories: Tensor) -> None:
        """Lets the queries begin as the vectors of descriptions: codes (L, D), categories (K, D)."""
        with torch.no_grad():
            self.codes.copy_(codes)
            self.categories.copy_(categories)

    def forward(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The vectors (B, L, D) of the codes, or of those named."""
        queries = self._code_queries(states, mask, labels)
        return self.second_norm(queries + self.second(queries, states, mask))

    def category_vectors(self, states: Tensor, mask: Tensor) -> Tensor:
        """What the categories have found (B, K, D)."""
        queries = self.categories.to(states.dtype).expand(len(states), -1, -1)
        return self.first_norm(queries + self.first(queries, states, mask))

    def _code_queries(self, states: Tensor, mask: Tensor, labels: Tensor | None) -> Tensor:
        codes, category = (self.codes, self.category) if labels is None else (self.codes[labels], self.category[labels])
        return codes.to(states.dtype) + self.category_vectors(states, mask)[:, category]

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T) of the codes over the tokens."""
        return self.second.weights(self._code_queries(states, mask, labels), states, mask)

    def category_attention(self, states: Tensor, mask: Tensor) -> Tensor:
        """The weights (B, K, T) of the categories over the tokens."""
        return self.first.weights(self.categories.to(states.dtype).expand(len(states), -1, -1), states, mask)


class Single(nn.Module):
    """One query, one head: every code sees the same vector (the paper's custom attention)."""

    def __init__(self, width: int, categories: Tensor, heads: int = 1):
        super().__init__()
        self.query = nn.Parameter(0.5 * torch.randn(1, width))
        self.look, self.norm = MultiHead(width, 1), nn.LayerNorm(width)
        self.labels = len(categories)

    def forward(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The one vector (B, 1, D) of all codes."""
        queries = self.query.to(states.dtype).expand(len(states), -1, -1)
        return self.norm(queries + self.look(queries, states, mask))

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T), the same for all codes."""
        found = self.look.weights(self.query.to(states.dtype).expand(len(states), -1, -1), states, mask)
        return found.expand(-1, self.labels if labels is None else len(labels), -1)


class Mean(nn.Module):
    """No attention: the mean of the tokens."""

    def __init__(self, width: int, categories: Tensor, heads: int = 0):
        super().__init__()
        self.norm, self.labels = nn.LayerNorm(width), len(categories)

    def forward(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The one vector (B, 1, D) of all codes."""
        return self.norm(_shares(mask, states.dtype)[:, None] @ states)

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T): all tokens weigh the same."""
        return _shares(mask, torch.float32)[:, None].expand(-1, self.labels if labels is None else len(labels), -1)


ATTENTIONS: dict[str, type[Hierarchical] | type[Single] | type[Mean]] = {
    "hierarchical": Hierarchical,
    "single": Single,
    "none": Mean,
}


def _shares(mask: Tensor, kind: torch.dtype) -> Tensor:
    return mask.to(kind) / mask.sum(1, keepdim=True).clamp(min=1)


def _some(mask: Tensor) -> Tensor:
    """The mask, with one token for a report that has none: a softmax over nothing is no number."""
    found = mask.clone()
    found[:, 0] = True
    return found
