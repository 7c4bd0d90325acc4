"""The loop: the gradient of the whole batch, the same losses after a kill and on two processes, the best kept."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nosology.core import ConfigError, DataError
from nosology.training import trainer
from nosology.training.checkpoint import BEST, CHECKPOINT
from nosology.training.recipe_settings import LearningRateSchedule, TrainerSettings, resolve_schedule
from nosology.training.trainer import TrainingRun, fit
from nosology.training.training_log import ProgressDisplay
from tests.training.loop_program import SETTINGS, Notes, TinyNet, train, train_gradually

PROGRAM = [sys.executable, "-m", "tests.training.loop_program"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a run that nothing interrupted."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def curves(folder: Path) -> list[list[str]]:
    """All rows without the speed, which alone may differ."""
    with (folder / "curves.csv").open() as file:
        return [row[:4] + row[5:] for row in csv.reader(file)]


def losses(folder: Path) -> np.ndarray:
    return np.array([float(row[2]) for row in curves(folder)[1:]])


def same_bytes(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in (CHECKPOINT, BEST))


def test_curves_have_every_step_and_dev_once_an_epoch(whole):
    header, *rows = curves(whole)
    assert header == ["step", "epoch", "loss", "learning_rate", "map", "micro_f1"]
    assert [int(row[0]) for row in rows] == list(range(1, 19))
    assert [int(row[0]) for row in rows if row[4]] == [6, 12, 18]
    schedule = resolve_schedule(SETTINGS, 6)
    assert [float(row[3]) for row in rows] == [0.02 * schedule.factor(step) for step in range(18)]
    assert losses(whole)[-6:].mean() < losses(whole)[:6].mean() - 0.02
    assert any((whole / "tensorboard").iterdir())


def test_kill_9_at_any_moment_changes_nothing(whole, tmp_path):
    never = {"checkpoint_minutes": 1000}
    runs = [
        *({"folder": "steps", "call": call} for call in (2, 9, 14, 20)),  # forward passes until it dies
        *({"folder": "steps", "writing": at} for at in (1, 2)),
        {"folder": "steps", "best": 1},
        {"folder": "steps"},
        *({"folder": "epochs", "call": call, "settings": never} for call in (20, 20)),  # checkpoints of epochs alone
        {"folder": "epochs", "settings": never},
    ]
    ended = subprocess.run(
        [*PROGRAM, str(tmp_path), json.dumps(runs)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    kills = [-9 if {"call", "writing", "best"} & run.keys() else 0 for run in runs]
    assert [int(line) for line in ended.stdout.split()] == kills, ended.stderr
    assert ended.stderr.count("resumes at step") >= 6
    for name in ("steps", "epochs"):
        assert curves(tmp_path / name) == curves(whole)
        assert same_bytes(tmp_path / name, whole)
        assert not list((tmp_path / name).glob(".*partial"))


@pytest.mark.parametrize("gradual", [False, True], ids=["all learns", "a part begins later"])
def test_two_processes_give_the_losses_of_one(whole, tmp_path, gradual):
    if gradual:
        train_gradually(whole := tmp_path / "one")
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    program = [*PROGRAM[:2], *launcher, PROGRAM[2], str(tmp_path), *(["gradual"] if gradual else [])]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("epoch 3/3") == 1  # one of the two speaks
    np.testing.assert_allclose(losses(tmp_path), losses(whole), rtol=0, atol=1e-5)
    ours, theirs = load_file(whole / "best.safetensors"), load_file(tmp_path / "best.safetensors")
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-4)


def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch(tmp_path):
    """Without dropout the losses do not depend on how a step is cut, and are those of plain torch."""
    settings = SETTINGS.model_copy(update={"epochs": 2, "clip": 0.0, "warmup": 0})
    cuts = {"small": 40, "large": 10**6}
    for name, tokens in cuts.items():
        train(tmp_path / name, settings.model_copy(update={"micro_tokens": tokens}), TinyNet(dropout=0))
    np.testing.assert_allclose(losses(tmp_path / "small"), losses(tmp_path / "large"), rtol=0, atol=1e-6)

    notes, net, seen = Notes(), TinyNet(dropout=0), []

    def prepare(step: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        seen.append((step, notes.prepare(step, rng)))
        return seen[-1][1]

    train(tmp_path / "seen", settings.model_copy(update={"micro_tokens": 40}), net, prepare_step=prepare)
    plain = TinyNet(dropout=0)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=settings.weight_decay)
    schedule, found = resolve_schedule(settings, 6), []
    for step in range(schedule.steps):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * schedule.factor(step)
        loss = plain(notes.batch(*seen[step]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    np.testing.assert_allclose(losses(tmp_path / "seen"), found, rtol=0, atol=1e-6)


def test_the_best_weights_are_kept_and_patience_ends_the_run(tmp_path):
    scores, kept = iter([0.1, 0.3, 0.2, 0.3, 0.25, 0.9]), []

    def validate(net) -> dict[str, float]:
        assert not net.training and not torch.is_grad_enabled()
        kept.append({name: value.clone() for name, value in net.state_dict().items()})
        return {"map": next(scores), "micro_f1": 0.0}

    net = TinyNet()
    settings = SETTINGS.model_copy(update={"epochs": 9, "patience": 3})
    fitted = train(tmp_path, settings, net, validate=validate)
    assert (fitted.epochs, fitted.best_epoch, fitted.steps) == (5, 2, 30)  # as good is not better
    assert fitted.metrics == {"map": 0.3, "micro_f1": 0.0}
    assert all(torch.equal(value, kept[1][name]) for name, value in net.state_dict().items())
    assert 0 < fitted.pads < 0.5 and fitted.notes_per_second > 0

    again = TinyNet()  # what has ended is not trained any further
    fitted = train(tmp_path, settings, again, validate=validate)
    assert (fitted.epochs, fitted.best_epoch, fitted.resumed_at) == (5, 2, 30)
    assert all(torch.equal(value, kept[1][name]) for name, value in again.state_dict().items())


def test_without_validation_the_last_weights_are_the_result(tmp_path):
    fitted = train(tmp_path, validate=None)
    assert (fitted.best_epoch, fitted.metrics) == (3, {})


def test_another_fingerprint_setting_or_corpus_begins_anew(whole, tmp_path, capsys):
    short = SETTINGS.model_copy(update={"epochs": 1})
    train(tmp_path, short)
    before = curves(tmp_path)
    for change in ({"fingerprint": "other"}, {"seed": 4}, {"groups": None}):
        notes = Notes()
        data = {
            "lengths": notes.lengths,
            "groups": notes.groups,
            "make_batch": notes.batch,
            "prepare_step": notes.prepare,
        }
        given = data | {"fingerprint": "tiny", "seed": 3} | change
        if given["groups"] is None:
            given["groups"] = np.zeros(len(notes.lengths))
        assert fit(TrainingRun(TinyNet(), short, run_folder=tmp_path, **given)).resumed_at == 0
        assert "is of another recipe, corpus or version; starts from the beginning" in capsys.readouterr().err
    assert train(tmp_path, short).resumed_at == 0
    assert curves(tmp_path) == before
    assert train(tmp_path, short.model_copy(update={"checkpoint_minutes": 3.0, "log_steps": 7})).resumed_at == 6


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path):
    class Broken(TinyNet):
        def forward(self, batch):
            loss = super().forward(batch)
            return loss * math.nan if self.calls > 60 else loss

    with pytest.raises(ConfigError, match=r"the loss is not finite after step (1[0-8]): .*learning_rate must be lower"):
        train(tmp_path, SETTINGS.model_copy(update={"micro_tokens": 64}), Broken(), validate=None)
    with (tmp_path / "curves.csv").open() as file:
        assert "nan" not in file.read()
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "checkpoint.safetensors").values())


def test_a_weight_that_is_not_finite_never_reaches_a_checkpoint(tmp_path):
    class Broken(TinyNet):
        def forward(self, batch):
            with torch.no_grad():
                self.embed.weight[0] = math.inf  # of the pad: no loss shows it
            return super().forward(batch.__class__(batch.tokens.clamp(min=1), *list(vars(batch).values())[1:]))

    with pytest.raises(ConfigError, match="a weight is not finite after step 2"):
        train(tmp_path, net=Broken())
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_what_fails_in_the_thread_fails_the_run(tmp_path):
    def broken(notes, shared):
        raise DataError("no batch")

    notes = Notes()
    with pytest.raises(DataError, match="no batch"):
        fit(
            TrainingRun(
                TinyNet(),
                SETTINGS,
                lengths=notes.lengths,
                groups=notes.groups,
                make_batch=broken,
                run_folder=tmp_path,
                fingerprint="",
                seed=0,
            )
        )
    with pytest.raises(DataError, match="at least one train note"):
        fit(
            TrainingRun(
                TinyNet(),
                SETTINGS,
                lengths=np.empty(0),
                groups=np.empty(0),
                make_batch=broken,
                run_folder=tmp_path,
                fingerprint="",
                seed=0,
            )
        )


def test_slow_steps_do_not_wait_for_the_next_look(whole, tmp_path, monkeypatch):
    """A step may take minutes; what was learned by then is on disk though `log_steps` has not passed."""

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
    assert curves(tmp_path) == curves(whole)


def test_dev_without_a_score_is_answered(tmp_path):
    with pytest.raises(DataError, match="map on the dev notes must be finite; got nan"):
        train(tmp_path, validate=lambda net: {"map": math.nan})


def test_one_line_an_epoch_where_nobody_watches(tmp_path, capsys):
    train(tmp_path, title="tiny")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("tiny: epoch 3/3  loss 0.6")
    for part in ("  map 0.3", "  micro_f1 0.", " notes/s  0:00:00 left"):
        assert part in lines[2]


@pytest.mark.parametrize(("rate", "shown"), [(0.214, "0.21 notes/s"), (12.6, "13 notes/s"), (1234.5, "1,234 notes/s")])
def test_a_slow_pace_is_not_zero(rate, shown, capsys):
    ProgressDisplay("tiny", 1, 10, 0).end_epoch(0, 10, 0.5, {}, rate)
    assert f"  {shown}  " in capsys.readouterr().err


def test_bf16_trains_too(whole, tmp_path):
    train(tmp_path, SETTINGS.model_copy(update={"precision": "bf16"}))
    difference = abs(losses(tmp_path) - losses(whole))
    assert 0 < difference.max() < 0.02


def test_the_loop_itself_takes_little_time(tmp_path):
    """Milliseconds a step with label sampling, curves and TensorBoard, the tiny net's own included."""
    notes = Notes(16 * 200)
    settings = SETTINGS.model_copy(
        update={"epochs": 2, "micro_tokens": 10**6, "micro_batches": 1, "checkpoint_minutes": 60}
    )
    data = {"lengths": notes.lengths, "groups": notes.groups, "make_batch": notes.batch, "prepare_step": notes.prepare}
    started = time.process_time()
    fitted = fit(TrainingRun(TinyNet(), settings, run_folder=tmp_path, fingerprint="", seed=0, **data))
    assert fitted.steps == 402
    assert (time.process_time() - started) / fitted.steps < 0.015  # 2 ms on an idle machine


def test_schedules():
    linear = LearningRateSchedule("linear", 1, 110, 10)
    assert [linear.factor(step) for step in (0, 4, 9, 10, 60)] == [0.1, 0.5, 1.0, 1.0, 0.5]
    assert linear.factor(109) == pytest.approx(0.01)
    cosine = LearningRateSchedule("cosine", 1, 110, 10)
    assert [cosine.factor(step) for step in (9, 10, 60)] == [1.0, 1.0, pytest.approx(0.5)]
    assert 0 < cosine.factor(109) < 0.001
    assert [LearningRateSchedule("constant", 1, 110, 10).factor(step) for step in (0, 10, 109)] == [0.1, 1.0, 1.0]
    assert LearningRateSchedule("linear", 1, 3, 0).factor(0) == 1.0


@pytest.mark.parametrize(
    ("steps", "epochs", "warmup"), [(4000, 10, 2000), (100, 30, 300), (7, 60, 42), (301, 10, 301), (299, 11, 328)]
)
def test_epochs_that_a_recipe_leaves_open(steps, epochs, warmup):
    found = resolve_schedule(TrainerSettings(), steps)
    assert (found.epochs, found.steps, found.warmup) == (epochs, epochs * steps, warmup)


def test_epochs_that_a_recipe_names():
    found = resolve_schedule(TrainerSettings(epochs=2, warmup=5, schedule="cosine"), 30)
    assert found == LearningRateSchedule("cosine", 2, 60, 5)


def test_a_run_may_leave_its_schedule_early(tmp_path, capsys):
    notes = Notes(40)
    data = {"lengths": notes.lengths, "groups": notes.groups, "make_batch": notes.batch, "prepare_step": notes.prepare}
    ends = {}
    for name, after in (("whole", 0), ("left", 2)):
        settings = SETTINGS.model_copy(update={"epochs": 4, "stop_epoch": after})
        torch.manual_seed(0)
        ends[name] = fit(TrainingRun(TinyNet(), settings, run_folder=tmp_path / name, fingerprint="", seed=0, **data))
    assert (ends["whole"].epochs, ends["left"].epochs) == (4, 2)
    assert list(losses(tmp_path / "left")) == list(losses(tmp_path / "whole"))[: ends["left"].steps]
    told = capsys.readouterr().err.splitlines()[-1]
    assert "epoch 2/2" in told and told.endswith("0:00:00 left"), "no time is left when it leaves"
