"""PLM-ICD: a pretrained language model over windows of a note, then attention with one learned query per code.

H = states of all windows, concatenated; attention softmax(tanh(H W) u_l) (Huang et al. 2022).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nosology.attention.label_attention import LabelAttention
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import SubwordTokenizer
from nosology.encoders.transformer import WindowedTransformer, load_pretrained
from nosology.models.neural import LabelNet, NeuralModel
from nosology.models.plm_icd.plm_icd_settings import PlmIcdSettings
from nosology.training.data_loader import Batch


class PlmIcdNet(LabelNet):
    """PLM-ICD: H = the states of all windows of a note one after the other, attention with a projection."""

    def __init__(
        self, settings: PlmIcdSettings, encoder: WindowedTransformer, labels: int, rates: Tensor | None = None
    ):
        """rates: (L,) share of notes with each label."""
        super().__init__()
        self.encoder = encoder
        self.encoder.requires_grad_(not settings.frozen)
        self.dropout = nn.Dropout(settings.dropout)
        width = encoder.width
        # A transformer's states are normed to numbers about 1, ten times as large as those of the other encoders.
        self.learned = LabelAttention(
            width,
            labels,
            settings.projection or width,
            rates,
            tie_initialization=settings.tie_initialization,
            spread=0.05,
        )

    def states(self, batch: Batch) -> Tensor:
        """The states (B, T, D)."""
        return self.dropout(self.encoder(batch.tokens, batch.lengths))


class PlmIcd(NeuralModel):
    """A coder of kind `plm_icd`."""

    kind, tokenizer_class, settings_class = "plm_icd", SubwordTokenizer, PlmIcdSettings

    def extra_config(self) -> dict[str, Any]:
        """How the transformer is built."""
        return {"transformer": self.net.encoder.to_json()}

    @classmethod
    def build_net(
        cls, settings: PlmIcdSettings, labels: LabelSpace, tokenizer: SubwordTokenizer, config: dict[str, Any]
    ) -> PlmIcdNet:
        """A net without learned weights."""
        return PlmIcdNet(settings, WindowedTransformer.from_json(config["transformer"]), len(labels))


def pretrained(settings: PlmIcdSettings) -> tuple[SubwordTokenizer, WindowedTransformer]:
    """The tokenizer and the encoder that a coder of kind `plm_icd` begins with."""
    tokenizer, encoder = load_pretrained(settings.encoder, settings.window, settings.max_tokens, settings.lower_case)
    if settings.frozen:
        encoder.cache_states()  # each epoch asks for the same states
    return tokenizer, encoder
