"""A language model: an AWD-LSTM that predicts the next word, with tied input and output embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nosology.encoders.tokenizers import PAD
from nosology.encoders.word_encoders import AwdLstm, LstmState, detach_state, locked_dropout


class LanguageModel(nn.Module):
    """An AWD-LSTM with an output layer. Buffers have its last state, for checkpoints and for the next window."""

    def __init__(self, encoder: AwdLstm, streams: int):
        super().__init__()
        self.encoder = encoder
        self.bias = nn.Parameter(torch.zeros(len(encoder.encoder.weight)))
        for number, layer in enumerate(encoder.rnns):
            for name in ("hidden", "cell"):
                self.register_buffer(f"{name}_{number}", torch.zeros(1, streams, layer.width))

    def forward(self, batch) -> Tensor:
        """The mean cross entropy of the next words of a StreamBatch; a text's end is not asked for."""
        states, after = self.encoder(batch.tokens, None if batch.is_first else self._state())
        self._keep(after)
        states = locked_dropout(states, self.encoder.drop.output, self.training).flatten(0, 1)
        with torch.autocast(states.device.type, enabled=False):
            return next_word_loss(states, self.encoder.encoder.weight, self.bias, batch.targets.flatten())

    def _state(self) -> LstmState:
        return tuple((getattr(self, f"hidden_{i}"), getattr(self, f"cell_{i}")) for i in range(len(self.encoder.rnns)))

    def _keep(self, state: LstmState) -> None:
        """Takes over a state as it is: the one before may still be needed for derivatives."""
        for number, (hidden, cell) in enumerate(detach_state(state)):
            setattr(self, f"hidden_{number}", hidden)
            setattr(self, f"cell_{number}", cell)


try:
    from nosology.models.plant import next_word_kernels as fused
except ImportError:  # triton comes with the CUDA builds of torch alone
    fused = None  # type: ignore[assignment]

CHUNK = 8192  # positions whose logits are in memory at once
_MULTIPLE = 8  # bf16 matrix products want aligned rows


def next_word_loss(states: Tensor, vectors: Tensor, bias: Tensor, targets: Tensor, chunk: int = CHUNK) -> Tensor:
    """The mean cross entropy of the words that follow; targets that are PAD are not asked for.

    states: (N, D); vectors: (V, D) and bias: (V,) of the words; targets: (N,).
    """
    return _Loss.apply(states, vectors, bias, targets, chunk)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, vectors, bias, targets, chunk):
        size = states.shape[1]
        # the bias as one number more of each vector: its derivatives come with theirs
        wide = -(-(size + 1) // _MULTIPLE) * _MULTIPLE
        words = states.new_zeros(len(vectors), wide)
        words[:, :size], words[:, size] = vectors, bias
        x = states.new_zeros(len(states), wide)
        x[:, :size], x[:, size] = states, 1
        share = 1 / (targets != PAD).sum().clamp(min=1).float()
        d_x = torch.empty_like(x)
        d_words = torch.zeros(words.shape, device=words.device)
        total = torch.zeros((), device=words.device)
        for first in range(0, len(x), chunk):
            part = slice(first, first + chunk)
            logits = x[part] @ words.T
            total += cross_entropy_(logits, targets[part], share)
            d_x[part] = logits @ words
            d_words += logits.T @ x[part]
        ctx.kinds = vectors.dtype, bias.dtype
        ctx.size = size
        ctx.save_for_backward(d_x, d_words)
        return total

    @staticmethod
    def backward(ctx, grad_output):
        d_x, d_words = ctx.saved_tensors
        of_states = d_x[:, : ctx.size] * grad_output.to(d_x.dtype)
        of_vectors, of_bias = d_words[:, : ctx.size] * grad_output, d_words[:, ctx.size] * grad_output
        return of_states, of_vectors.to(ctx.kinds[0]), of_bias.to(ctx.kinds[1]), None, None


def cross_entropy_(logits: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """The sum of the cross entropies of positions times `share`; the derivatives (n, V) take the logits' place."""
    if fused is not None and logits.is_cuda:
        return fused.cross_entropy_(logits, targets, share)
    asked = (targets != PAD)[:, None]
    logs = torch.log_softmax(logits.float(), dim=1)
    own = logs.gather(1, targets[:, None])
    given = logs.exp_().scatter_add_(1, targets[:, None], torch.full_like(own, -1))
    logits.copy_(given * asked * share)
    return -(own * asked).sum() * share
