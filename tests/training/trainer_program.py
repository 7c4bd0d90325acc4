"""A tiny net with simulated notes, and a program that trains it: alone, under torchrun, or killed at a given moment.

python -m tests.training.trainer_program FOLDER [RUNS]   (RUNS: JSON, see `run_in_subprocesses`)

Without RUNS it trains FOLDER/all and, with a parameter group that starts later, FOLDER/gradual.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter  # noqa: F401

from nosology.training import checkpoint
from nosology.training.data_loader import Batch, pad_notes, token_mask
from nosology.training.label_sampling import label_targets, sample_labels
from nosology.training.parameter_groups import ParameterGroup
from nosology.training.recipe_settings import TrainerSettings
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingResult, TrainingRun

WORDS, LABELS, NOTES = 50, 12, 70
SETTINGS = TrainerSettings(
    epochs=3,
    batch=16,
    micro_tokens=160,
    learning_rate=0.02,
    weight_decay=0.01,
    warmup=3,
    clip=0.1,  # half of the steps are clipped, so a wrong gradient norm changes the losses
    patience=5,
    checkpoint_minutes=0,
    log_steps=2,
)


class TinyNet(nn.Module):
    """Embedding, dropout, mean over tokens, linear."""

    def __init__(self, dropout: float = 0.3):
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(WORDS, 8, padding_idx=0)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(8, LABELS)
        self.calls = 0
        self.kill_at = -1

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L)."""
        real = token_mask(batch.lengths, batch.tokens.shape[1], batch.tokens.device)
        states = self.embed(batch.tokens)
        states = (self.drop(states) if self.embed.weight.requires_grad else states) * real[..., None]
        scores = self.out(states.sum(1) / batch.lengths.clamp(min=1)[:, None])
        return scores if batch.labels is None else scores[:, batch.labels]

    def forward(self, batch: Batch) -> Tensor:
        self.calls += 1
        if self.calls == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.targets)


class Notes:
    """Simulated notes of two groups; their labels depend on their words."""

    def __init__(self, n: int = NOTES, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.tokens = [rng.integers(2, WORDS, rng.integers(1, 40)) for _ in range(n)]
        self.lengths = np.array([len(note) for note in self.tokens])
        self.groups = rng.integers(0, 2, n)
        self.labels = [np.unique(note[:3] % LABELS) for note in self.tokens]

    def _codes(self, notes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [self.labels[i] for i in notes]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

    def prepare(self, notes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The labels of a step."""
        return sample_labels(self._codes(notes)[0], np.arange(LABELS), 10, rng)

    def batch(self, notes: np.ndarray, labels: np.ndarray) -> Batch:
        """A micro-batch."""
        tokens, lengths = pad_notes([self.tokens[i] for i in notes])
        targets = torch.from_numpy(label_targets(labels, *self._codes(notes)))
        return Batch(tokens, lengths, torch.from_numpy(labels), targets)

    def validate(self, net: nn.Module) -> dict[str, float]:
        """Metrics that improve with training: 1 - loss on the train notes."""
        batch = self.batch(np.arange(len(self.tokens)), np.arange(LABELS))
        return {"map": 1 - float(net(batch)), "micro_f1": float((net.logits(batch) > 0).float().mean())}


def tiny_run(folder: Path | str, settings: TrainerSettings = SETTINGS, **changes) -> TrainingRun:
    """The run of the tiny net on the simulated notes; changes: other fields of the run."""
    notes = Notes()
    fields = {"lengths": notes.lengths, "groups": notes.groups, "make_batch": notes.batch} | changes
    fields = {"net": TinyNet(), "fingerprint": "tiny", "seed": 3, "prepare_step": notes.prepare} | fields
    return TrainingRun(settings=settings, run_folder=folder, **({"validate": notes.validate} | fields))


def train(folder: Path | str, settings: TrainerSettings = SETTINGS, **changes) -> TrainingResult:
    """Trains the tiny net on the simulated notes."""
    return fit(tiny_run(folder, settings, **changes))


def train_gradually(folder: Path | str) -> TrainingResult:
    """The same with an embedding that is frozen in the first epoch."""
    net = TinyNet()
    return train(
        folder,
        net=net,
        parameter_groups=[ParameterGroup(list(net.out.parameters())), ParameterGroup([net.embed.weight], 0.5, 1)],
    )


def _kill_during_write(number: int) -> None:
    """Kills this process when half of its number-th file is written."""
    write, left = Path.write_bytes, [number]

    def write_half(path: Path, data: bytes) -> int:
        left[0] -= 1
        if left[0] == 0:
            write(path, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, data)

    Path.write_bytes = write_half


def _kill_after_best(number: int) -> None:
    """Kills this process after it wrote the best weights for the number-th time, before the next checkpoint."""
    save, left = checkpoint.Checkpoints.save_best, [number]

    def save_and_die(*arguments) -> None:
        save(*arguments)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.Checkpoints.save_best = save_and_die


def run_in_subprocesses(folder: str, runs: list[dict]) -> None:
    """Runs each run in a subprocess and prints its exit code; a run names its kill point and changed settings."""
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # imports, as SummaryWriter above, once for all processes
    for run in runs:
        child = os.fork()
        if child == 0:
            net = TinyNet()
            net.kill_at = run.get("call", -1)
            _kill_during_write(run.get("writing", -1))
            _kill_after_best(run.get("best", -1))
            train(Path(folder) / run["folder"], SETTINGS.model_copy(update=run.get("settings", {})), net=net)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        run_in_subprocesses(sys.argv[1], json.loads(sys.argv[2]))
    else:
        train(Path(sys.argv[1]) / "all")
        train_gradually(Path(sys.argv[1]) / "gradual")
