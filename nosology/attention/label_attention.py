"""Label attention: one learned query and one learned classifier per label, as in CAML and LAAT."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.attention import kernels
from nosology.attention.planted_attention import PlantedScores, attend_
from nosology.encoders.sdpa import masked_attention, nonempty_mask

_INDEPENDENT_STD = 0.03  # of queries and weights without tied initialization, as in LAAT
_MAX_CELLS = {"cpu": 1 << 25, "cuda": 1 << 27}  # notes x tokens x labels that are scored at once without gradients
_LOSS_CELLS = 1 << 28  # notes x tokens x labels whose products are in memory at once in the fused loss


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
        keys, chosen = self._keys(states), self._chosen(labels)
        chunks = zip(*(self._split(weight[chosen], mask) for weight in (self.queries, self.weights, self.bias)))
        return torch.cat([self._chunk_logits(keys, states, mask, *chunk) for chunk in chunks], dim=1)

    def loss(self, states: Tensor, mask: Tensor, targets: Tensor, labels: Tensor | None = None) -> Tensor:
        """The mean binary cross-entropy of `logits` and targets (B, L); on an NVIDIA GPU computed by `fused_loss`."""
        if not (kernels.AVAILABLE and states.is_cuda and states.shape[1] <= kernels.MAX_TOKENS):
            return binary_cross_entropy_with_logits(self.logits(states, mask, labels).float(), targets)
        chosen = self._chosen(labels)
        queries, weights, bias = self.queries[chosen], self.weights[chosen], self.bias[chosen]
        return fused_loss(self._keys(states), states, mask, queries, weights, bias, targets)

    def attention(self, states: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights (B, L, T) of each label over the tokens; they sum to 1 and are 0 at padding."""
        queries = self.queries[self._chosen(labels)]
        scores = queries.to(states.dtype) @ self._keys(states).transpose(1, 2)
        return scores.float().masked_fill(~nonempty_mask(mask)[:, None], float("-inf")).softmax(-1) * mask[:, None]

    def _chosen(self, labels: Tensor | None) -> Tensor | slice:
        """The rows of weights of these labels. A GPU need not wait for indices that are copied from pinned memory."""
        return slice(None) if labels is None else labels.to(self.queries.device, non_blocking=True)

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


def fused_loss(
    keys: Tensor, states: Tensor, mask: Tensor, queries: Tensor, weights: Tensor, bias: Tensor, targets: Tensor
) -> Tensor:
    """The mean binary cross-entropy over notes x labels, computed together with its gradients.

    logit_l = sum over tokens t of softmax_t(u_l . z_t) (beta_l . h_t) + b_l, so the vectors (B, L, D) are not needed:
    a chunk of notes takes two matrix products, one pass over their results, and four matrix products for the gradients.
    keys: (B, T, P) z; states: (B, T, D) h; mask: (B, T), False at padding, which follows the note; queries: (L, P) u;
    weights: (L, D) beta; targets: (B, L).
    """
    with torch.autocast(states.device.type, enabled=False):
        return _FusedLoss.apply(keys, states, mask, queries, weights, bias, targets)


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys, states, mask, queries, weights, bias, targets):
        (notes, width, _), labels, dtypes = states.shape, len(bias), (keys.dtype, states.dtype)
        states = states.to(keys.dtype)  # of a frozen encoder in float32
        u, beta = queries.to(keys.dtype), weights.to(keys.dtype)
        needs_keys, needs_states, *_ = ctx.needs_input_grad  # the states of a frozen encoder need no gradient
        d_keys = torch.empty_like(keys) if needs_keys else None
        d_states = torch.empty_like(states) if needs_states else None
        d_queries, d_weights, d_bias = (torch.zeros_like(weight) for weight in (queries, weights, bias))
        total = torch.zeros((), device=states.device)
        attend = kernels.attend_ if kernels.AVAILABLE and states.is_cuda else attend_
        no_words, nothing_planted = torch.zeros_like(mask, dtype=torch.int32), PlantedScores(None, None, k=0)
        chunk = max(1, _LOSS_CELLS // (labels * width))
        for first in range(0, notes, chunk):
            part = slice(first, first + chunk)
            z, h = keys[part].flatten(0, 1), states[part].flatten(0, 1)
            products = states.new_empty(2, labels, len(h))
            torch.mm(u, z.T, out=products[0])
            torch.mm(beta, h.T, out=products[1])
            inputs = (mask[part], no_words[part], bias, targets[part].float(), nothing_planted, None)
            loss, d_logits = attend(products.view(2, labels, -1, width), *inputs, targets.numel())
            total += loss
            d_bias += d_logits.sum(1)
            d_queries += products[0] @ z
            d_weights += products[1] @ h
            if d_keys is not None:
                d_keys[part] = (products[0].T @ u).view(-1, *keys.shape[1:])
            if d_states is not None:
                d_states[part] = (products[1].T @ beta).view(-1, *states.shape[1:])
        d_keys, d_states = (None if x is None else x.to(dtype) for x, dtype in zip((d_keys, d_states), dtypes))
        ctx.save_for_backward(d_keys, d_states, d_queries, d_weights, d_bias)
        return total / targets.numel()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor):
        scale = grad_outputs[0]
        d_keys, d_states, *d_weights = (None if x is None else x * scale for x in ctx.saved_tensors)
        return d_keys, d_states, None, *d_weights, None
