"""The trainer: gradient accumulation, exact resume after a kill, several processes, early stopping, best weights."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nosology.core import ConfigError, DataError
from nosology.training import trainer
from nosology.training.recipe_settings import resolve_schedule
from nosology.training.run_folder import BEST, CHECKPOINT
from tests.timing import assert_cpu_seconds
from tests.training.trainer_program import SETTINGS, Notes, TinyNet, train, train_gradually

PROGRAM = [sys.executable, "-m", "tests.training.trainer_program"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    """The folder of a run that was not interrupted."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(folder)
    return folder


def curves(folder: Path) -> list[list[str]]:
    """All rows without the speed, which differs between runs."""
    with (folder / "curves.csv").open() as file:
        return [row[:4] + row[5:] for row in csv.reader(file)]


def losses(folder: Path) -> np.ndarray:
    return np.array([float(row[2]) for row in curves(folder)[1:]])


def have_same_bytes(first: Path, second: Path) -> bool:
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in (CHECKPOINT, BEST))


def test_curves_have_every_step_and_metrics_once_per_epoch(uninterrupted):
    header, *rows = curves(uninterrupted)
    assert header == ["step", "epoch", "loss", "learning_rate", "map", "micro_f1"]
    assert [int(row[0]) for row in rows] == list(range(1, 19))
    assert [int(row[0]) for row in rows if row[4]] == [6, 12, 18]
    schedule = resolve_schedule(SETTINGS, 6)
    assert [float(row[3]) for row in rows] == [0.02 * schedule.factor(step) for step in range(18)]
    assert losses(uninterrupted)[-6:].mean() < losses(uninterrupted)[:6].mean() - 0.02
    assert any((uninterrupted / "tensorboard").iterdir())


def test_resume_after_kill_9_gives_the_same_bytes(uninterrupted, tmp_path):
    only_per_epoch = {"checkpoint_minutes": 1000}
    runs = [
        *({"folder": "steps", "call": call} for call in (2, 9, 14, 20)),  # forward passes before the kill
        *({"folder": "steps", "writing": number} for number in (1, 2)),
        {"folder": "steps", "best": 1},
        {"folder": "steps"},
        *({"folder": "epochs", "call": call, "settings": only_per_epoch} for call in (20, 20)),
        {"folder": "epochs", "settings": only_per_epoch},
    ]
    process = subprocess.run(
        [*PROGRAM, str(tmp_path), json.dumps(runs)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    exit_codes = [-9 if {"call", "writing", "best"} & run.keys() else 0 for run in runs]
    assert [int(line) for line in process.stdout.split()] == exit_codes, process.stderr
    assert process.stderr.count("resumes at step") >= 6
    for name in ("steps", "epochs"):
        assert curves(tmp_path / name) == curves(uninterrupted)
        assert have_same_bytes(tmp_path / name, uninterrupted)
        assert not list((tmp_path / name).glob(".*partial"))


def test_two_processes_give_the_losses_of_one(uninterrupted, tmp_path):
    """For a net that is trained as a whole, and for one with a parameter group that starts later."""
    train_gradually(tmp_path / "single")
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    program = [*PROGRAM[:2], *launcher, PROGRAM[2], str(tmp_path)]
    process = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("epoch 3/3") == 2  # only the first process prints
    for name, single in (("all", uninterrupted), ("gradual", tmp_path / "single")):
        np.testing.assert_allclose(losses(tmp_path / name), losses(single), rtol=0, atol=1e-5)
        ours, theirs = load_file(single / BEST), load_file(tmp_path / name / BEST)
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-4)


def test_only_training_that_runs_out_of_memory_is_told_to_lower_micro_tokens(tmp_path):
    class NeedsMemory(TinyNet):
        def forward(self, batch):
            raise torch.OutOfMemoryError

    def validate(_):
        raise torch.OutOfMemoryError

    with pytest.raises(ConfigError, match=r"out of memory at step 1: \[training\] micro_tokens must be lower; got 160"):
        train(tmp_path / "training", net=NeedsMemory())
    with pytest.raises(torch.OutOfMemoryError):
        train(tmp_path / "validation", validate=validate)


def test_micro_batches_add_up_to_the_gradient_of_the_batch(tmp_path):
    """Without dropout the losses do not depend on the micro-batches, and equal those of a plain torch loop."""
    settings = SETTINGS.model_copy(update={"epochs": 2, "clip": 0.0, "warmup": 0})
    for name, tokens in {"small": 40, "large": 10**6}.items():
        train(tmp_path / name, settings.model_copy(update={"micro_tokens": tokens}), net=TinyNet(dropout=0))
    np.testing.assert_allclose(losses(tmp_path / "small"), losses(tmp_path / "large"), rtol=0, atol=1e-6)

    notes, steps = Notes(), []

    def prepare_step(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        steps.append((rows, notes.prepare(rows, rng)))
        return steps[-1][1]

    small = settings.model_copy(update={"micro_tokens": 40})
    train(tmp_path / "actual", small, net=TinyNet(dropout=0), prepare_step=prepare_step)
    plain = TinyNet(dropout=0)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=settings.weight_decay)
    schedule, expected = resolve_schedule(settings, 6), []
    for step in range(schedule.steps):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * schedule.factor(step)
        loss = plain(notes.batch(*steps[step]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses(tmp_path / "actual"), expected, rtol=0, atol=1e-6)


def test_early_stopping_returns_the_best_weights(tmp_path):
    scores, states = iter([0.1, 0.3, 0.2, 0.3, 0.25, 0.9]), []

    def validate(net) -> dict[str, float]:
        assert not net.training and not torch.is_grad_enabled()
        states.append({name: value.clone() for name, value in net.state_dict().items()})
        return {"map": next(scores), "micro_f1": 0.0}

    net = TinyNet()
    settings = SETTINGS.model_copy(update={"epochs": 9, "patience": 3})
    result = train(tmp_path, settings, net=net, validate=validate)
    assert (result.epochs, result.best_epoch, result.steps) == (5, 2, 30)  # an equal score is no improvement
    assert result.metrics == {"map": 0.3, "micro_f1": 0.0}
    assert all(torch.equal(value, states[1][name]) for name, value in net.state_dict().items())
    assert 0 < result.padding_share < 0.5 and result.notes_per_second > 0

    finished = TinyNet()  # a finished run is not trained further
    result = train(tmp_path, settings, net=finished, validate=validate)
    assert (result.epochs, result.best_epoch, result.resumed_at) == (5, 2, 30)
    assert all(torch.equal(value, states[1][name]) for name, value in finished.state_dict().items())


def test_without_validation_the_last_weights_are_best(tmp_path):
    result = train(tmp_path, validate=None)
    assert (result.best_epoch, result.metrics) == (3, {})


def test_another_fingerprint_seed_or_grouping_starts_from_the_beginning(tmp_path, capsys):
    short = SETTINGS.model_copy(update={"epochs": 1})
    train(tmp_path, short)
    before = curves(tmp_path)
    for change in ({"fingerprint": "other"}, {"seed": 4}, {"groups": None}):
        assert train(tmp_path, short, validate=None, **change).resumed_at == 0
        assert "is of another recipe, corpus or version; starts from the beginning" in capsys.readouterr().err
    assert train(tmp_path, short).resumed_at == 0
    assert curves(tmp_path) == before
    assert train(tmp_path, short.model_copy(update={"checkpoint_minutes": 3.0, "log_steps": 7})).resumed_at == 6


def test_infinite_loss_is_an_error_that_names_the_step(tmp_path):
    class Broken(TinyNet):
        def forward(self, batch):
            loss = super().forward(batch)
            return loss * math.nan if self.calls > 60 else loss

    with pytest.raises(ConfigError, match=r"the loss is not finite after step (1[0-8]): .*learning_rate must be lower"):
        train(tmp_path, SETTINGS.model_copy(update={"micro_tokens": 64}), net=Broken(), validate=None)
    with (tmp_path / "curves.csv").open() as file:
        assert "nan" not in file.read()
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "checkpoint.safetensors").values())


def test_infinite_weight_is_never_written_to_a_checkpoint(tmp_path):
    class Broken(TinyNet):
        def forward(self, batch):
            with torch.no_grad():
                self.embed.weight[0] = math.inf  # the vector of PAD: it does not change the loss
            return super().forward(batch.__class__(batch.tokens.clamp(min=1), *list(vars(batch).values())[1:]))

    with pytest.raises(ConfigError, match="a weight is not finite after step 2"):
        train(tmp_path, net=Broken())
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_error_in_the_loader_thread_is_raised(tmp_path):
    def make_batch(rows, labels):
        raise DataError("no batch")

    with pytest.raises(DataError, match="no batch"):
        train(tmp_path, make_batch=make_batch)


def test_no_train_notes_is_an_error(tmp_path):
    with pytest.raises(DataError, match="at least one train note"):
        train(tmp_path, lengths=np.empty(0), groups=np.empty(0))


def test_slow_steps_are_logged_before_log_steps(uninterrupted, tmp_path, monkeypatch):
    """A step may take minutes; its checkpoint is written although `log_steps` steps have not passed."""

    class Dies(TinyNet):
        def forward(self, batch):
            if self.training and (tmp_path / CHECKPOINT).exists():
                raise DataError("died")
            return super().forward(batch)

    monkeypatch.setattr(trainer, "_LOG_SECONDS", 0)
    slow = SETTINGS.model_copy(update={"log_steps": 1000})
    with pytest.raises(DataError, match="died"):
        train(tmp_path, slow, net=Dies())
    assert train(tmp_path, slow).resumed_at == 1
    assert curves(tmp_path) == curves(uninterrupted)


def test_undefined_dev_score_is_an_error(tmp_path):
    with pytest.raises(DataError, match="map on the dev notes must be finite; got nan"):
        train(tmp_path, validate=lambda net: {"map": math.nan})


def test_one_line_per_epoch_without_a_terminal(tmp_path, capsys):
    train(tmp_path, title="tiny")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("tiny: epoch 3/3  loss 0.6")
    for part in ("  map 0.3", "  micro_f1 0.", " notes/s  0:00:00 left"):
        assert part in lines[2]


def test_bf16_losses_are_close_to_fp32(uninterrupted, tmp_path):
    train(tmp_path, SETTINGS.model_copy(update={"precision": "bf16"}))
    difference = abs(losses(tmp_path) - losses(uninterrupted))
    assert 0 < difference.max() < 0.02


def test_a_step_of_a_tiny_net_takes_milliseconds(tmp_path):
    """With label sampling, curves and TensorBoard."""
    notes = Notes(16 * 200)
    settings = SETTINGS.model_copy(
        update={"epochs": 2, "micro_tokens": 10**6, "micro_batches": 1, "checkpoint_minutes": 60}
    )
    data = {"lengths": notes.lengths, "groups": notes.groups, "make_batch": notes.batch, "prepare_step": notes.prepare}
    folders = (tmp_path / str(number) for number in itertools.count())

    def run() -> None:
        assert train(next(folders), settings, validate=None, **data).steps == 402

    assert_cpu_seconds(run, 402 * 0.015)  # 2 ms a step on an idle machine


def test_a_resumed_run_in_fp64_has_the_losses_of_an_uninterrupted_one(tmp_path):
    class StopsAtStep10(Notes):
        def prepare(self, notes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps > 10:
                raise InterruptedError
            return super().prepare(notes, rng)

    settings = SETTINGS.model_copy(update={"precision": "fp64", "log_steps": 1})
    train(tmp_path / "whole", settings)
    with pytest.raises(InterruptedError):
        train(tmp_path / "resumed", settings, prepare_step=StopsAtStep10().prepare)
    assert 0 < train(tmp_path / "resumed", settings).resumed_at < 18
    assert curves(tmp_path / "resumed") == curves(tmp_path / "whole")
    assert have_same_bytes(tmp_path / "resumed", tmp_path / "whole")


def test_stop_step_ends_the_run_within_an_epoch_and_validates(tmp_path, capsys):
    settings = SETTINGS.model_copy(update={"epochs": 4, "stop_step": 3})
    result = train(tmp_path / "short", settings)
    assert re.search(r"  0:00:00 left, until \d\d:\d\d$", capsys.readouterr().err)
    whole = train(tmp_path / "whole", settings.model_copy(update={"stop_step": 0}), validate=None)
    assert (result.steps, result.epochs, result.best_epoch) == (3, 1, 1) and whole.steps > 2 * result.steps
    assert 0 < result.notes < whole.notes and result.metrics and result.validation_seconds > 0
    again = train(tmp_path / "short", settings)
    assert (again.steps, again.resumed_at, again.metrics) == (3, 3, result.metrics)


def test_stop_epoch_ends_the_run_on_the_schedule_of_all_epochs(tmp_path, capsys):
    results = {}
    for stop_epoch in (0, 2):
        settings = SETTINGS.model_copy(update={"epochs": 4, "stop_epoch": stop_epoch})
        results[stop_epoch] = train(tmp_path / str(stop_epoch), settings, validate=None)
    assert (results[0].epochs, results[2].epochs) == (4, 2)
    assert list(losses(tmp_path / "2")) == list(losses(tmp_path / "0"))[: results[2].steps]
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert "epoch 2/2" in last_line and re.search(r"0:00:00 left, until \d\d:\d\d$", last_line)
