"""Dropout rates of an AWD-LSTM: settings of recipes and of the net in `word_encoders.py`; no torch is imported here."""

from __future__ import annotations

from pydantic import Field

from nosology.core.settings import Settings


class DropoutRates(Settings):
    """Dropout rates of an AWD-LSTM. Except for weights, one mask is used for all words of a text."""

    embedding: float = Field(0.05, ge=0, lt=1)  # whole words of the vocabulary
    input: float = Field(0.4, ge=0, lt=1)  # of the first layer
    weight: float = Field(0.5, ge=0, lt=1)  # recurrent weights
    hidden: float = Field(0.3, ge=0, lt=1)  # between layers
    output: float = Field(0.1, ge=0, lt=1)  # before the decoder


NO_DROPOUT = DropoutRates(embedding=0, input=0, weight=0, hidden=0, output=0)
