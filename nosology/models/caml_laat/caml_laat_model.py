"""CAML and LAAT: a word encoder, then attention with one learned query per code.

CAML (convolutional attention for multi-label classification): H = tanh(conv(x)), attention softmax(H u_l)
(Mullenbach et al. 2018). LAAT (label attention): H = BiLSTM(x), attention softmax(tanh(H W) u_l) (Vu et al. 2020).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nosology.attention.label_attention import LabelAttention
from nosology.core.label_space import LabelSpace
from nosology.core.settings import Settings
from nosology.encoders.tokenizers import WordTokenizer
from nosology.encoders.word_encoders import ConvEncoder, RecurrentEncoder, word_embedding
from nosology.models.caml_laat.caml_laat_settings import CamlSettings, LaatSettings
from nosology.models.neural import LabelNet, NeuralModel
from nosology.training.data_loader import Batch

_LOUD = 10.0  # times torch's first weights of an LSTM's inputs: words of length 1 would else hardly move its states


class WordEncoderNet(LabelNet):
    """A net that reads words; a kind brings its encoder and how wide it projects the states for attention."""

    def __init__(
        self,
        settings: CamlSettings | LaatSettings,
        words: int,
        size: int,
        labels: int,
        vectors: Tensor | None = None,
        rates: Tensor | None = None,
    ):
        """words: V. size: E. vectors: (V, E) word vectors to begin with. rates: (L,) share of notes with each label."""
        super().__init__()
        self.embedding = word_embedding(words, size, vectors)
        self.dropout = nn.Dropout(settings.dropout)
        self.encoder, projection = self.parts(settings, size)
        self.learned = LabelAttention(
            self.encoder.width, labels, projection, rates, tie_initialization=settings.tie_initialization
        )

    @staticmethod
    def parts(settings: Any, size: int) -> tuple[ConvEncoder | RecurrentEncoder, int]:
        """The encoder of vectors of a size, and the width of the projection; 0: none."""
        raise NotImplementedError

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D)."""
        return self.encoder(self.dropout(self.embedding(batch.tokens)), batch.lengths)


class CamlNet(WordEncoderNet):
    """CAML: H = tanh(conv(x)), attention without a projection."""

    @staticmethod
    def parts(settings: CamlSettings, size: int) -> tuple[ConvEncoder, int]:
        """A convolution, and no projection."""
        return ConvEncoder(size, settings.filters, settings.kernel), 0

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, filters)."""
        return super().states(batch).tanh()


class LaatNet(WordEncoderNet):
    """LAAT: H = BiLSTM(x), attention with a projection."""

    @staticmethod
    def parts(settings: LaatSettings, size: int) -> tuple[RecurrentEncoder, int]:
        """An LSTM, and the projection's width."""
        encoder = RecurrentEncoder(size, settings.hidden, "lstm")
        if settings.tie_initialization:
            with torch.no_grad():
                for weight in (w for name, w in encoder.named_parameters() if "weight_ih" in name):
                    weight.mul_(_LOUD)
        return encoder, settings.projection


class WordModel(NeuralModel):
    """A coder that reads words; its net is made of settings, vocabulary, vector size and number of labels."""

    tokenizer_class = WordTokenizer
    net_type: ClassVar[type[CamlNet] | type[LaatNet]]

    def extra_config(self) -> dict[str, Any]:
        """The size of the word vectors."""
        return {"size": self.net.embedding.embedding_dim}

    @classmethod
    def build_net(
        cls, settings: Settings, labels: LabelSpace, tokenizer: WordTokenizer, config: dict[str, Any]
    ) -> LabelNet:
        """A net without learned weights."""
        return cls.net_type(settings, len(tokenizer.vocabulary), config["size"], len(labels))


class Caml(WordModel):
    """A coder of kind `caml`."""

    kind, settings_class, net_type = "caml", CamlSettings, CamlNet


class Laat(WordModel):
    """A coder of kind `laat`."""

    kind, settings_class, net_type = "laat", LaatSettings, LaatNet
