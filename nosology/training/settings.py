"""Settings that recipes of all models share: labels, hold-out, the training loop, word vectors."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nosology.core.settings import Settings
from nosology.evaluation.decision import DecisionSettings

_VECTOR_NOTES = 20_000  # notes that word2vec reads in all before its vectors tell words apart


class LabelSettings(Settings):
    """Which codes of the training notes a model learns."""

    renamed: ClassVar[dict[str, str]] = {"most": "top_k"}

    # empty: all that the notes have
    systems: list[Literal["icd9cm", "icd9proc", "icd10cm", "icd10pcs"]] = Field(default_factory=list)
    min_notes: int = Field(1, ge=1)  # codes of fewer training notes are not learned,
    max_notes: int | None = Field(None, ge=1)  # nor those of more; not set: no bound
    top_k: int | None = Field(None, ge=1)  # of the codes that are left so many, those of most notes; not set: all

    @property
    def narrow(self) -> bool:
        """Whether the codes that are not learned are not asked for either: they are neither misses nor a matter."""
        return self.max_notes is not None or self.top_k is not None


class HoldoutSettings(Settings):
    """What stands in for dev notes where a corpus has none."""

    share: float = Field(0.15, gt=0, lt=1)  # of the training patients


class Recipe(Settings):
    """What every recipe may say; each kind of model adds its own tables."""

    kind: str
    seed: int = Field(0, ge=0)
    labels: LabelSettings = LabelSettings()
    holdout: HoldoutSettings = HoldoutSettings()
    decision: DecisionSettings = DecisionSettings()


class VectorSettings(Settings):
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


class LoopSettings(Settings):
    """The training loop."""

    renamed: ClassVar[dict[str, str]] = {"choose_by": "monitor", "leave_after": "stop_epoch"}

    epochs: int = Field(0, ge=0)  # 0: as many as the data needs, see `resolve`
    stop_epoch: int = Field(0, ge=0)  # ends after so many epochs, at the pace of all of them; 0: after the last
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
    monitor: Literal["map", "micro_f1"] = "map"  # of the checkpoints the best on dev by this is kept
    validation_notes: int = Field(2000, ge=1)  # dev notes looked at after each epoch
    checkpoint_minutes: float = Field(5.0, ge=0)  # time between checkpoints; one is written after each epoch too
    log_steps: int = Field(20, ge=1)  # steps between looks at the loss; the curves have every step all the same
