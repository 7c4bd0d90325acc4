"""CAML, LAAT and PLM-ICD: three encoders below one attention with a learned query a code.

            encoder                                     attention over its states
CAML        convolution, tanh                           softmax(H u_l)                 Mullenbach et al. 2018
LAAT        bidirectional LSTM                          softmax(tanh(H W) u_l)         Vu et al. 2020
PLM-ICD     pretrained transformer, in windows          softmax(tanh(H W) u_l)         Huang et al. 2022
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.attention.label_attention import LabelAttention
from nosology.core.label_space import LabelSpace
from nosology.core.settings import Settings
from nosology.encoders import transformer
from nosology.encoders.tokenizers import SubwordTokenizer, WordTokenizer
from nosology.encoders.transformer import WindowedTransformer
from nosology.encoders.word_encoders import ConvEncoder, RecurrentEncoder, word_embedding
from nosology.models.caml_laat.caml_laat_settings import CamlShape, LaatShape
from nosology.models.neural import NeuralModel
from nosology.models.plm_icd.plm_icd_settings import PlmIcdShape
from nosology.training.data_loader import Batch, token_mask

_LOUD = 10.0  # times torch's first weights of an LSTM's inputs: words of length 1 would else hardly move its states


class LabelNet(nn.Module):
    """A net of states, one a token, and a learned attention over them."""

    learned: LabelAttention

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D) of a batch's tokens."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """The mean binary cross entropy over the batch's notes x labels."""
        return binary_cross_entropy_with_logits(self.logits(batch).float(), batch.targets)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) for the batch's labels, or for all where it names none."""
        return self.learned.logits(self.states(batch), _mask(batch), batch.labels)

    def attention(self, batch: Batch) -> Tensor:
        """The weights (B, L, T) of each label over the tokens."""
        return self.learned.attention(self.states(batch), _mask(batch), batch.labels)


class WordNet(LabelNet):
    """A net that reads words; a kind brings its encoder and how wide it projects the states for attention."""

    def __init__(
        self,
        shape: CamlShape | LaatShape,
        words: int,
        size: int,
        labels: int,
        vectors: Tensor | None = None,
        rates: Tensor | None = None,
    ):
        """words: V. size: E. vectors: (V, E) word vectors to begin with. rates: (L,) share of notes with each label."""
        super().__init__()
        self.embedding = word_embedding(words, size, vectors)
        self.dropout = nn.Dropout(shape.dropout)
        self.encoder, projection = self.parts(shape, size)
        self.learned = LabelAttention(
            self.encoder.width, labels, projection, rates, tie_initialization=shape.tie_initialization
        )

    @staticmethod
    def parts(shape: Any, size: int) -> tuple[ConvEncoder | RecurrentEncoder, int]:
        """The encoder of vectors of a size, and the width of the projection; 0: none."""
        raise NotImplementedError

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D)."""
        return self.encoder(self.dropout(self.embedding(batch.tokens)), batch.lengths)


class CamlNet(WordNet):
    """CAML: H = tanh(conv(x)), attention without a projection."""

    @staticmethod
    def parts(shape: CamlShape, size: int) -> tuple[ConvEncoder, int]:
        """A convolution, and no projection."""
        return ConvEncoder(size, shape.filters, shape.kernel), 0

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, filters)."""
        return super().states(batch).tanh()


class LaatNet(WordNet):
    """LAAT: H = BiLSTM(x), attention with a projection."""

    @staticmethod
    def parts(shape: LaatShape, size: int) -> tuple[RecurrentEncoder, int]:
        """An LSTM, and the projection's width."""
        encoder = RecurrentEncoder(size, shape.hidden, "lstm")
        if shape.tie_initialization:
            with torch.no_grad():
                for weight in (w for name, w in encoder.named_parameters() if "weight_ih" in name):
                    weight.mul_(_LOUD)
        return encoder, shape.projection


class PlmIcdNet(LabelNet):
    """PLM-ICD: H = the states of all windows of a note one after the other, attention with a projection."""

    def __init__(self, shape: PlmIcdShape, encoder: WindowedTransformer, labels: int, rates: Tensor | None = None):
        """rates: (L,) share of notes with each label."""
        super().__init__()
        self.encoder = encoder
        self.encoder.requires_grad_(not shape.frozen)
        self.dropout = nn.Dropout(shape.dropout)
        width = encoder.width
        # A transformer's states are normed to numbers about 1, ten times as large as those of the other encoders.
        self.learned = LabelAttention(
            width, labels, shape.projection or width, rates, tie_initialization=shape.tie_initialization, spread=0.05
        )

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D)."""
        return self.dropout(self.encoder(batch.tokens, batch.lengths))


class WordModel(NeuralModel):
    """A coder that reads words; its net is made of shape, vocabulary, vector size and number of labels."""

    reader_type = WordTokenizer
    net_type: ClassVar[type[CamlNet] | type[LaatNet]]

    def more(self) -> dict[str, Any]:
        """The size of the word vectors."""
        return {"size": self.net.embedding.embedding_dim}

    @classmethod
    def empty_net(cls, shape: Settings, labels: LabelSpace, reader: WordTokenizer, more: dict[str, Any]) -> LabelNet:
        """A net without learned weights."""
        return cls.net_type(shape, len(reader.vocabulary), more["size"], len(labels))


class Caml(WordModel):
    """A coder of kind `caml`."""

    kind, shape_type, net_type = "caml", CamlShape, CamlNet


class Laat(WordModel):
    """A coder of kind `laat`."""

    kind, shape_type, net_type = "laat", LaatShape, LaatNet


class PlmIcd(NeuralModel):
    """A coder of kind `plm_icd`."""

    kind, reader_type, shape_type = "plm_icd", SubwordTokenizer, PlmIcdShape

    def more(self) -> dict[str, Any]:
        """How the transformer is built."""
        return {"transformer": self.net.encoder.to_json()}

    @classmethod
    def empty_net(
        cls, shape: PlmIcdShape, labels: LabelSpace, reader: SubwordTokenizer, more: dict[str, Any]
    ) -> PlmIcdNet:
        """A net without learned weights."""
        return PlmIcdNet(shape, WindowedTransformer.from_json(more["transformer"]), len(labels))


def pretrained(shape: PlmIcdShape) -> tuple[SubwordTokenizer, WindowedTransformer]:
    """The reader and the encoder that a coder of kind `plm_icd` begins with."""
    reader, encoder = transformer.pretrained(shape.encoder, shape.window, shape.max_tokens, shape.lower_case)
    if shape.frozen:
        encoder.cache_states()  # each epoch asks for the same states
    return reader, encoder


def _mask(batch: Batch) -> Tensor:
    return token_mask(batch.lengths, batch.tokens.shape[1], batch.tokens.device)
