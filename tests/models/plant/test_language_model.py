"""Tests of the language model: state, tied embeddings, resume, loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from nosology.encoders.dropout_rates import NO_DROPOUT
from nosology.encoders.tokenizers import PAD, TokenIds
from nosology.encoders.word_encoders import AwdLstm, locked_dropout
from nosology.models.plant.language_model import LanguageModel, StreamBatch, StreamPlan, TextStreams, next_word_loss
from nosology.training.recipe_settings import TrainerSettings
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingRun

WORDS = 23


def net(**dropout: float) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(AwdLstm(WORDS, size=5, hidden=7, layers=2, dropout=NO_DROPOUT.model_copy(update=dropout)), 3)
    with torch.no_grad():
        model.encoder.encoder.weight.mul_(10)  # so that the state has an effect
    return model


def windows(width: int, total: int = 24) -> list[StreamBatch]:
    text = torch.randint(2, WORDS, (3, total + 1), generator=torch.Generator().manual_seed(1))
    return [
        StreamBatch(text[:, at : at + width], text[:, at + 1 : at + width + 1], at == 0)
        for at in range(0, total, width)
    ]


def test_state_is_carried_over_windows_within_an_epoch():
    model = net().eval()
    with torch.no_grad():
        expected = float(model(windows(24)[0]))
        parts = [float(model(part)) for part in windows(6)]
        again = float(model(windows(6)[0]))
        separate = [float(model(StreamBatch(part.tokens, part.targets, True))) for part in windows(6)]
    assert np.mean(parts) == pytest.approx(expected, rel=1e-6)
    assert again == pytest.approx(parts[0], rel=1e-6)  # the state is reset at the start of an epoch
    assert abs(np.mean(separate) - expected) > 1e-4


def test_activation_regularization_equals_its_formula():
    """AR is the mean square of the states after dropout, TAR that of the differences of neighbouring states."""
    [batch] = windows(24)
    plain, both = net().eval(), net().eval()
    both.ar, both.tar = 2.0, 1.0
    with torch.no_grad():
        states = both.encoder(batch.tokens, None)[0]
        expected = float(plain(batch)) + 2 * states.square().mean() + (states[:, 1:] - states[:, :-1]).square().mean()
        assert float(both(batch)) == pytest.approx(float(expected), rel=1e-6)
        dropping = net(output=0.5).train()
        dropping.ar = 2.0
        torch.manual_seed(3)
        loss = float(dropping(batch))
        torch.manual_seed(3)
        dropped = locked_dropout(dropping.encoder(batch.tokens, None)[0], 0.5, True)
        dropping.ar = 0.0
        torch.manual_seed(3)
        assert loss == pytest.approx(float(dropping(batch)) + 2 * float(dropped.square().mean()), rel=1e-6)


def test_gradient_stops_at_the_start_of_a_window():
    """Gradients of the second window treat the state as a constant."""
    model = net().train()
    first, second = windows(12)
    model(first).backward()
    assert not any(buffer.requires_grad for buffer in model.buffers())
    state = tuple((hidden.clone(), cell.clone()) for hidden, cell in model._state())
    model.zero_grad()
    model(second).backward()
    states, _ = model.encoder(second.tokens, state)
    logits = states.flatten(0, 1) @ model.encoder.encoder.weight.T + model.bias
    expected = torch.autograd.grad(
        torch.nn.functional.cross_entropy(logits, second.targets.flatten()), list(model.parameters())
    )
    for parameter, gradient in zip(model.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_input_and_output_embeddings_are_tied():
    model = net()
    assert [name for name, value in model.named_parameters() if value.shape == (WORDS, 5)] == ["encoder.encoder.weight"]
    batch = StreamBatch(torch.full((3, 4), 2), torch.full((3, 4), 9), True)
    model(batch).backward()
    assert model.encoder.encoder.weight.grad[9].abs().sum() > 0  # word 9 is only a target


def test_run_stopped_within_an_epoch_resumes_exactly(tmp_path):
    """The state of the LSTM is in the checkpoint."""
    rng = np.random.default_rng(0)
    texts = [TokenIds(rng.integers(2, WORDS, 30)) for _ in range(4)]
    plan = StreamPlan.of(texts, 3, 5, 0)
    settings = TrainerSettings(
        epochs=2, batch=3, warmup=0, micro_batches=1, log_steps=1, checkpoint_minutes=0, learning_rate=1e-2
    )
    finished = []
    for folder, stop in (("whole", None), ("stopped", 11), ("stopped", None)):
        model, streams, steps = net(weight=0.3, input=0.2), TextStreams(texts, plan), []

        def batch(rows, _, streams=streams, steps=steps, stop=stop):
            steps.append(int(rows[0]))
            if stop is not None and steps[-1] >= stop:
                raise KeyboardInterrupt
            return streams.batch(rows)

        inputs = {"lengths": plan.lengths, "groups": plan.groups, "plan": plan, "make_batch": batch, "seed": 0}
        try:
            fit(TrainingRun(model, settings, run_folder=tmp_path / folder, fingerprint="", **inputs))
        except KeyboardInterrupt:
            assert len(plan) < steps[-1]  # in the middle of the second epoch
            continue
        finished.append((steps[0], {name: value.clone() for name, value in model.state_dict().items()}))
    assert finished[0][0] == 0 and finished[1][0] > len(plan)
    for name, value in finished[0][1].items():
        torch.testing.assert_close(finished[1][1][name], value, atol=0, rtol=0)


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_next_word_loss_equals_that_of_torch(chunk):
    torch.manual_seed(0)
    leaves = [torch.randn(*shape).requires_grad_() for shape in ((12, 6), (30, 6), (30,))]
    targets = torch.randint(PAD + 1, 30, (12,))
    targets[[2, 7]] = PAD
    expected = cross_entropy(leaves[0] @ leaves[1].T + leaves[2], targets, ignore_index=PAD)
    actual = next_word_loss(*leaves, targets, chunk=chunk)
    torch.testing.assert_close(actual, expected)
    for a, b in zip(*(torch.autograd.grad(3 * loss, leaves) for loss in (actual, expected))):
        torch.testing.assert_close(a, b)


def test_next_word_loss_of_padding_is_zero():
    states = torch.randn(4, 6, requires_grad=True)
    loss = next_word_loss(states, torch.randn(9, 6), torch.zeros(9), torch.full((4,), PAD))
    loss.backward()
    assert float(loss.detach()) == 0 and (states.grad == 0).all()
