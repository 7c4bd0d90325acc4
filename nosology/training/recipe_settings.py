"""Settings that the recipes of all models share: labels, holdout, trainer, word vectors, learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import Field

from nosology.core.parallel import check_workers, cores
from nosology.core.settings import Settings
from nosology.evaluation.decision import DecisionSettings

FULL_SIZE_NOTES = 5000  # train notes from which word nets of full size are better
_WORD2VEC_NOTES = 20_000  # notes, counted over all epochs, that word2vec needs to separate words
_DEFAULT_STEPS = 3000  # without a number of epochs: about this many steps,
_MIN_EPOCHS, _MAX_EPOCHS = 10, 60  # within these bounds
_WARMUP_DIVISOR = 10  # the warm-up is at most a tenth of all steps


class LabelSettings(Settings):
    """Which codes of the training notes a model learns."""

    renamed: ClassVar[dict[str, str]] = {"most": "top_k"}

    # empty: all systems of the notes
    systems: list[Literal["icd9cm", "icd9proc", "icd10cm", "icd10pcs"]] = Field(default_factory=list)
    min_notes: int = Field(1, ge=1)  # codes with fewer training notes are not learned
    max_notes: int | None = Field(None, ge=1)  # codes with more training notes are not learned; not set: no bound
    top_k: int | None = Field(None, ge=1)  # of the remaining codes the k most frequent; not set: all

    @property
    def is_subset(self) -> bool:
        """Whether the recipe selects a subset of codes: other codes then do not count as misses in evaluation."""
        return self.max_notes is not None or self.top_k is not None


class HoldoutSettings(Settings):
    """The notes that replace dev notes if a corpus has none."""

    share: float = Field(0.15, gt=0, lt=1)  # of the training patients


class Recipe(Settings):
    """Settings of every recipe; each kind of model adds its own tables."""

    kind: str
    seed: int = Field(0, ge=0)
    labels: LabelSettings = LabelSettings()
    holdout: HoldoutSettings = HoldoutSettings()
    decision: DecisionSettings = DecisionSettings()


class WordVectorSettings(Settings):
    """Word vectors (word2vec), trained on the train notes before the model."""

    size: int = Field(100, ge=1, le=10_000)
    min_notes: int = Field(3, ge=1)  # a word in fewer train notes is unknown
    epochs: int | None = Field(None, ge=0, le=10_000)  # of word2vec; 0: random vectors; not set: by the number of notes
    max_words: int = Field(4000, ge=1)  # longer notes are truncated
    # benchmark, as Edin et al. (2023) and DualLAAT: words of a-z and 0-9 without separate numbers
    cleaning: Literal["none", "benchmark"] = "none"
    corpora: list[str] = Field(default_factory=list)  # folders whose train notes are read too, for words and vectors
    # processes of word2vec. More than one: not reproducible. 0: one up to 20,000 notes over all epochs, else all cores
    workers: int = Field(0, ge=0)

    def resolved(self, notes: int) -> WordVectorSettings:
        """The settings with a number of epochs and of workers for this many train notes.

        word2vec starts with nearly equal vectors, and five epochs of a few hundred notes do not separate them. More
        than eight workers per core raise ConfigError.
        """
        check_workers("vectors.workers", self.workers)
        default = min(max(_WORD2VEC_NOTES // max(1, notes), 5), 40)
        epochs = default if self.epochs is None else self.epochs
        workers = self.workers or (1 if notes * epochs <= _WORD2VEC_NOTES else cores())
        return self.model_copy(update={"epochs": epochs, "workers": workers})


class TrainerSettings(Settings):
    """The table [training] of a recipe."""

    renamed: ClassVar[dict[str, str]] = {"beta": "beta2", "choose_by": "monitor", "leave_after": "stop_epoch"}

    epochs: int = Field(0, ge=0, le=100_000)  # 0: by the number of notes, see `resolve_schedule`
    stop_epoch: int = Field(0, ge=0)  # ends after this many epochs, on the schedule of all epochs; 0: after the last
    stop_step: int = Field(0, ge=0)  # the same for steps; the last epoch is then validated early
    batch: int = Field(32, ge=1, le=1_000_000)  # notes per step
    micro_tokens: int = Field(0, ge=0)  # tokens per micro-batch, padding included; 0: by the device
    micro_batches: int = Field(0, ge=0)  # per step at least; 0: one per process, at least two on CPUs
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup: int = Field(2000, ge=0)  # steps; at most a tenth of all
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # decay after the warm-up
    beta2: float = Field(0.999, ge=0, lt=1)  # second beta of AdamW
    clip: float = Field(0.0, ge=0)  # largest norm of the gradient; 0: no clipping
    precision: Literal["auto", "bf16", "fp32", "fp64"] = "auto"  # auto: bf16 on a GPU that supports it, else fp32
    patience: int = Field(5, ge=1)  # epochs without a better score on the dev notes before early stopping
    monitor: Literal["map", "micro_f1"] = "map"  # the metric on the dev notes that selects the best weights
    validation_notes: int = Field(2000, ge=0)  # dev notes, at random, that are scored after each epoch; 0: all
    checkpoint_minutes: float = Field(5.0, ge=0)  # between checkpoints; there is also one after each epoch
    log_steps: int = Field(20, ge=1)  # steps between logs; curves.csv has every step


class NeuralRecipe(Recipe):
    """Settings of every recipe that is trained with `training.trainer`."""

    training: TrainerSettings = TrainerSettings()

    def stop_after(self, epoch: int) -> Self:
        """This recipe with a training that ends after an epoch, on the learning-rate schedule of all epochs."""
        return self.model_copy(update={"training": self.training.model_copy(update={"stop_epoch": epoch})})


class WordRecipe(NeuralRecipe):
    """Settings of every neural recipe with word vectors."""

    vectors: WordVectorSettings = WordVectorSettings()


@dataclass(frozen=True)
class LearningRateSchedule:
    """The number of steps of a training run and the learning-rate factor of each."""

    kind: str  # linear, cosine or constant
    epochs: int
    steps: int  # in all
    warmup: int  # steps

    def factor(self, step: int) -> float:
        """The learning-rate factor of a step, counted from 0: from 1 / warmup up to 1, then down towards 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        if self.kind == "linear":
            return 1 - done
        return (1 + math.cos(math.pi * done)) / 2 if self.kind == "cosine" else 1.0


def resolve_schedule(settings: TrainerSettings, steps_per_epoch: int) -> LearningRateSchedule:
    """The schedule of a training run.

    Epochs 0 means about 3,000 steps, but at least 10 and at most 60 epochs: a large corpus is read ten times, a corpus
    of a few hundred notes sixty times. Early stopping may end both before.
    """
    epochs = settings.epochs or min(max(math.ceil(_DEFAULT_STEPS / steps_per_epoch), _MIN_EPOCHS), _MAX_EPOCHS)
    steps = epochs * steps_per_epoch
    return LearningRateSchedule(settings.schedule, epochs, steps, min(settings.warmup, steps // _WARMUP_DIVISOR))
