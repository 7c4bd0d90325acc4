"""The training loop of every neural net: `fit(TrainingRun(...))`.

The loop groups notes of similar length into batches, accumulates gradients over micro-batches, runs on one or several
processes, writes checkpoints and curves, stops early and returns the best weights.

All randomness is derived from (seed, epoch, step, micro-batch). A resumed run therefore has exactly the losses of an
uninterrupted one, and another number of processes changes them only by the order of additions. CUDA graphs are an
exception: a replayed step may differ from an ordinary one in the last digits.
"""

from __future__ import annotations

import gc
import hashlib
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from nosology.core import ConfigError, DataError
from nosology.core.progress import activity
from nosology.training.batch_plan import BatchPlan, derive_seed
from nosology.training.checkpoint import Checkpoints, TrainingState, named_tensors
from nosology.training.cuda_graphs import CudaGraphBatchStep
from nosology.training.curves import TrainingCurves
from nosology.training.data_loader import BatchLoader, DeviceBatch, StepBatches, make_batch_plan, on_device
from nosology.training.inference import default_device, uses_bf16
from nosology.training.parameter_groups import (
    ParameterGroup,
    freeze,
    make_adamw,
    set_learning_rates,
    trained_groups,
    unfreeze,
)
from nosology.training.progress_display import ProgressDisplay
from nosology.training.recipe_settings import TrainerSettings, resolve_schedule
from nosology.training.torchrun import process_counts
from nosology.training.training_run import TrainingResult, TrainingRun

if TYPE_CHECKING:
    from lightning_fabric.wrappers import _FabricModule

_LOG_SECONDS = 10  # the loss is read at least this often if a single process trains: a step may take minutes
_CHECKPOINT_FACTOR = 10  # at the end of an epoch, write only if this many times the duration of a write has passed
_NOT_IN_FINGERPRINT = {"checkpoint_minutes", "log_steps", "micro_tokens", "micro_batches"}  # may change on resume


def fit(run: TrainingRun) -> TrainingResult:
    """The summary of the training; afterwards the net has the best weights and is on the device of the fabric."""
    if not len(run.lengths):
        raise DataError("training needs at least one train note; got none")
    with closing(Trainer(run)) as trainer:
        return trainer.train()


class Trainer:
    """State of one training run between its steps."""

    def __init__(self, run: TrainingRun):
        self.run, self.net, self.settings = run, run.net, run.settings
        self.fabric = run.fabric or launch_fabric(run.settings)
        self.is_first = self.fabric.is_global_zero
        self._on_gpu = self.fabric.device.type == "cuda"
        self._use_cuda_graphs = run.use_cuda_graphs and self._on_gpu and self.fabric.world_size == 1
        self.plan = run.plan or self._batch_plan()
        self.schedule = resolve_schedule(run.settings, len(self.plan))
        # Before a checkpoint is read: Fabric would convert the weights only later, and not the state of the optimizer.
        self.net.to(self.fabric.device, torch.float64 if run.settings.precision == "fp64" else None)
        self.parameter_groups = run.parameter_groups or [
            ParameterGroup([p for p in self.net.parameters() if p.requires_grad])
        ]
        self.optimizer = make_adamw([group.parameters for group in self.parameter_groups], self.settings)
        self.checkpoints = Checkpoints(run.run_folder, self._fingerprint())
        self.state = self._load_checkpoint()
        self.resumed_at = self.state.step
        # setup_optimizers returns a tuple only for several optimizers
        self._fabric_optimizer = cast("torch.optim.Optimizer", self.fabric.setup_optimizers(self.optimizer))
        self._module: _FabricModule | None = None  # built by `_freeze`, for the groups that are trained
        self._graph_step: CudaGraphBatchStep | None = None  # likewise
        self._is_trained: list[bool] = []  # per group
        self._step_loss = torch.zeros((), device=self.fabric.device)
        self.curves = TrainingCurves(run.run_folder, self.state.step) if self.is_first else None
        self._losses: list[Tensor] = []  # of the steps since the last log, on the device
        self._epoch_losses: list[float] = []
        self._notes = self._all_notes = 0
        self._train_seconds = self._write_seconds = self._validation_seconds = 0.0
        self._logged_at = self._written_at = time.monotonic()

    def _batch_plan(self) -> BatchPlan:
        run, fabric = self.run, self.fabric
        lengths = np.asarray(run.lengths)
        groups = np.zeros(len(lengths), np.int64) if run.groups is None else run.groups
        return make_batch_plan(lengths, groups, run.settings, run.seed, fabric.device, fabric.world_size)

    def _fingerprint(self) -> str:
        """The fingerprint of the run and of everything else that changes its weights."""
        settings = self.settings.model_dump_json(exclude=_NOT_IN_FINGERPRINT)
        digest = hashlib.sha256(f"{self.run.fingerprint}\n{self.plan.seed}\n{settings}".encode())
        for array in (self.plan.lengths, self.plan.groups):
            digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        return digest.hexdigest()

    def _load_checkpoint(self) -> TrainingState:
        """The state of the checkpoint, or of a new run; weights and optimizer are restored."""
        if self.is_first:
            self.checkpoints.prepare()
        state = self.checkpoints.load(self.net, self.optimizer)
        self.fabric.barrier()  # all processes have read before the first one writes
        title, done = self.run.title, state.step if state else 0
        steps = self.last_epoch * len(self.plan)
        steps = min(steps, self.settings.stop_step or steps)
        self.progress = ProgressDisplay(title, self.last_epoch, steps, done, silent=not self.is_first)
        if state:
            self.progress.print_line(f"{title}: resumes at step {state.step} of {steps}")
        elif self.is_first and self.checkpoints.path.exists():
            self.progress.print_line(
                f"{title}: {self.checkpoints.path} is of another recipe, corpus or version; starts from the beginning"
            )
        return state or TrainingState()

    @property
    def last_epoch(self) -> int:
        """The last epoch, counted from 1, unless early stopping ends the run before."""
        return min(self.settings.stop_epoch or self.schedule.epochs, self.schedule.epochs)

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch is over or early stopping ends the run."""
        no_better = self.state.epochs_without_improvement >= self.settings.patience
        return self.state.epoch >= self.last_epoch or no_better or self._is_last_step

    @property
    def _is_last_step(self) -> bool:
        """Whether the settings end the run at this step."""
        return 0 < self.settings.stop_step <= self.state.step

    def train(self) -> TrainingResult:
        run, fabric = self.run, self.fabric
        processes = (fabric.global_rank, fabric.world_size)
        loading = (run.make_batch, run.prepare_step)
        loader = BatchLoader(self.plan, *loading, *processes, pin_memory=self._on_gpu, threads=run.loader_threads)
        self.net.train()
        with closing(loader.steps(self.state.epoch, self.state.epoch_steps)) as loaded:
            steps = on_device(loaded, fabric.device)
            while not self.is_finished:
                self._step(next(steps))
        return self._result()

    def _step(self, batches: StepBatches) -> None:
        """Takes one step of the optimizer."""
        self._freeze(batches.epoch)
        learning_rate = self.settings.learning_rate * self.schedule.factor(self.state.step)
        set_learning_rates(self.optimizer, self.parameter_groups, learning_rate)
        self._step_loss.zero_()
        self._compute_gradient(batches)
        self._fabric_optimizer.step()
        # A CUDA graph writes gradients where they were at its capture, so their memory must stay.
        self.optimizer.zero_grad(set_to_none=not self._use_cuda_graphs)
        self._losses.append(self._step_loss.clone())
        self._notes += batches.notes
        self.state = replace(self.state, epoch_steps=batches.step + 1, step=self.state.step + 1)
        ends_epoch = self.state.epoch_steps == len(self.plan) or self._is_last_step
        if ends_epoch or self.state.epoch_steps % self.settings.log_steps == 0 or self._is_log_overdue:
            self._log(batches.epoch, ends_epoch)

    def _compute_gradient(self, batches: StepBatches) -> None:
        """Computes the gradient of a step over its micro-batches, and clips it."""
        module, last = self._module, len(batches.micro_batches) - 1
        assert module is not None, "_freeze builds it"
        for i, micro_batch in enumerate(batches.micro_batches):
            seed = derive_seed("micro", self.plan.seed, batches.epoch, batches.step, micro_batch.number)
            seed_device(self.fabric.device, seed)
            try:
                with self.fabric.no_backward_sync(module, enabled=i < last):
                    (self._graph_step or self._backward)(micro_batch.batch, micro_batch.weight)
            except torch.OutOfMemoryError as error:
                raise ConfigError(
                    f"the GPU is out of memory at step {self.state.step + 1}: [training] micro_tokens must be lower; "
                    f"got {self.plan.micro_tokens}"
                ) from error
        if self.settings.clip:
            # error_if_nonfinite would wait for the device in every step; the loss shows the same error later
            self.fabric.clip_gradients(
                module, self._fabric_optimizer, max_norm=self.settings.clip, error_if_nonfinite=False
            )

    def _backward(self, batch: DeviceBatch, weight: float | Tensor) -> None:
        """Adds a micro-batch to the gradient and to the loss of the step."""
        assert self._module is not None, "_freeze builds it"
        loss = self._module(lambda: batch)
        # DDP averages the gradients of the processes; their sum is wanted.
        self.fabric.backward(loss * (weight * self.fabric.world_size))
        self._step_loss += loss.detach() * weight

    @property
    def _is_log_overdue(self) -> bool:
        """Whether slow steps delay logs and checkpoints; several processes would not agree on the time."""
        return self.fabric.world_size == 1 and time.monotonic() - self._logged_at >= _LOG_SECONDS

    def _freeze(self, epoch: int) -> None:
        """Freezes the groups that start after this epoch, so that no gradient is computed for them."""
        is_trained = trained_groups(self.parameter_groups, epoch)
        if is_trained == self._is_trained:
            return
        self._is_trained = is_trained
        freeze(self.parameter_groups, epoch)
        self._module = None
        gc.collect()  # the old DDP module must be gone: its hooks would count every gradient twice
        self._module = self.fabric.setup_module(_LossModule(self.net))
        if self._use_cuda_graphs:
            self._graph_step = CudaGraphBatchStep(self._backward, self.last_epoch * len(self.plan), self.fabric.device)

    def _log(self, epoch: int, ends_epoch: bool) -> None:
        """Reads the losses since the last log, ends the epoch if it is over, and writes curves and checkpoint."""
        losses = torch.as_tensor(self.fabric.all_reduce(torch.stack(self._losses), reduce_op="sum")).tolist()
        now, start = time.monotonic(), self.state.step - len(losses)
        notes_per_second = self._notes / max(now - self._logged_at, 1e-9)
        for i, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise self._divergence_error(start + i + 1, "the loss")
        self._epoch_losses += losses
        self._all_notes += self._notes
        self._train_seconds += now - self._logged_at
        metrics = self._end_epoch(epoch) if ends_epoch else {}
        if self.curves:
            for i, loss in enumerate(losses):
                learning_rate = self.settings.learning_rate * self.schedule.factor(start + i)
                row = {"step": start + i + 1, "epoch": epoch + 1, "loss": loss, "learning_rate": learning_rate}
                row |= {"notes_per_second": round(notes_per_second, 1)} | (metrics if i + 1 == len(losses) else {})
                self.curves.add(row)
            self.progress.update(epoch, self.state.step, losses[-1], notes_per_second)
            self._save_checkpoint(self.curves, ends_epoch)
        if ends_epoch:
            mean, mean_speed = sum(self._epoch_losses) / len(self._epoch_losses), self._mean_speed()
            self.progress.end_epoch(epoch, self.state.step, mean, metrics, mean_speed)
            self._epoch_losses = []
        self._losses, self._notes, self._logged_at = [], 0, time.monotonic()

    def _mean_speed(self) -> float:
        """Notes per second over all steps."""
        return self._all_notes / max(self._train_seconds, 1e-9)

    def _end_epoch(self, epoch: int) -> dict[str, float]:
        """The metrics on the dev notes; weights that are better than all before are saved."""
        metrics: dict[str, float] = {}
        if self.is_first and self.run.validate:
            self.net.eval()
            started = time.monotonic()
            waiting = activity(f"{self.run.title}: epoch {epoch + 1}, dev notes", spinner=False)
            with torch.no_grad(), self.fabric.autocast(), waiting:
                metrics = {name: float(value) for name, value in self.run.validate(self.net).items()}
            self.net.train()
            self._validation_seconds += time.monotonic() - started
        metrics = self.fabric.broadcast(metrics)
        score = metrics[self.settings.monitor] if self.run.validate else float(epoch)
        if not math.isfinite(score):
            raise DataError(f"{self.settings.monitor} on the dev notes must be finite; got {score}")
        state = replace(self.state, epoch=epoch + 1, epoch_steps=0)
        if state.best_score is None or score > state.best_score:
            if self.is_first:
                self._check_weights()
                self.checkpoints.save_best(self.net, {"epoch": epoch + 1, "metrics": metrics})
            self.state = replace(state, best_score=score, epochs_without_improvement=0)
        else:
            self.state = replace(state, epochs_without_improvement=state.epochs_without_improvement + 1)
        return metrics

    def _save_checkpoint(self, curves: TrainingCurves, ends_epoch: bool) -> None:
        """Writes curves and checkpoint if it is time."""
        passed = time.monotonic() - self._written_at
        is_due = passed >= self.settings.checkpoint_minutes * 60
        if not (is_due or self.is_finished or (ends_epoch and passed > _CHECKPOINT_FACTOR * self._write_seconds)):
            return
        self._check_weights()
        curves.flush()  # a checkpoint must not be ahead of its curves
        started = time.monotonic()
        self.checkpoints.save(self.net, self.optimizer, self.state)
        self._written_at = time.monotonic()
        self._write_seconds = self._written_at - started

    def _check_weights(self) -> None:
        """Raises if a weight is not finite, so that every checkpoint on disk can be resumed."""
        if not all(torch.isfinite(value).all() for value in named_tensors(self.net).values()):
            raise self._divergence_error(self.state.step, "a weight")

    def _divergence_error(self, step: int, what: str) -> ConfigError:
        return ConfigError(
            f"{self.run.title}: {what} is not finite after step {step}: its learning_rate must be lower (got "
            f"{self.settings.learning_rate}){'' if self.settings.clip else ', or its clip be set'}"
        )

    def _result(self) -> TrainingResult:
        """The summary of the run; the best weights are loaded."""
        if self.curves:
            self.curves.flush()
        self.fabric.barrier()  # the first process has written the best weights
        best = self.checkpoints.load_best(self.net)
        self.fabric.barrier()  # all processes have read them
        self.net.eval()
        return TrainingResult(
            epochs=self.state.epoch,
            steps=self.state.step,
            notes=self._all_notes,
            best_epoch=best["epoch"],
            metrics=best["metrics"],
            padding_share=self.plan.epoch(0).padding_share(),
            notes_per_second=self._mean_speed(),
            validation_seconds=self._validation_seconds,
            resumed_at=self.resumed_at,
        )

    def close(self) -> None:
        """Closes curves and progress display, and frees the CUDA graphs."""
        self._graph_step = self._module = None
        unfreeze(self.parameter_groups)
        self.progress.close()
        if self.curves:
            self.curves.close()


class _LossModule(nn.Module):
    """Wrapper that stops DDP from moving the batch: it takes a function, and lengths stay on the CPU."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, get_batch: Callable[[], DeviceBatch]) -> Tensor:
        return self.net(get_batch())


def launch_fabric(settings: TrainerSettings) -> Fabric:
    """The device of this process and its connection to others: one device under python, all under torchrun."""
    local, nodes = process_counts()
    bf16 = uses_bf16(settings.precision, default_device())
    fabric = Fabric(
        devices=local,
        num_nodes=nodes,
        strategy="ddp" if local * nodes > 1 else "auto",
        precision="bf16-mixed" if bf16 else "64-true" if settings.precision == "fp64" else "32-true",
    )
    fabric.launch()
    return fabric


def seed_device(device: torch.device, seed: int) -> None:
    """Seeds the generators in use. torch.manual_seed would store every call for devices that are absent."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
