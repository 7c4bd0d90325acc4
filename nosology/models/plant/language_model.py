"""A language model: an AWD-LSTM that says the next word, with the words' own vectors as its last layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nosology.encoders.word_encoders import AwdLstm, LstmState, detach_state, locked_dropout
from nosology.models.plant.next_word import next_word_loss


class LanguageModel(nn.Module):
    """What it read last is kept in buffers, so that a checkpoint holds it and a text goes on over its windows."""

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
