"""What a training is given (`TrainingRun`) and what it returns (`TrainingResult`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lightning_fabric import Fabric
from torch import nn

from nosology.training.batch_plan import StepPlan
from nosology.training.data_loader import MakeBatch, PrepareStep
from nosology.training.parameter_groups import ParameterGroup
from nosology.training.recipe_settings import TrainerSettings

Validate = Callable[[nn.Module], dict[str, float]]  # metrics on the dev notes


@dataclass(frozen=True)
class TrainingRun:
    """What to train, on what, and where to write it. A note is identified by its row, 0 to N - 1.

    make_batch: returns the batch of a micro-batch's notes, on the CPU. The net returns the mean loss of its notes;
        micro-batches are weighted by their number of notes, so the gradient is that of the mean over the step.
    prepare_step: called once per step with all its notes, longest first, and a generator derived from seed and step.
        Its result is passed to every `make_batch` of the step. Both functions run in background threads, at most
        `loader_threads` at a time, and must not use torch's global random numbers.
    validate: returns metrics on the dev notes, `settings.monitor` among them. The first process calls it after each
        epoch, without gradients, in eval mode and in the precision of the training. None: the last weights are best.
    run_folder: receives checkpoint.safetensors, best.safetensors, curves.csv and tensorboard/. A stopped run resumes
        from its checkpoint if fingerprint, lengths and settings are the same.
    use_cuda_graphs: allowed only if the net reads nothing but tensors of the batch, has few shapes and never waits for
        the device. A single GPU then captures one CUDA graph per shape and replays it.
    """

    net: nn.Module
    settings: TrainerSettings
    lengths: np.ndarray  # (N,) tokens of each train note
    make_batch: MakeBatch
    run_folder: str | Path
    fingerprint: str  # of recipe, corpora and package version
    seed: int
    groups: np.ndarray | None = None  # (N,) e.g. the ICD version; notes of different groups never share a batch
    prepare_step: PrepareStep | None = None
    validate: Validate | None = None
    plan: StepPlan | None = None  # None: a BatchPlan of lengths and groups
    parameter_groups: Sequence[ParameterGroup] = ()  # empty: one group of all trainable parameters
    use_cuda_graphs: bool = False
    loader_threads: int = 1
    fabric: Fabric | None = None  # None: `launch_fabric(settings)`
    title: str = "training"  # of the progress display


@dataclass(frozen=True)
class TrainingResult:
    """Summary of a training run. It is saved in the bundle."""

    epochs: int  # that were trained
    steps: int
    notes: int  # that were trained since the start or the resumption, each as often as it was read
    best_epoch: int  # counted from 1
    metrics: dict[str, float]  # of the best weights on the dev notes
    padding_share: float  # share of padding among all tokens
    notes_per_second: float  # in training, without validation
    validation_seconds: float  # since the start or the resumption
    resumed_at: int  # step; 0: not resumed
