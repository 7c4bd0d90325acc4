"""The logits of the net of HMHAN as probabilities, under the losses that it can be trained with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit

from nosology.config import load_recipe
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet, ReportBatch
from nosology.models.hmhan.hmhan_settings import HmhanSettings, LossSettings
from nosology.training.losses import class_weights
from tests.conftest import small_notes
from tests.encoders.tiny import tiny_hmhan_settings

WIDTH, REPORTS = 8, 6000
LOSSES = {
    "class weights": LossSettings(focal=0.0, max_class_weight=50.0),
    "class weights and focal loss": LossSettings(max_class_weight=50.0),
}


class NoEncoder(torch.nn.Module):
    """Stands for the encoder of cached states."""

    width = WIDTH


def reports_with_known_probabilities(seed: int) -> tuple[ReportBatch, np.ndarray]:
    """Reports of one token; the log odds of three codes are linear in its state. With the true probabilities."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.nn.functional.layer_norm(torch.randn(REPORTS, 1, WIDTH, generator=generator), [WIDTH])
    directions = torch.randn(WIDTH, 3, generator=torch.Generator().manual_seed(7))
    probabilities = torch.sigmoid(0.5 * states[:, 0] @ directions + torch.tensor([-1.0, -2.5, -4.0]))
    targets = torch.bernoulli(probabilities, generator=generator)
    tokens, lengths = torch.ones(REPORTS, 1, dtype=torch.int64), torch.ones(REPORTS, dtype=torch.int64)
    return ReportBatch(tokens, lengths, None, targets, states=states), probabilities.numpy()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_corrected_probabilities_are_calibrated_and_uncorrected_ones_are_not(loss):
    train, _ = reports_with_known_probabilities(0)
    test, true = reports_with_known_probabilities(1)
    torch.manual_seed(0)
    settings = HmhanSettings(attention="none", hidden=[16], dropout=0.0, state_dropout=0.0, frozen=True)
    net = HmhanNet(settings, loss, NoEncoder(), torch.zeros(3, dtype=torch.int64))
    net.class_weights.copy_(class_weights(train.targets.sum(0), REPORTS, loss.max_class_weight))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    for _ in range(250):
        optimizer.zero_grad()
        net(train).backward()
        optimizer.step()
    with torch.no_grad():
        corrected = expit(net.logits(test).numpy())
        net.loss = loss.model_copy(update={"corrected": False})
        uncorrected = expit(net.logits(test).numpy())
    assert corrected.mean(0) == pytest.approx(true.mean(0), abs=0.02)
    assert (uncorrected.mean(0) - true.mean(0) > 0.05).all(), "class weights raise every probability"
    assert np.abs(corrected - true).mean() < 0.03 < 0.12 < np.abs(uncorrected - true).mean()


@pytest.mark.parametrize("settings", [[], ["loss.focal=1.0", "loss.weighted=true"], ["smote.ratio=2.0"]])
def test_untrained_net_returns_the_frequency_of_each_code(settings, tmp_path):
    tiny = [*tiny_hmhan_settings(tmp_path), "model.frozen=true", "model.output_weights=zero"]
    trainer = HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", [*tiny, *settings]), small_notes(40), tmp_path, "")
    rows = np.arange(40)
    synthetic = trainer.synthetic_rows(rows, 0)
    net = trainer.build_net(rows, 0, synthetic).eval()
    assert (synthetic is not None) == bool(net.prior_shift.any())
    with torch.no_grad():
        batch = ReportBatch(torch.ones(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
        probabilities = expit(net.logits(batch).numpy())[0]
    assert probabilities == pytest.approx(trainer.train.label_counts(rows) / 40, abs=1e-4)


def test_output_layer_can_start_as_an_ordinary_linear_layer(tmp_path):
    tiny = tiny_hmhan_settings(tmp_path)
    default = ["model.output_bias=default", "model.output_weights=default"]
    for settings, is_zero in (([*tiny, "model.output_weights=zero"], True), ([*tiny, *default], False)):
        trainer = HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", settings), small_notes(40), tmp_path, "")
        head = trainer.build_net(np.arange(40), 0).head
        assert (not head.shared_weight.any()) == is_zero
        assert head.bias.abs().max() > 0 and (head.bias.abs().max() <= 8**-0.5) == (not is_zero)


NAMES = {  # of today -> of version 0.2
    "code_attention.cross_attention.": "look.look.",
    "code_attention.category_queries": "look.categories",
    "code_attention.category_of_label": "look.category",
    "code_attention.": "look.",
    "head.mlp.": "head.trunk.",
    "head.code_weight": "head.own",
    "head.shared_weight": "head.shared",
    "class_weights": "weights",
}


def with_old_name(name: str) -> str:
    today = next((part for part in NAMES if name.startswith(part)), "")
    return NAMES.get(today, "") + name.removeprefix(today)


@pytest.mark.parametrize("prefix", ["", "nets.0."])
@pytest.mark.parametrize("attention", ["hierarchical", "single", "none"])
def test_weights_with_the_names_of_version_0_2_give_the_same_logits(attention, prefix):
    settings = HmhanSettings(attention=attention, heads=2, hidden=[6, 4], frozen=True)
    nets = [HmhanNet(settings, LossSettings(), NoEncoder(), torch.tensor([0, 1, 0]), columns=2).eval() for _ in "abc"]
    batch, _ = reports_with_known_probabilities(0)
    batch = replace(batch, columns=torch.randn(REPORTS, 2))
    with torch.no_grad():
        for tensor in (*nets[0].parameters(), nets[0].class_weights, nets[0].prior_shift):
            tensor.add_(torch.rand_like(tensor))
        today = nets[0].state_dict()
        old = {prefix + with_old_name(name): tensor for name, tensor in today.items()}
        old |= {name.replace("weight", "bias"): torch.ones(WIDTH) for name in old if name.endswith("key.weight")}
        (nets[1] if not prefix else HmhanEnsemble([nets[1]])).load_state_dict(old)
        nets[2].load_state_dict(today)
        first, *others = (net.logits(batch) for net in nets)
    assert {name for name in old if name.startswith(prefix + "look.")} or attention == "none"
    assert all(torch.equal(first, other) for other in others)
