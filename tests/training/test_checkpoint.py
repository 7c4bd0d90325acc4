"""Checkpoints: exact resume, deterministic bytes, checkpoints of other runs are ignored."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import torch
from torch import nn

from nosology.core import DataError, OutputError
from nosology.training.checkpoint import Checkpoints, TrainingState
from nosology.training.run_folder import BEST, CHECKPOINT


class TiedNet(nn.Module):
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


def net_and_optimizer(seed: int) -> tuple[TiedNet, torch.optim.Optimizer]:
    net = TiedNet(seed)
    return net, torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.1)


def take_steps(net: TiedNet, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for i in range(steps):
        net(torch.tensor([i % 5, 1, 4])).backward()
        optimizer.step()
        optimizer.zero_grad()


def are_equal(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_resume_is_exact(tmp_path):
    net, optimizer = net_and_optimizer(0)
    take_steps(net, optimizer, 3)
    state = TrainingState(epoch=1, epoch_steps=2, step=3, best_score=0.5, epochs_without_improvement=1)
    Checkpoints(tmp_path, "x").save(net, optimizer, state)
    resumed, resumed_optimizer = net_and_optimizer(1)
    assert Checkpoints(tmp_path, "x").load(resumed, resumed_optimizer) == state
    assert are_equal(net, resumed)
    take_steps(net, optimizer, 4)
    take_steps(resumed, resumed_optimizer, 4)
    assert are_equal(net, resumed)
    assert resumed.out.weight is resumed.embed.weight


def test_same_run_gives_same_bytes(tmp_path):
    for name in "ab":
        net, optimizer = net_and_optimizer(0)
        take_steps(net, optimizer, 2)
        Checkpoints(tmp_path / name, "x").save(net, optimizer, TrainingState(step=2))
    assert (tmp_path / "a" / CHECKPOINT).read_bytes() == (tmp_path / "b" / CHECKPOINT).read_bytes()


def test_checkpoint_of_another_run_is_ignored_and_not_deleted(tmp_path):
    net, optimizer = net_and_optimizer(0)
    Checkpoints(tmp_path, "x").save(net, optimizer, TrainingState(step=9))
    new, new_optimizer = net_and_optimizer(1)
    assert Checkpoints(tmp_path, "y").load(new, new_optimizer) is None
    assert are_equal(new, net_and_optimizer(1)[0])
    assert Checkpoints(tmp_path, "x").load(new, new_optimizer) == TrainingState(step=9)


def test_best_weights_are_loaded_with_their_summary(tmp_path):
    net, loaded = net_and_optimizer(0)[0], net_and_optimizer(1)[0]
    Checkpoints(tmp_path, "x").save_best(net, {"epoch": 2, "metrics": {"map": 0.25}})
    assert Checkpoints(tmp_path, "x").load_best(loaded) == {"epoch": 2, "metrics": {"map": 0.25}}
    assert are_equal(net, loaded)
    with pytest.raises(DataError, match="another training run"):
        Checkpoints(tmp_path, "y").load_best(loaded)


def test_broken_file_and_another_net_are_errors(tmp_path):
    net, optimizer = net_and_optimizer(0)
    checkpoints = Checkpoints(tmp_path, "x")
    checkpoints.save(net, optimizer, TrainingState())
    wider = nn.Linear(3, 6)
    with pytest.raises(DataError, match="is of another net; delete it"):
        checkpoints.load(wider, torch.optim.AdamW(wider.parameters()))
    checkpoints.path.write_bytes(checkpoints.path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cannot read the checkpoint .*; delete it"):
        checkpoints.load(net, optimizer)


def test_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        Checkpoints(tmp_path / "file" / "run", "x").prepare()


def test_temporary_files_of_a_killed_run_are_deleted(tmp_path):
    temporary = [tmp_path / f".{name}.12345678.partial" for name in (CHECKPOINT, BEST)]
    unrelated = tmp_path / ".other.partial"
    for path in [*temporary, unrelated]:
        path.write_bytes(b"half")
    Checkpoints(tmp_path, "x").prepare()
    assert list(tmp_path.iterdir()) == [unrelated]


def test_a_flipped_bit_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.prepare()
    net, optimizer = net_and_optimizer(0)
    take_steps(net, optimizer, 2)
    checkpoints.save(net, optimizer, TrainingState(step=2))
    checkpoints.save_best(net, {"epoch": 1})
    generator = random.Random(0)
    for path, load in (
        (checkpoints.path, lambda: checkpoints.load(*net_and_optimizer(1))),
        (checkpoints.best, lambda: checkpoints.load_best(TiedNet(1))),
    ):
        intact = path.read_bytes()
        for _ in range(60):
            damaged = bytearray(intact)
            damaged[generator.randrange(len(intact))] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
            with suppress(DataError):
                assert load() is None  # the flipped bit is in the fingerprint: a checkpoint of another run
        path.write_bytes(intact)
        assert load() in (TrainingState(step=2), {"epoch": 1})
