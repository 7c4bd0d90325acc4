"""CAML, LAAT and PLM-ICD: an encoder, then attention with one learned query per code.

CAML (convolutional attention for multi-label classification): H = tanh(conv(x)), attention softmax(H u_l)
(Mullenbach et al. 2018). LAAT (label attention): H = BiLSTM(x), attention softmax(tanh(H W) u_l) (Vu et al. 2020).
PLM-ICD (pretrained language model): H = the states of all windows of a note, concatenated; attention as in LAAT
(Huang et al. 2022).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nosology.attention.label_attention import LabelAttention
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import SubwordTokenizer, WordTokenizer
from nosology.encoders.transformer import WindowedTransformer
from nosology.encoders.word_encoders import ConvEncoder, RecurrentEncoder, word_embedding
from nosology.models.laat.laat_settings import CamlSettings, LaatSettings, PlmIcdSettings
from nosology.models.label_net import LabelAttentionNet
from nosology.models.neural import NeuralModel
from nosology.training.data_loader import Batch

_INPUT_SCALE = 10.0  # of the initial input weights of an LSTM: word vectors of length 1 would hardly change its states
_TRANSFORMER_SPREAD = 0.05  # of queries: the states of a transformer are about ten times those of other encoders


class WordEncoderNet(LabelAttentionNet):
    """CAML or LAAT, by the class of the settings."""

    def __init__(
        self,
        settings: CamlSettings | LaatSettings,
        words: int,
        size: int,
        labels: int,
        vectors: Tensor | None = None,
        rates: Tensor | None = None,
    ):
        """words: V. size: E. vectors: (V, E) initial word vectors. rates: (L,) share of notes with each label."""
        super().__init__()
        self.embedding = word_embedding(words, size, vectors)
        self.dropout = nn.Dropout(settings.dropout)
        tied = settings.tie_initialization
        self.encoder: ConvEncoder | RecurrentEncoder
        if isinstance(settings, CamlSettings):
            self.encoder, projection = ConvEncoder(size, settings.filters, settings.kernel), 0
        else:
            self.encoder, projection = RecurrentEncoder(size, settings.hidden, "lstm"), settings.projection
            with torch.no_grad():
                for name, weight in self.encoder.named_parameters():
                    if tied and "weight_ih" in name:
                        weight.mul_(_INPUT_SCALE)
        self.learned = LabelAttention(self.encoder.width, labels, projection, rates, tie_initialization=tied)

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D)."""
        states = self.encoder(self.dropout(self.embedding(batch.tokens)), batch.lengths)
        return states.tanh() if isinstance(self.encoder, ConvEncoder) else states


class Caml(NeuralModel[WordEncoderNet, CamlSettings | LaatSettings, WordTokenizer]):
    """A model of kind `caml`."""

    kind, tokenizer_class, settings_class = "caml", WordTokenizer, CamlSettings

    def extra_config(self) -> dict[str, Any]:
        """The size of the word vectors."""
        return {"size": self.net.embedding.embedding_dim}

    @classmethod
    def build_net(
        cls, settings: CamlSettings | LaatSettings, labels: LabelSpace, tokenizer: WordTokenizer, config: dict[str, Any]
    ) -> WordEncoderNet:
        """A net without learned weights."""
        return WordEncoderNet(settings, len(tokenizer.vocabulary), config["size"], len(labels))


class Laat(Caml):
    """A model of kind `laat`."""

    kind, settings_class = "laat", LaatSettings


class PlmIcdNet(LabelAttentionNet):
    """PLM-ICD: H = the states of all windows of a note, attention with a projection."""

    def __init__(
        self, settings: PlmIcdSettings, encoder: WindowedTransformer, labels: int, rates: Tensor | None = None
    ):
        """rates: (L,) share of notes with each label."""
        super().__init__()
        self.encoder = encoder
        self.encoder.requires_grad_(not settings.frozen)
        self.dropout = nn.Dropout(settings.dropout)
        projection, tied = settings.projection or encoder.width, settings.tie_initialization
        self.learned = LabelAttention(
            encoder.width, labels, projection, rates, tie_initialization=tied, spread=_TRANSFORMER_SPREAD
        )

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D)."""
        return self.dropout(self.encoder(batch.tokens, batch.lengths))


class PlmIcd(NeuralModel[PlmIcdNet, PlmIcdSettings, SubwordTokenizer]):
    """A model of kind `plm_icd`."""

    kind, tokenizer_class, settings_class = "plm_icd", SubwordTokenizer, PlmIcdSettings

    def extra_config(self) -> dict[str, Any]:
        """The architecture of the transformer."""
        return {"transformer": self.net.encoder.to_json()}

    @classmethod
    def build_net(
        cls, settings: PlmIcdSettings, labels: LabelSpace, tokenizer: SubwordTokenizer, config: dict[str, Any]
    ) -> PlmIcdNet:
        """A net without learned weights."""
        return PlmIcdNet(settings, WindowedTransformer.from_json(config["transformer"]), len(labels))
