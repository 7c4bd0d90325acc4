"""What the recipes of PLANT may say: each stage of its training has a table."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from nosology.core.settings import Settings
from nosology.training.recipe_settings import Recipe, TrainerSettings


class DropoutSettings(Settings):
    """How much is dropped where (`encoders/word_encoders.py`)."""

    embedding: float = Field(0.05, ge=0, lt=1)
    input: float = Field(0.4, ge=0, lt=1)
    weight: float = Field(0.5, ge=0, lt=1)
    hidden: float = Field(0.3, ge=0, lt=1)
    output: float = Field(0.1, ge=0, lt=1)


class VocabularySettings(Settings):
    """Which words are known."""

    renamed: ClassVar[dict[str, str]] = {"most": "max_words"}

    min_notes: int = Field(3, ge=1)  # a word of fewer train notes is read as unknown
    max_words: int = Field(60_000, ge=1)  # the words of most notes


class LanguageSettings(Settings):
    """The language model: what it learns of the train notes' text before it is asked for codes."""

    weights: str = ""  # a file of published weights to begin with, and
    words: str = Field("", validate_default=True)  # its vocabulary, one word a line; empty: from the beginning
    backward_weights: str = ""  # of a model that reads from the end; empty: that direction begins with the same file
    drop: DropoutSettings = DropoutSettings(embedding=0.02, input=0.25, weight=0.2, hidden=0.15)
    window: int = Field(80, ge=2)  # words that are learned from at once
    training: TrainerSettings = TrainerSettings(
        epochs=20,
        batch=384,
        learning_rate=1e-3,
        weight_decay=0.01,
        beta=0.99,
        warmup=0,
        schedule="cosine",
        micro_batches=1,
    )

    @field_validator("words")
    @classmethod
    def _with_weights(cls, words: str, info: ValidationInfo) -> str:
        if bool(words) != bool(info.data.get("weights")):
            raise ValueError("must be the vocabulary of language.weights: both are files, or neither is named")
        return words

    @field_validator("backward_weights")
    @classmethod
    def _with_forward(cls, weights: str, info: ValidationInfo) -> str:
        if weights and not info.data.get("weights"):
            raise ValueError("must stand beside language.weights, whose words it shares")
        return weights


class RelevanceSettings(Settings):
    """Which words tell a code."""

    kind: Literal["mutual_information", "normalised"] = "normalised"  # normalised: divided by the joint entropy
    top: int = Field(1000, ge=1)  # words a code


class RankerSettings(Settings):
    """The ranker: it learns to put the words first that tell a code."""

    scorer: Literal["mlp", "dot"] = "mlp"
    hidden: int = Field(64, ge=1)
    k: int = Field(100, ge=1)  # of nDCG@k
    list: int = Field(128, ge=2)  # words of a code's list: telling ones, and others drawn by chance
    levels: int = Field(4, ge=1, le=30)  # grades of relevance: parts of a code's words, the most telling first
    epochs: int = Field(20, ge=0)  # over all codes
    batch: int = Field(64, ge=1)  # codes
    steps: int = Field(600, ge=0)  # in all at least: where codes are few, an epoch asks for each more than once
    learning_rate: float = Field(1e-2, gt=0)
    vectors: float = Field(10.0, gt=0)  # times it: of a label's and a word's own vector, which few lists have


class PlantSettings(Settings):
    """PLANT: an AWD-LSTM below learned, static and planted attention."""

    renamed: ClassVar[dict[str, str]] = {"alike": "tie_initialization"}

    size: int = Field(400, ge=1)  # of words and of states
    hidden: int = Field(1152, ge=1)
    layers: int = Field(3, ge=1)
    drop: DropoutSettings = DropoutSettings()
    static: bool = True  # attention by mutual information
    planted: bool = True  # attention by the ranker
    inattention: int = Field(56, ge=0)  # tokens a label that the ranker's attention keeps; 0: all
    tie_initialization: bool = True  # a label's values begin as its queries do; False: apart, as in the paper
    literal_zero: bool = False  # as the paper writes it, the others keep the score 0, and so some weight
    window: int = Field(72, ge=1)  # tokens that a note is read by where it is only to be coded
    direction: Literal["forward", "backward", "both"] = "forward"
    chunk: int = Field(4, ge=1)  # notes of 2,048 tokens whose attention is in memory at once; memory and speed alone
    cache_gb: float = Field(4.0, ge=0)  # of states that are kept while the encoder does not learn; the same
    max_words: int = Field(20_000, ge=1)  # of a note


class RateSettings(Settings):
    """What share of the learning rate each part has, and from which epoch on it learns (counted from 0)."""

    renamed: ClassVar[dict[str, str]] = {"fall": "layer_decay"}

    decoder: float = Field(1.0, gt=0)
    ranker: float = Field(0.5, gt=0)  # paper 003, section 5
    encoder: float = Field(0.5, ge=0)  # of the last layer, 0: the encoder never learns; each layer below has
    layer_decay: float = Field(2.6, ge=1)  # each layer below has a rate so many times smaller (Howard and Ruder 2018)
    gradual: bool = True  # a part more an epoch, the last first; False: all from the beginning


class PlantRecipe(Recipe):
    """What a recipe of kind `plant` may say."""

    kind: Literal["plant"] = "plant"
    stages: str = ""  # a folder that keeps the stages before the classifier; empty: beside the bundle until it is made
    words: VocabularySettings = VocabularySettings()
    language: LanguageSettings = LanguageSettings()
    relevance: RelevanceSettings = RelevanceSettings()
    ranker: RankerSettings = RankerSettings()
    model: PlantSettings = PlantSettings()
    rates: RateSettings = RateSettings()
    training: TrainerSettings = TrainerSettings(epochs=15, batch=16, weight_decay=0.01, beta=0.99, schedule="cosine")
