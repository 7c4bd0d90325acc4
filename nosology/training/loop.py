"""The training loop of every net: batches by length, several processes, exact resume, the best weights kept.

Everything random follows from (seed, epoch, step, micro-batch), so neither a kill nor another number of processes
changes a loss: the first exactly, the second up to the order of additions. Steps that a GPU repeats are an exception:
those that are recorded and those that are not yet may differ in the last digits.
"""

from __future__ import annotations

import gc
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from nosology.core import ConfigError, DataError
from nosology.training.batch import Batch
from nosology.training.batch_plan import Plan, seed_of
from nosology.training.checkpoint import Checkpoints, State, weights
from nosology.training.cuda_graphs import RepeatedBatches
from nosology.training.curves import Curves
from nosology.training.devices import launch, room, seed_device
from nosology.training.display import Display
from nosology.training.feed import Feed, MakeBatch, Prepare, Work
from nosology.training.language_stream import StreamPlan
from nosology.training.schedule import resolve
from nosology.training.settings import LoopSettings

Validate = Callable[[nn.Module], dict[str, float]]  # metrics on dev

_CPU_PARTS = 2  # of a step: one and two processes then do the same, and smaller parts cost a CPU nothing
_UNSEEN = 10  # seconds without a look at the loss, where no other process has to look too: steps may take minutes
_WRITING = 10  # an epoch's checkpoint waits until so many times as long as it takes has passed
_HARMLESS = {"checkpoint_minutes", "log_steps", "micro_tokens", "micro_batches"}  # a run may go on with others


@dataclass(frozen=True)
class Paced:
    """A part of a net that learns at a pace of its own."""

    parameters: list[nn.Parameter]
    rate: float = 1.0  # times the learning rate
    begins: int = 0  # with this epoch, counted from 0; until then its weights stay as they are


@dataclass(frozen=True)
class Fitted:
    """How the training went; the net holds the best weights."""

    epochs: int  # passed
    steps: int
    best_epoch: int  # counted from 1
    metrics: dict[str, float]  # of the best weights on dev
    pads: float  # share of pads among the tokens
    notes_per_second: float  # in training, without validation
    resumed_at: int  # step; 0: from the beginning


def fit(
    net: nn.Module,
    settings: LoopSettings,
    *,
    lengths: np.ndarray,
    groups: np.ndarray,
    make_batch: MakeBatch,
    plan: Plan | StreamPlan | None = None,
    parts: Sequence[Paced] = (),
    folder: str | Path,
    fingerprint: str,
    seed: int,
    prepare: Prepare | None = None,
    validate: Validate | None = None,
    repeated: bool = False,
    fabric: Fabric | None = None,
    title: str = "training",
) -> Fitted:
    """How the training went; the net, on the fabric's device, holds the best weights afterwards.

    lengths, groups: (N,) tokens and ICD version (or any other group) of each train note. Notes are named by their row.
    prepare: called once a step with all its notes, longest first, and a generator that the seed and the step decide;
        what it returns goes to each `make_batch` of the step. Both run in a thread beside the training, so they may not
        use torch's own random numbers.
    make_batch: the notes of a micro-batch as a Batch on the CPU. The net's loss is a mean over notes; its weight is
        their number, so that the gradient is that of the mean over the whole step.
    plan: which notes go in which batch, where it is not to be made of lengths and groups.
    parts: parts of the net that learn at a pace of their own; none: all of it at one.
    validate: metrics on dev, with settings.monitor among them; called after each epoch by the first process alone,
        without gradients, in eval mode, under the precision of the training. None: the last weights are the best.
    repeated: whether the net reads nothing but tensors of a batch, of few shapes, and never waits for the device: a GPU
        that trains alone then records a step of each shape and repeats it.
    folder: checkpoint.safetensors, best.safetensors, curves.csv and tensorboard/ are written there; a run that was
        stopped at any moment goes on from the checkpoint if that is of the same fingerprint, lengths and settings.
    fingerprint: what is trained: recipe, hashes of the corpora, version of the package.
    """
    if not len(lengths):
        raise DataError("there are no train notes: nothing can be learned from them")
    fabric = fabric or launch(settings)
    gpu = fabric.device.type == "cuda"
    plan = plan or Plan(
        np.asarray(lengths),
        np.unique(groups, return_inverse=True)[1],
        settings.batch,
        settings.micro_tokens or room(fabric.device),
        seed,
        settings.micro_batches or max(fabric.world_size, 1 if gpu else _CPU_PARTS),
    )
    net.to(fabric.device)
    whole = _whole(fingerprint, settings, plan)
    repeated = repeated and gpu and fabric.world_size == 1
    run = _Run(net, settings, plan, parts, fabric, validate, repeated, Checkpoints(folder, whole), title)
    try:
        feed = Feed(plan, make_batch, prepare, fabric.global_rank, fabric.world_size, pinned=gpu)
        with closing(feed.steps(run.state.epoch, run.state.done)) as steps:
            while not run.finished:
                run.step(next(steps))
        return run.result()
    finally:
        run.close()


class _Run:
    """One run of the loop: what it holds between steps."""

    def __init__(
        self,
        net: nn.Module,
        settings: LoopSettings,
        plan: Plan | StreamPlan,
        parts: Sequence[Paced],
        fabric: Fabric,
        validate: Validate | None,
        repeated: bool,
        checkpoints: Checkpoints,
        title: str,
    ):
        self.net, self.settings, self.plan, self.fabric, self.validate = net, settings, plan, fabric, validate
        self._repeated = repeated
        self.schedule = resolve(settings, len(plan))
        self.checkpoints, self.first, self.title = checkpoints, fabric.is_global_zero, title
        self.parts = parts or [Paced([parameter for parameter in net.parameters() if parameter.requires_grad])]
        self.optimizer = torch.optim.AdamW(
            [{"params": part.parameters} for part in self.parts],
            lr=settings.learning_rate,
            betas=(0.9, settings.beta),
            weight_decay=settings.weight_decay,
            fused=fabric.device.type == "cuda",
        )
        if self.first:
            checkpoints.prepare()
        found = checkpoints.load(net, self.optimizer)
        self.state = found or State()
        self.resumed_at = self.state.step
        fabric.barrier()  # all have read before the first may write
        self._stepper = fabric.setup_optimizers(self.optimizer)
        self.module: nn.Module | None = None  # made by `_freeze`, for what learns
        self._batches: RepeatedBatches | None = None  # likewise, where steps are repeated
        self._total = torch.zeros((), device=fabric.device)  # the loss of the step that is taken
        self._learning: list[bool] = []
        told = replace(self.schedule, epochs=self.last, steps=self.last * len(plan))
        self.display = Display(title, told, self.state.step, silent=not self.first)
        self.curves = Curves(checkpoints.folder, self.state.step) if self.first else None
        if found:
            self.display.say(f"{title}: goes on at step {self.state.step} of {told.steps}")
        elif self.first and checkpoints.path.exists():
            self.display.say(f"{title}: {checkpoints.path} is of another recipe, corpus or version; begins anew")
        self._losses: list[Tensor] = []  # of the steps since the last look, on the device
        self._epoch_loss: list[float] = []
        self._notes = self._all_notes = 0
        self._seconds = self._writing = 0.0
        self._looked = self._written = time.monotonic()
        net.train()

    @property
    def last(self) -> int:
        """The epoch, counted from 1, after which the run ends at the latest."""
        return min(self.settings.stop_epoch or self.schedule.epochs, self.schedule.epochs)

    @property
    def finished(self) -> bool:
        """Whether the last epoch has passed or dev has seen no better one for too long."""
        return self.state.epoch >= self.last or self.state.waited >= self.settings.patience

    def step(self, work: Work) -> None:
        """One step of the optimiser."""
        self._freeze(work.epoch)
        for group, part in zip(self.optimizer.param_groups, self.parts):
            group["lr"] = part.rate * self.settings.learning_rate * self.schedule.factor(self.state.step)
        self._total.zero_()
        try:
            for i, part in enumerate(work.parts):
                seed_device(self.fabric.device, seed_of("micro", self.plan.seed, work.epoch, work.step, part.number))
                with self.fabric.no_backward_sync(self.module, enabled=i + 1 < len(work.parts)):
                    (self._batches or self._learn)(part.batch.to(self.fabric.device), part.share)
            if self.settings.clip:
                # an error on NaN would wait for the device in every step; the loss shows it as well
                self.fabric.clip_gradients(
                    self.module, self._stepper, max_norm=self.settings.clip, error_if_nonfinite=False
                )
            self._stepper.step()
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU's memory is too small at step {self.state.step + 1}: [training] micro_tokens must be lower; "
                f"got {self.plan.micro_tokens}"
            ) from error
        self.optimizer.zero_grad(set_to_none=not self._repeated)  # what is repeated finds its gradients where they were
        self._losses.append(self._total.clone())
        self._notes += work.notes
        self.state = replace(self.state, done=work.step + 1, step=self.state.step + 1)
        last = self.state.done == len(self.plan)
        if last or self.state.done % self.settings.log_steps == 0 or self._overdue:
            self._look(work.epoch, last)

    def _learn(self, batch: Batch, share: float | Tensor) -> None:
        """Adds a micro-batch to the gradient and to the loss of the step."""
        loss = self.module(_Parcel(batch))
        # The processes' gradients are averaged, not added: hence the number of processes.
        self.fabric.backward(loss * (share * self.fabric.world_size))
        self._total += loss.detach() * share

    @property
    def _overdue(self) -> bool:
        """Whether slow steps have kept progress and checkpoints waiting; processes would not agree on the time."""
        return self.fabric.world_size == 1 and time.monotonic() - self._looked >= _UNSEEN

    def _freeze(self, epoch: int) -> None:
        """Lets parts that do not learn yet cost no derivatives: AdamW passes them over, moments and all."""
        learning = [epoch >= part.begins for part in self.parts]
        if learning == self._learning:
            return
        self._learning = learning
        for part, learns in zip(self.parts, learning):
            for parameter in part.parameters:
                parameter.requires_grad_(learns)
        self.module = None
        gc.collect()  # processes agree anew on what learns; whoever still listened to its derivatives would count twice
        self.module = self.fabric.setup_module(_Carrier(self.net))
        if self._repeated:
            self._batches = RepeatedBatches(self._learn, self.last * len(self.plan), self.fabric.device)

    def _look(self, epoch: int, last: bool) -> None:
        """Fetches the losses since the last look, ends the epoch if it is over, and writes what is due."""
        losses = self.fabric.all_reduce(torch.stack(self._losses), reduce_op="sum").tolist()
        now, begin = time.monotonic(), self.state.step - len(losses)
        rate = self._notes / max(now - self._looked, 1e-9)
        for i, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise self._diverged(begin + i + 1, "the loss")
        self._epoch_loss += losses
        self._all_notes += self._notes
        self._seconds += now - self._looked
        metrics = self._end_epoch(epoch) if last else {}
        if self.first:
            for i, loss in enumerate(losses):
                pace = self.settings.learning_rate * self.schedule.factor(begin + i)
                row = {"step": begin + i + 1, "epoch": epoch + 1, "loss": loss, "learning_rate": pace}
                row |= {"notes_per_second": round(rate, 1)} | (metrics if i + 1 == len(losses) else {})
                self.curves.add(row)
            self.display.step(epoch, self.state.step, losses[-1], rate)
            self._write(last)
        if last:
            mean = sum(self._epoch_loss) / len(self._epoch_loss)
            self.display.epoch(epoch, self.state.step, mean, metrics, self._all_notes / max(self._seconds, 1e-9))
            self._epoch_loss = []
        self._losses, self._notes, self._looked = [], 0, time.monotonic()

    def _end_epoch(self, epoch: int) -> dict[str, float]:
        """The metrics on dev; the best weights so far are kept."""
        metrics: dict[str, float] = {}
        if self.first and self.validate:
            self.net.eval()
            with torch.no_grad(), self.fabric.autocast():
                metrics = {name: float(value) for name, value in self.validate(self.net).items()}
            self.net.train()
        metrics = self.fabric.broadcast(metrics)
        score = metrics[self.settings.monitor] if self.validate else float(epoch)
        if not math.isfinite(score):
            raise DataError(f"no {self.settings.monitor} can be computed on the dev notes; got {score}")
        better = self.state.best is None or score > self.state.best
        if better and self.first:
            self._check_weights()
            self.checkpoints.save_best(self.net, {"epoch": epoch + 1, "metrics": metrics})
        waited = 0 if better else self.state.waited + 1
        self.state = replace(
            self.state, epoch=epoch + 1, done=0, best=score if better else self.state.best, waited=waited
        )
        return metrics

    def _write(self, epoch_over: bool) -> None:
        """Writes a checkpoint if it is time, curves first."""
        passed = time.monotonic() - self._written
        due = passed >= self.settings.checkpoint_minutes * 60
        if not (due or self.finished or (epoch_over and passed > _WRITING * self._writing)):
            return
        self._check_weights()
        self.curves.flush()
        started = time.monotonic()
        self.checkpoints.save(self.net, self.optimizer, self.state)
        self._written = time.monotonic()
        self._writing = self._written - started

    def _check_weights(self) -> None:
        """Raises if a weight is not finite: what is on disk can always be gone on from."""
        if not all(torch.isfinite(value).all() for value in weights(self.net).values()):
            raise self._diverged(self.state.step, "a weight")

    def _diverged(self, step: int, what: str) -> ConfigError:
        return ConfigError(
            f"{self.title}: {what} is not finite after step {step}: its learning_rate must be lower (got "
            f"{self.settings.learning_rate}){'' if self.settings.clip else ', or its clip be set'}"
        )

    def result(self) -> Fitted:
        """What came out, with the best weights in the net."""
        if self.first:
            self.curves.flush()
        self.fabric.barrier()  # the best weights are written
        found = self.checkpoints.load_best(self.net)
        self.fabric.barrier()  # all have read them
        self.net.eval()
        return Fitted(
            self.state.epoch,
            self.state.step,
            found["epoch"],
            found["metrics"],
            self.plan.epoch(0).pads(),
            self._all_notes / max(self._seconds, 1e-9),
            self.resumed_at,
        )

    def close(self) -> None:
        """Ends the curves and the bar, and lets go of what was recorded."""
        self._batches = self.module = None
        for part in self.parts:
            for parameter in part.parameters:
                parameter.requires_grad_(True)
        self.display.close()
        if self.curves:
            self.curves.close()


class _Carrier(nn.Module):
    """The net behind a door through which a batch passes as it is: lengths stay on the CPU."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, parcel: _Parcel) -> Tensor:
        return self.net(parcel.batch)


class _Parcel:
    """A batch that neither Fabric nor DDP looks into; they would rebuild it and move all of it to the device."""

    def __init__(self, batch: Batch):
        self.batch = batch


def _whole(fingerprint: str, settings: LoopSettings, plan: Plan) -> str:
    """The caller's fingerprint with all that the loop itself depends on."""
    digest = hashlib.sha256(f"{fingerprint}\n{plan.seed}\n{settings.model_dump_json(exclude=_HARMLESS)}".encode())
    for array in (plan.lengths, plan.groups):
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return digest.hexdigest()
