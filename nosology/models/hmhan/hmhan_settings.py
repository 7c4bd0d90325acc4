"""What the recipes of HMHAN and its two baselines may say."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from nosology.core.settings import Settings
from nosology.training.recipe_settings import Recipe, TrainerSettings

_SMALL = 400_000  # pieces of all train reports up to which an encoder is fine-tuned where nobody says otherwise


class ReportSettings(Settings):
    """How a report is read."""

    negation: bool = True  # NOT_ before denied words
    cleaning: Literal["paper", "plain"] = "paper"  # paper: small letters, short forms written out, no stop words
    max_tokens: int = Field(512, ge=1)  # of a report


class ColumnSettings(Settings):
    """Columns of a table beside the text; those that the corpus does not have are passed over."""

    numbers: list[str] = Field(["age"])
    choices: list[str] = Field(["gender", "admission_type", "modality"])
    width: int = Field(64, ge=1)  # of what they are projected to


class WordSettings(Settings):
    """The lexical branch: words and word pairs, with what the report says of them, straight to the codes."""

    features: int = Field(0, ge=0)  # at most; 0: no such branch
    min_notes: int = Field(2, ge=1)  # of train, that have a feature
    pairs: bool = True  # neighbouring words too
    c: list[Annotated[float, Field(gt=0)]] = Field([1.0, 3.0, 10.0], min_length=1)  # inverse regularisation; of several
    # the best on held-out reports is taken
    folds: int = Field(5, ge=2)  # the net learns beside scores of machines that have not seen the report


class HmhanShape(Settings):
    """An encoder, attention over its states, and one head for all codes."""

    renamed: ClassVar[dict[str, str]] = {"members": "ensemble_size"}

    encoder: str = "emilyalsentzer/Bio_ClinicalBERT"  # a Hugging Face name, a local folder, or minilm
    frozen: bool | None = None  # whether the encoder stays as it came; None: only where there is much to read
    attention: Literal["hierarchical", "single", "none"] = "hierarchical"
    level: Literal["chapter", "block"] = "chapter"  # of the categories
    heads: int = Field(4, ge=1)  # at each level
    described: bool = True  # queries begin as the encoder reads the descriptions
    hidden: list[Annotated[int, Field(ge=1)]] = Field([512, 256, 128], min_length=1)  # of the head
    dropout: float = Field(0.3, ge=0, lt=1)  # of the head
    state_dropout: float = Field(0.1, ge=0, lt=1)  # of the encoder's states
    ensemble_size: int = Field(1, ge=1)  # nets whose logits are averaged
    learned_layers: int = Field(0, ge=0)  # of the encoder, the last ones, where it is not frozen; 0: all of it
    encoder_rate: float = Field(1.0, gt=0)  # times the learning rate, of the last layer
    fall: float = Field(1.0, ge=1)  # each layer below has so many times less

    def resolved(self, pieces: int) -> HmhanShape:
        """This shape with `frozen` decided, for train reports of so many pieces in all."""
        return self.model_copy(update={"frozen": pieces > _SMALL if self.frozen is None else self.frozen})


class LossSettings(Settings):
    """focal x focal loss + bce x binary cross entropy, the latter weighted by class or not."""

    renamed: ClassVar[dict[str, str]] = {"most": "max_class_weight"}

    focal: float = Field(1.0, ge=0)
    gamma: float = Field(2.0, ge=0)
    alpha: float = Field(0.25, ge=0, le=1)  # of true codes
    bce: float = Field(1.0, ge=0)
    weighted: bool = True  # true codes count (notes without / notes with the code) times
    max_class_weight: float = Field(10.0, ge=1)  # but not more than this

    @model_validator(mode="after")
    def _something(self) -> LossSettings:
        if not self.focal and not self.bce:
            raise ValueError("focal and bce must not both be 0: nothing would be learned")
        return self


class SmoteSettings(Settings):
    """Synthetic neighbours of reports with rare codes (MLSMOTE), between vectors after attention."""

    share: float = Field(0.0, ge=0)  # synthetic rows for each report with a minority code, on average; 0: none
    neighbours: int = Field(5, ge=1)


class StateSettings(Settings):
    """Where the states of a frozen encoder are kept."""

    cache: str = ""  # a folder; empty: beside the bundle, for the time of the training
    device_gb: float = Field(32.0, ge=0)  # of a GPU's memory for those of train, if that and half of what is free is
    # enough for all of them; if not, each batch is read from the folder


class CombinationSettings(Settings):
    """Whether the sets of codes that train reports have together say something about new ones."""

    prior: Literal["auto", "never"] = "auto"  # auto: where it helps on held-out reports


class HmhanRecipe(Recipe):
    """What a recipe of kind `hmhan` may say."""

    kind: Literal["hmhan"] = "hmhan"
    report: ReportSettings = ReportSettings()
    columns: ColumnSettings = ColumnSettings()
    words: WordSettings = WordSettings()
    model: HmhanShape = HmhanShape()
    loss: LossSettings = LossSettings()
    smote: SmoteSettings = SmoteSettings()
    states: StateSettings = StateSettings()
    combinations: CombinationSettings = CombinationSettings()
    training: TrainerSettings = TrainerSettings(
        epochs=30, batch=32, learning_rate=5e-5, weight_decay=1e-4, patience=5, monitor="micro_f1"
    )
