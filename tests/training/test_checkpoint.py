"""Checkpoints: all comes back bit by bit, another run's is passed over, and nothing of it is a pickle."""

from __future__ import annotations

import csv
import time

import pytest
import torch
from torch import nn

from nosology.core import DataError, OutputError
from nosology.training.checkpoint import BEST, CHECKPOINT, Checkpoints, TrainingState
from nosology.training.training_log import TrainingCurves


class Tied(nn.Module):
    """A net with a shared weight, a buffer, a frozen and an unused parameter."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(5)
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.out(self.embed(x))).square().mean()


def made(seed: int) -> tuple[Tied, torch.optim.Optimizer]:
    net = Tied(seed)
    return net, torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.1)


def walk(net: Tied, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for i in range(steps):
        net(torch.tensor([i % 5, 1, 4])).backward()
        optimizer.step()
        optimizer.zero_grad()


def same(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_run_goes_on_bit_by_bit(tmp_path):
    net, optimizer = made(0)
    walk(net, optimizer, 3)
    state = TrainingState(epoch=1, epoch_steps=2, step=3, best_score=0.5, epochs_without_improvement=1)
    Checkpoints(tmp_path, "x").save(net, optimizer, state)
    other, other_optimizer = made(1)
    assert Checkpoints(tmp_path, "x").load(other, other_optimizer) == state
    assert same(net, other)
    for one, its in ((net, optimizer), (other, other_optimizer)):
        walk(one, its, 4)
    assert same(net, other)
    assert other.out.weight is other.embed.weight


def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in "ab":
        net, optimizer = made(0)
        walk(net, optimizer, 2)
        Checkpoints(tmp_path / name, "x").save(net, optimizer, TrainingState(step=2))
    assert (tmp_path / "a" / CHECKPOINT).read_bytes() == (tmp_path / "b" / CHECKPOINT).read_bytes()


def test_another_runs_checkpoint_is_passed_over_and_stays(tmp_path):
    net, optimizer = made(0)
    Checkpoints(tmp_path, "x").save(net, optimizer, TrainingState(step=9))
    other, other_optimizer = made(1)
    assert Checkpoints(tmp_path, "y").load(other, other_optimizer) is None
    assert same(other, made(1)[0])
    assert Checkpoints(tmp_path, "x").load(other, other_optimizer) == TrainingState(step=9)


def test_best_weights_come_back_with_what_was_said_of_them(tmp_path):
    net, other = made(0)[0], made(1)[0]
    Checkpoints(tmp_path, "x").save_best(net, {"epoch": 2, "metrics": {"map": 0.25}})
    assert Checkpoints(tmp_path, "x").load_best(other) == {"epoch": 2, "metrics": {"map": 0.25}}
    assert same(net, other)
    with pytest.raises(DataError, match="another training run"):
        Checkpoints(tmp_path, "y").load_best(other)


def test_a_broken_file_and_another_net_are_answered(tmp_path):
    net, optimizer = made(0)
    kept = Checkpoints(tmp_path, "x")
    kept.save(net, optimizer, TrainingState())
    wider = nn.Linear(3, 6)
    with pytest.raises(DataError, match="is of another net; delete it"):
        kept.load(wider, torch.optim.AdamW(wider.parameters()))
    kept.path.write_bytes(kept.path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cannot read the checkpoint .*; delete it"):
        kept.load(net, optimizer)


def test_a_folder_that_cannot_be_made_is_answered(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        Checkpoints(tmp_path / "file" / "run", "x").prepare()


def test_what_a_killed_run_was_writing_is_cleared_away(tmp_path):
    litter = [tmp_path / f".{name}.12345678.partial" for name in (CHECKPOINT, BEST)]
    other = tmp_path / ".other.partial"
    for path in [*litter, other]:
        path.write_bytes(b"half")
    Checkpoints(tmp_path, "x").prepare()
    assert list(tmp_path.iterdir()) == [other]


def rows(folder) -> list[dict[str, str]]:
    with (folder / "curves.csv").open() as file:
        return list(csv.DictReader(file))


def add(curves: TrainingCurves, step: int, **metrics: float) -> None:
    curves.add({"step": step, "epoch": 1, "loss": 1 / step, "learning_rate": 0.1, "notes_per_second": 5.0} | metrics)


def test_curves_are_cut_where_a_run_goes_on(tmp_path):
    curves = TrainingCurves(tmp_path)
    for step in range(1, 13):
        add(curves, step, **({"map": 0.5} if step == 4 else {}))
    curves.close()
    whole = (tmp_path / "curves.csv").read_text()
    with (tmp_path / "curves.csv").open("a") as file:
        file.write("13,1,0.0")  # a row that was being written
    curves = TrainingCurves(tmp_path, step=6)
    assert [row["step"] for row in rows(tmp_path)] == ["1", "2", "3", "4", "5", "6"]
    for step in range(7, 13):
        add(curves, step)
    curves.close()
    assert (tmp_path / "curves.csv").read_text() == whole
    assert [row["map"] for row in rows(tmp_path)] == [""] * 3 + ["0.5"] + [""] * 8
    TrainingCurves(tmp_path).close()
    assert rows(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe"])
def test_curves_that_are_none(tmp_path, content):
    (tmp_path / "curves.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"curves.csv must start with the columns .*; delete it"):
        TrainingCurves(tmp_path, step=6)


def test_tensorboard_reads_what_was_trained_and_not_what_was_cut_off(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TrainingCurves(tmp_path)
    for step in range(1, 6):
        add(first, step, map=0.1)
    first.close()
    begun = int(time.time())
    while int(time.time()) == begun:  # TensorBoard knows the order of files by the second
        time.sleep(0.05)
    second = TrainingCurves(tmp_path, step=3)
    add(second, 4, map=0.2)
    second.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["dev/map", "train/learning_rate", "train/loss", "train/notes_per_second"]
    values = [(event.step, round(event.value, 3)) for event in read.Scalars("dev/map")]
    assert values == [(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.2)]
