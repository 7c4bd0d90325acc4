"""The interface of nets that score labels of notes by attention over their tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.attention.label_attention import LabelAttention
from nosology.training.data_loader import Batch


class LabelNet(nn.Module):
    """A net with one logit and one attention distribution per label of a batch (`batch.labels`; None: all)."""

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L)."""
        raise NotImplementedError

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens."""
        raise NotImplementedError

    def with_states(self, batch: Batch) -> Batch:
        """The batch with the states that `logits` and `attention` both need, computed once; here unchanged."""
        return batch

    def note_attention(self, batch: Batch) -> Tensor:
        """The weights (B, K, T) of the labels (B, K) of each note over its tokens."""
        assert batch.labels is not None
        notes = (slice(row, row + 1) for row in range(len(batch.lengths)))
        return torch.cat([self.attention(slice_batch(batch, note, batch.labels[note][0])) for note in notes])

    def forward(self, batch: Batch) -> Tensor:
        """The loss: the mean binary cross-entropy over notes x labels."""
        assert batch.targets is not None
        return binary_cross_entropy_with_logits(self.logits(batch).float(), batch.targets)


class LabelAttentionNet(LabelNet):
    """A net with one state per token, and one learned attention query per label."""

    learned: LabelAttention

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D) of the tokens of a batch."""
        raise NotImplementedError

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L)."""
        return self.learned.logits(self._states(batch), batch.mask, batch.labels)

    def forward(self, batch: Batch) -> Tensor:
        """The loss: the mean binary cross-entropy over notes x labels."""
        assert batch.targets is not None
        return self.learned.loss(self.states(batch), batch.mask, batch.targets, batch.labels)

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens."""
        return self.learned.attention(self._states(batch), batch.mask, batch.labels)

    def with_states(self, batch: Batch) -> Batch:
        """The batch with the states of its tokens."""
        return replace(batch, states=self.states(batch))

    def note_attention(self, batch: Batch) -> Tensor:
        """The weights (B, K, T) of the labels (B, K) of each note over its tokens."""
        return self.attention(batch)

    def _states(self, batch: Batch) -> Tensor:
        return self.states(batch) if batch.states is None else batch.states


def slice_batch(batch: Batch, notes: slice, labels: Tensor) -> Batch:
    """Some notes of a batch with other labels."""
    states = None if batch.states is None else batch.states[notes]
    return replace(batch, tokens=batch.tokens[notes], lengths=batch.lengths[notes], labels=labels, states=states)
