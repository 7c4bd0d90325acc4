"""Training for some epochs of a longer run."""

import numpy as np
import pytest
import torch

from nosology.models.heads.heads_net import VectorNotes, build_head
from nosology.models.heads.heads_settings import HeadShape
from nosology.training.data_loader import make_batch_plan
from nosology.training.epoch_range import train_epoch_range
from nosology.training.parameter_groups import ParameterGroup, make_adamw
from nosology.training.recipe_settings import TrainerSettings


@pytest.mark.parametrize("epochs", [0, 12])
def test_no_group_stays_frozen_after_the_epochs(epochs):
    net, settings = build_head(HeadShape(widths=[4]), 3, 2, seed=0), TrainerSettings(epochs=epochs, batch=4)
    notes = VectorNotes(torch.randn(8, 3), torch.ones(8, 2, dtype=torch.uint8))
    hidden, out = list(net.hidden.parameters()), list(net.out.parameters())
    groups = [ParameterGroup(out), ParameterGroup(hidden, start_epoch=2)]
    before = [weight.clone() for weight in hidden]
    plan = make_batch_plan(np.ones(8, np.int64), np.zeros(8, np.int64), settings, 0, torch.device("cpu"))
    optimizer = make_adamw([group.parameters for group in groups], settings)

    def make_batch(rows, shared):
        return notes.batch(torch.from_numpy(rows), torch.tensor(0))

    train_epoch_range(net, plan, make_batch, None, settings, range(1), optimizer, parameter_groups=groups)
    assert all(torch.equal(*pair) for pair in zip(hidden, before)), "the group starts later"
    assert all(weight.requires_grad for weight in net.parameters())
