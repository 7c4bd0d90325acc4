"""CAML, LAAT and PLM-ICD."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.config import load_recipe
from nosology.encoders.transformer import WindowedTransformer, load_pretrained
from nosology.models.laat import laat_trainer
from nosology.models.laat.laat_model import PlmIcdNet, WordEncoderNet
from nosology.models.laat.laat_settings import CamlSettings, LaatSettings, PlmIcdSettings
from nosology.models.train import train
from nosology.training.data_loader import PAD, Batch, pad_notes
from nosology.training.examples import train_and_dev
from tests.encoders.tiny import tiny_bert

NOTES = [np.array([2, 5, 3, 4, 2], np.int32), np.array([7, 6], np.int32)]


def weights(net: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())


def test_caml_logits_follow_the_equations():
    """H = tanh(conv(x)); alpha = softmax(H u_l); logit = beta_l . sum_t alpha_t h_t + b_l, one number at a time."""
    torch.manual_seed(0)
    net = WordEncoderNet(CamlSettings(filters=4, kernel=3), 9, 5, 6).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn_like(weight))
        logits = net.logits(Batch(*pad_notes(NOTES))).numpy()
    get = {name: weight.detach().numpy() for name, weight in net.named_parameters()}
    for row, note in enumerate(NOTES):
        x = np.pad(get["embedding.weight"][note], ((1, 1), (0, 0)))
        kernel, bias = get["encoder.conv.weight"], get["encoder.conv.bias"]
        states = np.tanh([np.einsum("dek,ke->d", kernel, x[t : t + 3]) + bias for t in range(len(note))])
        for label in range(6):
            alpha = np.exp(states @ get["learned.queries"][label])
            vector = (alpha / alpha.sum()) @ states
            expected = vector @ get["learned.weights"][label] + get["learned.bias"][label]
            assert logits[row, label] == pytest.approx(expected, abs=1e-4)


def test_laat_logits_follow_the_equations():
    """H = BiLSTM(x); Z = tanh(W H); A = softmax(U Z); v_l = H a_l; logit = beta_l . v_l + b_l."""
    torch.manual_seed(0)
    net = WordEncoderNet(LaatSettings(hidden=3, projection=5), 9, 4, 6).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn_like(weight))
        logits = net.logits(Batch(*pad_notes(NOTES))).numpy()
        for row, note in enumerate(NOTES):
            x = net.embedding(torch.from_numpy(note.astype(np.int64)))
            states = net.encoder.cell(x[None])[0][0].numpy()
            z = np.tanh(states @ net.learned.projection.weight.numpy().T)
            for label in range(6):
                a = np.exp(z @ net.learned.queries[label].numpy())
                vector = (a / a.sum()) @ states
                expected = vector @ net.learned.weights[label].numpy() + net.learned.bias[label].item()
                assert logits[row, label] == pytest.approx(expected, abs=1e-4)


def test_numbers_of_weights_are_those_of_the_papers():
    """Counted by hand for 1,000 words of 100 numbers and 50 codes."""
    caml = WordEncoderNet(CamlSettings(filters=50, kernel=10), 1000, 100, 50)
    assert weights(caml) == 1000 * 100 + (100 * 10 + 1) * 50 + 50 * (50 + 50 + 1)
    laat = WordEncoderNet(LaatSettings(hidden=512, projection=512), 1000, 100, 50)
    lstm = 2 * 4 * 512 * (100 + 512 + 2)
    assert weights(laat) == 1000 * 100 + lstm + 1024 * 512 + 50 * (512 + 1024 + 1)


@pytest.mark.parametrize("frozen", [False, True])
def test_plm_icd_trains_its_encoder_unless_frozen(tmp_path, frozen):
    shape = PlmIcdSettings(encoder="tiny", window=8, max_tokens=100, frozen=frozen)
    reader, encoder = load_pretrained(str(tiny_bert(tmp_path)), shape.window, shape.max_tokens)
    net = PlmIcdNet(shape, encoder, 3)
    assert net.learned.queries.shape == (3, encoder.width)
    net.train()
    ids = reader.tokenize("chronic low back pain, heart failure and pneumonia").ids
    net(Batch(*pad_notes([ids]), targets=torch.ones(1, 3))).backward()
    assert all((weight.grad is None) == frozen for weight in encoder.parameters())
    assert all(weight.grad is not None for weight in net.learned.parameters())


@pytest.mark.parametrize("settings", [CamlSettings(filters=4), LaatSettings(hidden=3, projection=4)])
def test_embedding_starts_as_word_vectors_and_padding_stays_zero(settings):
    vectors = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    net = WordEncoderNet(settings, 9, 5, 2, vectors)
    assert torch.equal(net.embedding.weight[1:], vectors[1:]) and not net.embedding.weight[PAD].any()
    net(Batch(*pad_notes(NOTES), targets=torch.ones(2, 2))).backward()
    torch.optim.AdamW(net.parameters(), lr=0.1).step()
    assert not net.embedding.weight[PAD].any()


@pytest.mark.parametrize("kind", ["caml", "laat"])
def test_net_learns_the_word_of_each_code(kind):
    """Notes of 20 words, of which one names the code; attention must select it."""
    torch.manual_seed(0)
    shape = (
        CamlSettings(filters=24, kernel=3, dropout=0.0)
        if kind == "caml"
        else LaatSettings(hidden=12, projection=24, dropout=0.0)
    )
    net = WordEncoderNet(shape, 40, 16, 4)
    rng = np.random.default_rng(0)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)

    def make_batch(n: int) -> Batch:
        notes, targets = rng.integers(6, 40, size=(n, 20)), rng.integers(0, 4, size=n)
        notes[np.arange(n), rng.integers(0, 20, size=n)] = 2 + targets
        return Batch(*pad_notes(list(notes)), targets=torch.eye(4)[torch.from_numpy(targets)])

    for _ in range(60):
        optimiser.zero_grad()
        net(make_batch(32)).backward()
        optimiser.step()
    batch = make_batch(100)
    net.eval()
    with torch.no_grad():
        logits, attention = net.logits(batch), net.attention(batch)
    true = batch.targets.argmax(1)
    assert (logits.argmax(1) == true).float().mean() > 0.95
    place = (batch.tokens == (2 + true)[:, None]).float().argmax(1)
    peak = attention[torch.arange(100), true].argmax(1)
    assert ((peak - place).abs() <= 1).float().mean() > 0.7  # by chance 0.15


def test_plm_icd_keeps_no_cached_states_after_training(small_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(laat_trainer, "default_device", lambda: torch.device("cpu"))
    cached, forward = [], WindowedTransformer.forward

    def spy(self, *batch):
        cached.append(self.cached is not None)
        return forward(self, *batch)

    monkeypatch.setattr(WindowedTransformer, "forward", spy)
    settings = [f"model.encoder='{tiny_bert(tmp_path)}'", "model.window=8", "model.frozen=true", "training.epochs=1"]
    bundle = train(load_recipe("plm_icd", settings), [small_corpus], tmp_path / "bundle", refit=True)
    assert cached and all(cached), "in training states are cached"
    assert bundle.model.net.encoder.cached is None
    trained = laat_trainer.PlmIcdTrainer(load_recipe("plm_icd", settings), tmp_path).fit(
        *train_and_dev([small_corpus], 0.15, 0)[:2]
    )
    assert trained.model.net.encoder.cached is None
