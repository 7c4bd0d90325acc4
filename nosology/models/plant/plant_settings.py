"""Settings of PLANT: one table per training stage."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from nosology.core.settings import Settings
from nosology.encoders.dropout_rates import DropoutRates
from nosology.training.recipe_settings import NeuralRecipe, TrainerSettings


class VocabularySettings(Settings):
    """The vocabulary."""

    renamed: ClassVar[dict[str, str]] = {"most": "max_words"}

    min_notes: int = Field(3, ge=1)  # a word in fewer train notes is unknown
    max_words: int = Field(60_000, ge=1)  # the most frequent ones, by number of notes
    alphabetic: bool = False  # words without a letter (numbers) are dropped from notes, as in the paper


class LanguageSettings(Settings):
    """The language model, which is trained on the text of the train notes before the classifier."""

    renamed: ClassVar[dict[str, str]] = {"drop": "dropout"}

    weights: str = ""  # a file of published initial weights; empty: random weights
    words: str = Field("", validate_default=True)  # the vocabulary of these weights, one word per line
    backward_weights: str = ""  # of a backward model; empty: the same file as forward
    dropout: DropoutRates = DropoutRates(embedding=0.02, input=0.25, weight=0.2, hidden=0.15)
    window: int = Field(80, ge=2)  # words of a window of truncated backpropagation
    # Regularization of AWD-LSTM (Merity et al. 2018). ar: x mean square of the states; tar: of their differences
    ar: float = Field(0.0, ge=0)
    tar: float = Field(0.0, ge=0)
    training: TrainerSettings = TrainerSettings(
        epochs=20,
        batch=384,
        learning_rate=1e-3,
        weight_decay=0.01,
        beta2=0.99,
        warmup=0,
        schedule="cosine",
        micro_batches=1,
    )

    @field_validator("words")
    @classmethod
    def _check_words(cls, words: str, info: ValidationInfo) -> str:
        if bool(words) != bool(info.data.get("weights")):
            raise ValueError("must be the vocabulary file of language.weights: set both or neither")
        return words

    @field_validator("backward_weights")
    @classmethod
    def _check_backward_weights(cls, weights: str, info: ValidationInfo) -> str:
        if weights and not info.data.get("weights"):
            raise ValueError("must be set together with language.weights; both have the same words")
        return weights


class RelevanceSettings(Settings):
    """The words that are informative about each code."""

    kind: Literal["mutual_information", "normalised"] = "normalised"  # normalised: divided by the joint entropy
    top: int = Field(1000, ge=1)  # words per code
    positive: bool = True  # only words that are more frequent with the code; False: all, as the paper's formula


class RankerSettings(Settings):
    """The ranker, which learns to rank words by how informative they are about a code."""

    renamed: ClassVar[dict[str, str]] = {"list": "list_size"}

    scorer: Literal["mlp", "dot"] = "mlp"
    hidden: int = Field(64, ge=1)
    k: int = Field(100, ge=1)  # of nDCG@k
    list_size: int = Field(128, ge=2)  # words per training list: half relevant, half random
    levels: int = Field(4, ge=0, le=30)  # grades of relevance; 0: relevance itself, with gains 2^relevance (the paper)
    own_vectors: bool = True  # a word has a vector of the ranker, besides that of the language model; False: the paper
    epochs: int = Field(20, ge=0)  # over all codes
    batch: int = Field(64, ge=1)  # codes
    steps: int = Field(600, ge=0)  # at least, in total: with few codes an epoch repeats them
    learning_rate: float = Field(1e-2, gt=0)
    vectors: float = Field(10.0, gt=0)  # learning-rate factor of label and word vectors, which get sparse gradients


class PlantSettings(Settings):
    """PLANT: an AWD-LSTM below learned, static and planted attention."""

    renamed: ClassVar[dict[str, str]] = {"alike": "tie_initialization", "drop": "dropout"}

    size: int = Field(400, ge=1, le=100_000)  # of words and of states
    hidden: int = Field(1152, ge=1, le=100_000)
    layers: int = Field(3, ge=1, le=1000)
    dropout: DropoutRates = DropoutRates()
    static: bool = True  # attention by mutual information
    planted: bool = True  # attention by the ranker
    inattention: int = Field(56, ge=0)  # tokens per label that planted attention keeps; 0: all
    inattention_scope: Literal["note", "window"] = "note"  # k tokens of a note, or of each window (the paper)
    output_bias: Literal["prior", "zero"] = "prior"  # initial: the code's frequency, or 0 as in the paper
    tie_initialization: bool = True  # classifier weights start equal to the queries; False: as in the paper
    literal_zero: bool = False  # other tokens have score 0 before softmax, as the paper writes it
    window: int = Field(72, ge=1)  # tokens per window during inference, and of inattention_scope = "window"
    stateful: bool = True  # the decoder sums over all windows; False: the encoder reads all, the decoder the last ones
    last_windows: int = Field(20, ge=1)  # windows of a note that a decoder without state reads; 20 in the authors' code
    direction: Literal["forward", "backward", "both"] = "forward"
    chunk: int = Field(4, ge=1)  # notes of 2,048 tokens per chunk of the loss; changes only memory and speed
    cache_gb: float = Field(4.0, ge=0)  # limit of cached encoder states while the encoder is frozen; the same
    max_words: int = Field(20_000, ge=1)  # of a note


class RateSettings(Settings):
    """Learning-rate factors of the parts of the net, and gradual unfreezing."""

    renamed: ClassVar[dict[str, str]] = {"fall": "layer_decay"}

    decoder: float = Field(1.0, gt=0)
    ranker: float = Field(0.5, gt=0)  # Saha Roy et al. (2024), section 5
    encoder: float = Field(0.5, ge=0)  # of the last layer; 0: the encoder is frozen
    layer_decay: float = Field(2.6, ge=1)  # each layer below has a rate this many times smaller (Howard and Ruder 2018)
    gradual: bool = True  # unfreeze one more part per epoch, the last first; False: all at once


class PlantRecipe(NeuralRecipe):
    """A recipe of kind `plant`."""

    kind: Literal["plant"] = "plant"
    stages: str = ""  # a folder that caches the stages before the classifier; empty: the run folder
    words: VocabularySettings = VocabularySettings()
    language: LanguageSettings = LanguageSettings()
    relevance: RelevanceSettings = RelevanceSettings()
    ranker: RankerSettings = RankerSettings()
    model: PlantSettings = PlantSettings()
    rates: RateSettings = RateSettings()
    training: TrainerSettings = TrainerSettings(epochs=15, batch=16, weight_decay=0.01, beta2=0.99, schedule="cosine")
