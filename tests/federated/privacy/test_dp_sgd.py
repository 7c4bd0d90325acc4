"""Tests of DP-SGD: per-note gradients, noise, accounting."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant

from nosology.core import ConfigError
from nosology.federated.privacy.dp_sgd import (
    PrivacyAccountant,
    add_noise,
    clipped_gradient,
    noise_for_epsilon,
    secure_generator,
    train_epochs_private,
)
from nosology.models.heads.heads_net import HeadNet, VectorNotes, train_epochs
from nosology.models.heads.heads_settings import HeadShape
from nosology.training.recipe_settings import TrainerSettings

DIM, LABELS = 12, 7
HEADS = {
    "mlp": HeadShape(head="mlp", widths=[9], dropout=0.0),
    "deep": HeadShape(head="deep", widths=[9, 8, 8], norm="layer", dropout=0.0),
    "res": HeadShape(head="res", widths=[9, 8, 8], norm="layer", dropout=0.0),
}
LOOP = TrainerSettings(epochs=4, batch=16, learning_rate=0.01, warmup=0, schedule="cosine")


def make_net(head: str, notes: int = 40, seed: int = 0, label_mask: bool = False) -> tuple[HeadNet, VectorNotes]:
    torch.manual_seed(seed)
    vectors = torch.randn(notes, DIM)
    targets = (vectors @ torch.randn(DIM, LABELS) > 1).to(torch.uint8)
    which = (torch.arange(LABELS) % 3 > 0).float() if label_mask else None
    return HeadNet(HEADS[head], DIM, LABELS), VectorNotes(vectors, targets, which)


def one_by_one(net: HeadNet, notes: VectorNotes) -> list[torch.Tensor]:
    """The gradient of each note, all parameters in one vector, by plain autograd."""
    result = []
    for row in range(len(notes)):
        net.zero_grad()
        net(notes.batch(torch.tensor([row]), torch.tensor(0))).backward()
        result.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    return result


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("label_mask", [False, True])
@pytest.mark.parametrize("clip", [1e6, 0.05, 1e-3])
def test_clipped_gradient_equals_sum_of_clipped_note_gradients(head, label_mask, clip):
    net, notes = make_net(head, label_mask=label_mask)
    net.train()
    single = one_by_one(net, notes)
    expected = sum(g * min(1, clip / float(g.norm())) for g in single)
    net.zero_grad()
    losses, norms = clipped_gradient(net, notes.batch(torch.arange(len(notes)), torch.tensor(0)), clip)
    got = torch.cat([p.grad.flatten() for p in net.parameters()])
    assert torch.allclose(norms, torch.stack([g.norm() for g in single]), rtol=1e-5, atol=1e-7)
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert got.norm() <= clip * len(notes)
    assert float(losses.mean()) == pytest.approx(net(notes.batch(torch.arange(len(notes)), torch.tensor(0))).item())
    if clip < 1:
        assert (norms > clip).all(), "the clip must bind for the test to say something"


@pytest.mark.parametrize("head", HEADS)
def test_clipped_gradient_of_single_notes(head):
    """A batch of one note gives that note's gradient, so every per-note gradient is checked, not their sum alone."""
    net, notes = make_net(head, notes=6)
    single = one_by_one(net, notes)
    for row, expected in enumerate(single):
        net.zero_grad()
        clipped_gradient(net, notes.batch(torch.tensor([row]), torch.tensor(0)), 1e6)
        got = torch.cat([p.grad.flatten() for p in net.parameters()])
        assert torch.allclose(got, expected, atol=1e-5 * float(expected.abs().max()))


def test_noise_has_the_given_standard_deviation():
    parameters = [torch.nn.Parameter(torch.zeros(300, 400)), torch.nn.Parameter(torch.zeros(5000))]
    parameters[0].grad = torch.full((300, 400), 2.0)
    add_noise(parameters, scale=3.0, factor=0.5, generator=np.random.default_rng(1))
    for parameter, mean in zip(parameters, (1.0, 0.0)):
        n = parameter.numel()
        assert float(parameter.grad.mean()) == pytest.approx(mean, abs=5 * 1.5 / math.sqrt(n))
        assert float(parameter.grad.std()) == pytest.approx(1.5, rel=5 / math.sqrt(2 * n))


def test_step_is_clipped_mean_plus_noise():
    """SGD with learning rate 1 over all notes moves the weights by the clipped mean plus noise / notes."""
    net, notes = make_net("mlp", notes=16)  # one batch, so every note is drawn
    before = torch.cat([p.detach().flatten().clone() for p in net.parameters()])
    clip_update = sum(g * min(1, 0.01 / float(g.norm())) for g in one_by_one(net, notes)) / 16
    moves = []
    for seed in range(60):
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(before.clone(), net.parameters())
        sgd = torch.optim.SGD(net.parameters(), lr=1.0)
        flat = TrainerSettings(epochs=1, batch=16, learning_rate=1.0, warmup=0, schedule="constant")
        train_epochs_private(
            net,
            notes,
            flat,
            range(1),
            accountant=PrivacyAccountant(),
            noise_multiplier=2.0,
            clip=0.01,
            optimizer=sgd,
            seed=seed,
        )
        moves.append(before - torch.cat([p.detach().flatten() for p in net.parameters()]))
    noise = torch.stack(moves) - clip_update
    stated = 2.0 * 0.01 / 16
    assert float(noise.std()) == pytest.approx(stated, rel=5 / math.sqrt(2 * noise.numel()))
    assert float(noise.mean().abs()) < 5 * stated / math.sqrt(noise.numel())


def test_without_noise_and_clip_it_equals_train_epochs():
    """One batch of all notes, hardly any noise, a clip that never binds: the weights of the plain loop."""
    ours, notes = make_net("res", notes=16)
    plain, _ = make_net("res", notes=16)
    loss = train_epochs_private(
        ours, notes, LOOP, range(3), accountant=PrivacyAccountant(), noise_multiplier=1e-22, clip=1e3, seed=0
    )
    assert loss == pytest.approx(train_epochs(plain, notes, LOOP, range(3), seed=0), rel=1e-4)
    for a, b in zip(ours.parameters(), plain.parameters()):
        assert torch.allclose(a, b, atol=1e-4)
    assert not ours.out._forward_hooks


def test_penalty_is_not_clipped():
    net, notes = make_net("mlp", notes=16)
    with torch.no_grad():
        start = [p.clone() for p in net.parameters()]
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    flat = TrainerSettings(epochs=1, batch=16, learning_rate=1.0, warmup=0, schedule="constant")

    def penalty(net):
        return sum((p * 5).sum() for p in net.parameters())

    kwargs = {"accountant": PrivacyAccountant(), "noise_multiplier": 1e-9, "clip": 1e-6, "optimizer": sgd, "seed": 0}
    train_epochs_private(net, notes, flat, range(1), penalty=penalty, **kwargs)
    for p, before in zip(net.parameters(), start):
        assert torch.allclose(before - p, torch.full_like(p, 5.0), atol=1e-4)


def test_poisson_sampling_and_accounting():
    net, notes = make_net("mlp", notes=200)
    sizes = []
    original = VectorNotes.batch

    class Spied(VectorNotes):
        def batch(self, rows, seed):
            sizes.append(len(rows))
            return original(self, rows, seed)

    accountant = PrivacyAccountant()
    spied = Spied(notes.vectors, notes.targets)
    train_epochs_private(net, spied, LOOP, range(4), accountant=accountant, noise_multiplier=1.0, clip=1.0, seed=3)
    steps = math.ceil(200 / 16)
    assert accountant.history == [(1.0, 1 / steps, 4 * steps)]
    assert len(set(sizes)) > 4, "batches of Poisson sampling differ in size"
    assert np.mean(sizes) == pytest.approx(200 / steps, abs=5 * math.sqrt(200 / steps / len(sizes)))


def test_noise_without_seed_differs_between_runs():
    ends = []
    for seed in (None, None, 7, 7):
        net, notes = make_net("mlp")
        train_epochs_private(
            net, notes, LOOP, range(1), accountant=PrivacyAccountant(), noise_multiplier=1.0, clip=1.0, seed=seed
        )
        ends.append(net.out.weight.detach().clone())
    assert not torch.equal(ends[0], ends[1])
    assert torch.equal(ends[2], ends[3])


def test_noise_does_not_use_the_generator_of_torch():
    """torch's generator on a CPU keeps 32 bits of its seed: all of them can be tried, and the noise be taken off."""
    few, many = (torch.randn(8, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**40))
    assert torch.equal(few, many), "if torch keeps more by now, it may be used again"
    ends = []
    for _ in range(2):
        net, notes = make_net("mlp")
        torch.manual_seed(3)
        train_epochs_private(net, notes, LOOP, range(1), accountant=PrivacyAccountant(), noise_multiplier=1.0, clip=1.0)
        ends.append(net.out.weight.detach().clone())
    assert not torch.equal(*ends)
    states = [secure_generator().bit_generator.state["state"]["state"] for _ in range(8)]
    assert len(set(states)) == 8 and max(states) > 2**100


def test_batch_norm_is_refused():
    net = HeadNet(HeadShape(head="deep", widths=[9, 8, 8]), DIM, LABELS)
    _, notes = make_net("mlp")
    with pytest.raises(ConfigError, match=r'model.norm must be "layer".*got "batch"'):
        train_epochs_private(net, notes, LOOP, range(1), accountant=PrivacyAccountant(), noise_multiplier=1.0, clip=1.0)


def test_epsilon_equals_opacus_and_published_values():
    accountant, theirs, tighter = PrivacyAccountant(), RDPAccountant(), PRVAccountant()
    for noise, rate, steps in [(1.1, 256 / 60000, 14062), (1.5, 0.01, 100)]:
        accountant.add(noise, rate, steps)
        theirs.history.append((noise, rate, steps))
        tighter.history.append((noise, rate, steps))
    assert accountant.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)
    assert tighter.get_epsilon(1e-5) < accountant.epsilon(1e-5) < 1.25 * tighter.get_epsilon(1e-5)
    # MNIST tutorial of TensorFlow Privacy: 60 epochs, batch 256 of 60,000, noise 1.1, delta 1e-5: epsilon 3.01 with
    # the older conversion from Renyi; the new conversion gives less
    published = PrivacyAccountant([(1.1, 256 / 60000, 60 * 60000 // 256)])
    assert 2.4 < published.epsilon(1e-5) <= 3.01
    # the Gaussian mechanism in closed form: Renyi divergence a / (2 noise^2), the older conversion is an upper bound
    once = PrivacyAccountant([(5.0, 1.0, 1)])
    older = min(a / 50 + math.log(1e5) / (a - 1) for a in np.arange(1.1, 200, 0.1))
    assert 0.8 * older < once.epsilon(1e-5) <= older


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 8), st.floats(0.001, 1), st.integers(1, 300)), min_size=1, max_size=4))
def test_accountant_survives_json_and_only_grows(runs):
    accountant, spent = PrivacyAccountant(), 0.0
    for run in runs:
        accountant.add(*run)
        now = accountant.epsilon(1e-5)
        assert now >= spent - 1e-9
        spent = now
    again = PrivacyAccountant.from_json(json.loads(json.dumps(accountant.to_json())))
    assert again == accountant and again.epsilon(1e-5) == spent


def test_noise_for_an_epsilon():
    for epsilon in (1, 3, 8):
        noise = noise_for_epsilon(epsilon, 1e-5, 0.05, 500)
        assert epsilon * 0.98 < PrivacyAccountant([(noise, 0.05, 500)]).epsilon(1e-5) <= epsilon


@pytest.mark.parametrize("bad", [(0.0, 0.5), (1.0, 0.0), (1.0, 1.5), (math.nan, 0.5)])
def test_accountant_refuses_invalid_values(bad):
    with pytest.raises(ValueError):
        PrivacyAccountant().add(*bad)
