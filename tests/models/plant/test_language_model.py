"""The language model: its state goes over windows and not over epochs, one table of vectors, exact resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.encoders.word_encoders import AwdLstm, DropoutRates
from nosology.models.plant.language_model import LanguageModel
from nosology.models.plant.text_streams import StreamBatch, StreamPlan, TextStreams
from nosology.training.recipe_settings import TrainerSettings
from nosology.training.trainer import TrainingRun, fit

WORDS = 23


def net(**drop: float) -> LanguageModel:
    torch.manual_seed(0)
    made = LanguageModel(AwdLstm(WORDS, size=5, hidden=7, layers=2, drop=DropoutRates(**drop)), 3)
    with torch.no_grad():
        made.encoder.encoder.weight.mul_(10)  # so that what was read before matters
    return made


def windows(width: int, total: int = 24) -> list[StreamBatch]:
    text = torch.randint(2, WORDS, (3, total + 1), generator=torch.Generator().manual_seed(1))
    return [
        StreamBatch(text[:, at : at + width], text[:, at + 1 : at + width + 1], at == 0)
        for at in range(0, total, width)
    ]


def test_the_state_goes_over_windows_and_ends_with_a_stream():
    model = net().eval()
    with torch.no_grad():
        whole = float(model(windows(24)[0]))
        parts = [float(model(part)) for part in windows(6)]
        again = float(model(windows(6)[0]))
        apart = [float(model(StreamBatch(part.tokens, part.targets, True))) for part in windows(6)]
    assert np.mean(parts) == pytest.approx(whole, rel=1e-6)
    assert again == pytest.approx(parts[0], rel=1e-6)  # the first window of an epoch knows of none before
    assert abs(np.mean(apart) - whole) > 1e-4


def test_a_window_is_not_learned_from_through_the_one_before():
    """Derivatives of the second window are those with the state as a given number."""
    model = net().train()
    first, second = windows(12)
    model(first).backward()
    assert not any(buffer.requires_grad for buffer in model.buffers())
    state = tuple((hidden.clone(), cell.clone()) for hidden, cell in model._state())
    model.zero_grad()
    model(second).backward()
    states, _ = model.encoder(second.tokens, state)
    logits = states.flatten(0, 1) @ model.encoder.encoder.weight.T + model.bias
    wanted = torch.autograd.grad(
        torch.nn.functional.cross_entropy(logits, second.targets.flatten()), list(model.parameters())
    )
    for parameter, slope in zip(model.parameters(), wanted):
        torch.testing.assert_close(parameter.grad, slope, atol=1e-6, rtol=1e-4)


def test_one_table_reads_and_says_the_words():
    model = net()
    assert [name for name, value in model.named_parameters() if value.shape == (WORDS, 5)] == ["encoder.encoder.weight"]
    batch = StreamBatch(torch.full((3, 4), 2), torch.full((3, 4), 9), True)
    model(batch).backward()
    assert model.encoder.encoder.weight.grad[9].abs().sum() > 0  # which is said and never read


def test_a_run_that_was_stopped_within_an_epoch_goes_on_exactly(tmp_path):
    """What was read before the stop is in the checkpoint."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(2, WORDS, 30) for _ in range(4)]
    plan = StreamPlan.of(texts, 3, 5, 0)
    settings = TrainerSettings(
        epochs=2, batch=3, warmup=0, micro_batches=1, log_steps=1, checkpoint_minutes=0, learning_rate=1e-2
    )
    ended = []
    for folder, stop in (("whole", None), ("stopped", 11), ("stopped", None)):
        model, streams, asked = net(weight=0.3, input=0.2), TextStreams(texts, plan), []

        def batch(rows, _, streams=streams, asked=asked, stop=stop):
            asked.append(int(rows[0]))
            if stop is not None and asked[-1] >= stop:
                raise KeyboardInterrupt
            return streams.batch(rows)

        told = {"lengths": plan.lengths, "groups": plan.groups, "plan": plan, "make_batch": batch, "seed": 0}
        try:
            fit(TrainingRun(model, settings, run_folder=tmp_path / folder, fingerprint="", **told))
        except KeyboardInterrupt:
            assert len(plan) < asked[-1]  # in the second epoch, not at its beginning
            continue
        ended.append((asked[0], {name: value.clone() for name, value in model.state_dict().items()}))
    assert ended[0][0] == 0 and ended[1][0] > len(plan)
    for name, value in ended[0][1].items():
        torch.testing.assert_close(ended[1][1][name], value, atol=0, rtol=0)
