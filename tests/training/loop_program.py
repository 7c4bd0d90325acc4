"""A tiny net and its notes, and a program that trains it, alone, under torchrun, or killed at a chosen moment.

python -m tests.training.loop_program FOLDER [runs | gradual]   (runs: one after the other; see `forked`)
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

from nosology.training import checkpoint
from nosology.training.data_loader import Batch, pad_notes, token_mask
from nosology.training.examples import label_targets, sample_labels
from nosology.training.recipe_settings import TrainerSettings
from nosology.training.trainer import ParameterGroup, TrainingResult, TrainingRun, fit

WORDS, LABELS, NOTES = 50, 12, 70
SETTINGS = TrainerSettings(
    epochs=3,
    batch=16,
    micro_tokens=160,
    learning_rate=0.02,
    weight_decay=0.01,
    warmup=3,
    clip=0.1,  # half of the steps reach it, so that the size of a gradient shows
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
        """(B, L)"""
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
    """Made notes of two groups, whose labels follow from their words."""

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
        """Something that a net gets better at: minus the loss on its own notes."""
        batch = self.batch(np.arange(len(self.tokens)), np.arange(LABELS))
        return {"map": 1 - float(net(batch)), "micro_f1": float((net.logits(batch) > 0).float().mean())}


def train(
    folder: Path | str, settings: TrainerSettings = SETTINGS, net: TinyNet | None = None, **others
) -> TrainingResult:
    """Trains the tiny net on the made notes."""
    notes = Notes()
    named = {"fingerprint": "tiny", "seed": 3, "prepare_step": notes.prepare, "validate": notes.validate} | others
    data = {"lengths": notes.lengths, "groups": notes.groups, "make_batch": notes.batch}
    return fit(TrainingRun(net or TinyNet(), settings, run_folder=folder, **data, **named))


def train_gradually(folder: Path | str) -> TrainingResult:
    """The same with an embedding that learns from the second epoch on."""
    net = TinyNet()
    return train(
        folder,
        net=net,
        parameter_groups=[ParameterGroup(list(net.out.parameters())), ParameterGroup([net.embed.weight], 0.5, 1)],
    )


def _killed_in_the_middle_of_writing(at: int) -> None:
    """Lets this process die when half of its at-th file is written."""
    write, left = Path.write_bytes, [at]

    def half(path: Path, data: bytes) -> int:
        left[0] -= 1
        if left[0] == 0:
            write(path, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, data)

    Path.write_bytes = half


def _killed_after_best(at: int) -> None:
    """Lets this process die between the at-th writing of the best weights and the checkpoint that follows."""
    save, left = checkpoint.Checkpoints.save_best, [at]

    def then_die(*words) -> None:
        save(*words)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.Checkpoints.save_best = then_die


def forked(folder: str, runs: list[dict]) -> None:
    """Each run in a process of its own; prints how each ended. A run: where to die, and other settings."""
    for run in runs:
        child = os.fork()
        if child == 0:
            net = TinyNet()
            net.kill_at = run.get("call", -1)
            _killed_in_the_middle_of_writing(run.get("writing", -1))
            _killed_after_best(run.get("best", -1))
            train(Path(folder) / run["folder"], SETTINGS.model_copy(update=run.get("settings", {})), net)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2:] == ["gradual"]:
        train_gradually(sys.argv[1])
    elif len(sys.argv) > 2:
        forked(sys.argv[1], json.loads(sys.argv[2]))
    else:
        train(sys.argv[1])
