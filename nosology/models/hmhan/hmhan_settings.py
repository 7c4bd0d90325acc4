"""Settings of HMHAN and its two baselines."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from nosology.core.settings import Settings
from nosology.training.recipe_settings import NeuralRecipe, TrainerSettings

_MAX_FINE_TUNED_TOKENS = 400_000  # of all train reports; with more, the encoder is frozen by default


class ReportSettings(Settings):
    """How the text of a report is prepared."""

    negation: bool = True  # NOT_ before negated words
    context: bool = False  # MAYBE_, PAST_, KIN_ before uncertain words, past ones, those of relatives
    cleaning: Literal["paper", "plain"] = "paper"  # paper: lower case, abbreviations expanded, no stop words
    max_tokens: int = Field(512, ge=1)  # per report, with the special tokens of the encoder
    descriptions: bool = False  # the description of each code is one more report for the nets to learn from


class ColumnSettings(Settings):
    """Metadata columns of a note (`extra`); columns that the corpus does not have are ignored."""

    numbers: list[str] = Field(["age"])
    choices: list[str] = Field(["gender", "admission_type", "modality"])
    width: int = Field(64, ge=1)  # of their linear projection
    # late: appended to the code vectors after attention; early: to each token state before it (the paper)
    fusion: Literal["late", "early"] = "late"


class HmhanSettings(Settings):
    """The net: an encoder, attention over its states, and one head for all codes."""

    renamed: ClassVar[dict[str, str]] = {
        "members": "ensemble_size",
        "described": "init_from_descriptions",
        "learned_layers": "trainable_layers",
        "encoder_rate": "encoder_lr_factor",
        "fall": "layer_decay",
    }

    encoder: str = "emilyalsentzer/Bio_ClinicalBERT"  # Hugging Face name, local folder, or minilm
    frozen: bool | None = None  # encoder without fine-tuning; None: if train has many tokens
    attention: Literal["hierarchical", "single", "none"] = "hierarchical"
    level: Literal["chapter", "block"] = "chapter"  # of the categories
    heads: int = Field(4, ge=1)  # at each level
    init_from_descriptions: bool = True  # queries start as mean encoder states of the descriptions
    hidden: list[Annotated[int, Field(ge=1)]] = Field([512, 256, 128], min_length=1)  # of the head
    dropout: float = Field(0.3, ge=0, lt=1)  # of the head
    state_dropout: float = Field(0.1, ge=0, lt=1)  # of the encoder's states
    output_bias: Literal["prior", "default"] = "prior"  # initial: the code's frequency, or torch's default (the paper)
    output_weights: Literal["zero", "default"] = "zero"  # initial: an untrained net adds nothing, or torch's default
    ensemble_size: int = Field(1, ge=1)  # nets; their logits are averaged
    within_versions: bool = True  # codes of another ICD version are unknown in training; False: absent (the paper)
    trainable_layers: int = Field(0, ge=0)  # the last layers of an encoder that is not frozen; 0: all
    encoder_lr_factor: float = Field(1.0, gt=0)  # times the learning rate, for the last encoder layer
    layer_decay: float = Field(1.0, ge=1)  # layer-wise decay: divides the learning rate at each lower layer

    def resolved(self, tokens: int) -> HmhanSettings:
        """These settings with `frozen` decided; tokens: of all train reports."""
        return self.model_copy(
            update={"frozen": tokens > _MAX_FINE_TUNED_TOKENS if self.frozen is None else self.frozen}
        )


class LossSettings(Settings):
    """focal x focal loss + bce x binary cross-entropy, with or without class weights."""

    renamed: ClassVar[dict[str, str]] = {"most": "max_class_weight"}

    focal: float = Field(1.0, ge=0)
    gamma: float = Field(2.0, ge=0)
    alpha: float = Field(0.25, ge=0, le=1)  # weight of positives in the focal loss
    bce: float = Field(1.0, ge=0)
    weighted: bool = True  # class weight of positives: notes without / notes with the code
    max_class_weight: float = Field(10.0, ge=1)  # upper bound of class weights
    corrected: bool = True  # validation and inference remove the bias of this loss, and of synthetic rows, from logits

    @model_validator(mode="after")
    def _check_weights(self) -> LossSettings:
        if not self.focal and not self.bce:
            raise ValueError("focal and bce must not both be 0; got 0 and 0")
        return self


class SmoteSettings(Settings):
    """MLSMOTE: synthetic rows for rare codes, interpolated between code vectors after attention."""

    renamed: ClassVar[dict[str, str]] = {"share": "ratio"}

    ratio: float = Field(0.0, ge=0)  # synthetic rows per report with a rare code, on average; 0: none
    neighbours: int = Field(5, ge=1)


class StateCacheSettings(Settings):
    """The cache of the states of a frozen encoder."""

    cache: str = ""  # a folder; empty: a temporary one next to the bundle
    device_gb: float = Field(32.0, ge=0)  # GPU memory for the states of train. If they need more than this, or than
    # half of the free memory, each batch is read from the folder


class CombinationSettings(Settings):
    """The prior over sets of codes, estimated on train reports."""

    prior: Literal["auto", "never"] = "auto"  # auto: if it improves F1 on held-out reports


class HmhanRecipe(NeuralRecipe):
    """A recipe of kind `hmhan`."""

    kind: Literal["hmhan"] = "hmhan"
    report: ReportSettings = ReportSettings()
    columns: ColumnSettings = ColumnSettings()
    model: HmhanSettings = HmhanSettings()
    loss: LossSettings = LossSettings()
    smote: SmoteSettings = SmoteSettings()
    states: StateCacheSettings = StateCacheSettings()
    combinations: CombinationSettings = CombinationSettings()
    calibration: Literal["auto", "global"] = "auto"  # auto: a pair per code if that predicts held-out reports better
    # With decision.threshold = "global": half of the best F1 if that is nearly as good; False: the one with the best F1
    stable_threshold: bool = True
    training: TrainerSettings = TrainerSettings(
        epochs=30,
        batch=32,
        learning_rate=5e-5,
        weight_decay=1e-4,
        patience=5,
        monitor="micro_f1",
        validation_notes=0,
    )
