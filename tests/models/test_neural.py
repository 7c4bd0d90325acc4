"""Tests of what all neural models share, with a net whose logits can be computed by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import expit
from torch import nn

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.core.settings import Settings
from nosology.encoders.tokenizers import Encoding, Vocabulary, WordTokenizer
from nosology.explanation.attribution import top_words
from nosology.models.label_net import LabelNet
from nosology.models.neural import NeuralModel
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling
from nosology.training.data_loader import token_mask
from nosology.training.inference import by_length
from tests.conftest import as_notes

LABELS = LabelSpace([Code("icd10cm", "I50.9"), Code("icd10cm", "J18.9"), Code("icd9cm", "428.0")])
WORDS = ["heart", "failure", "pneumonia", "pain"]


class CountSettings(Settings):
    """Nothing to set."""

    labels: int = 3


class CountNet(LabelNet):
    """logit of a label = the sum of its weights for the tokens of a note; one table has two names."""

    def __init__(self, words: int, labels: int):
        super().__init__()
        self.table = nn.Embedding(words, labels)
        self.same = self.table
        self.seen: list[tuple[int, ...]] = []

    def logits(self, batch):
        self.seen.append((*batch.tokens.shape, self.training))
        inside = token_mask(batch.lengths, batch.tokens.shape[1], batch.tokens.device)
        actual = (self.table(batch.tokens) * inside[..., None]).sum(1)
        return actual if batch.labels is None else actual[:, batch.labels]

    def attention(self, batch):
        inside = token_mask(batch.lengths, batch.tokens.shape[1], batch.tokens.device)
        actual = self.table(batch.tokens).exp() * inside[..., None]
        return (actual / actual.sum(1, keepdim=True)).transpose(1, 2)[:, batch.labels]


class Count(NeuralModel):
    kind, tokenizer_class, settings_class = "count", WordTokenizer, CountSettings

    def extra_config(self):
        return {"words": self.net.table.num_embeddings}

    @classmethod
    def build_net(cls, settings, labels, tokenizer, config):
        return CountNet(config["words"], settings.labels)


@pytest.fixture
def model() -> Count:
    tokenizer = WordTokenizer(Vocabulary(WORDS), 100)
    torch.manual_seed(0)
    return Count(LABELS, np.array([3, 2, 1]), tokenizer, CountNet(len(tokenizer.vocabulary), 3), CountSettings())


def by_hand(model: Count, text: str) -> np.ndarray:
    table = model.net.table.weight.detach().numpy()
    return table[model.tokenizer.tokenize(text).ids].sum(0)


def test_probabilities_are_in_the_order_of_the_notes(model):
    texts = ["heart failure " * n for n in (3, 1, 40, 7)] + ["pain", ""]
    actual = model.probabilities(as_notes(iter(texts)))
    assert actual.dtype == np.float32 and actual.shape == (6, 3)
    for text, row in zip(texts[:5], actual):
        assert row == pytest.approx(expit(by_hand(model, text)), abs=1e-5)
    assert not actual[5].any()


def test_logits_of_columns_and_of_empty_notes(model):
    encodings = [model.tokenizer.tokenize(text) for text in ("pneumonia", "", "pain pain")]
    every = model.logits_of(encodings)
    assert (every[1] == EXCLUDED_LOGIT).all()
    assert np.array_equal(model.logits_of(encodings, [2, 0]), every[:, [2, 0]])
    assert model.logits_of([]).shape == (0, 3)


def test_scoring_uses_evaluation_mode_and_restores_the_mode(model):
    model.net.train()
    model.probabilities(as_notes(["pain"]))
    assert model.net.seen[-1][-1] is False and model.net.training
    model.net.eval()
    model.probabilities(as_notes(["pain"]))
    assert not model.net.training


def test_weights_can_be_trained_after_scoring(model):
    model.probabilities(as_notes(["pain"]))
    model.net.table(torch.tensor([1])).sum().backward()
    assert model.net.table.weight.grad is not None


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 100), st.integers(1, 9))
def test_batches_contain_every_note_once_within_limits(lengths, tokens, notes):
    lengths = np.array(lengths, dtype=np.int64)
    batches = list(by_length(lengths, tokens, notes))
    rows = np.concatenate(batches) if batches else np.empty(0, int)
    assert sorted(rows.tolist()) == np.flatnonzero(lengths).tolist()
    for batch in batches:
        assert len(batch) <= notes
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= tokens
    assert (np.diff(lengths[rows]) <= 0).all(), "notes of similar length share a batch"


def test_evidence_has_the_words_with_the_highest_attention(model):
    with torch.no_grad():
        model.net.table.weight.fill_(-9.0)
        model.net.table.weight[model.tokenizer.vocabulary.ids(["pneumonia"])[0], 1] = 5.0
        model.net.table.weight[model.tokenizer.vocabulary.ids(["heart", "failure"]), 0] = 4.0
    text = "No pain.\nHeart  failure and (pneumonia)"
    (second,), (first,) = model.evidence(as_notes([text])[0], [1, 0])
    assert second.text == "pneumonia" and (second.start, second.end) == (29, 38)
    assert first.text == "Heart  failure" and first.score == pytest.approx(1, abs=1e-3)


def test_top_words_are_summed_over_occurrences(model):
    with torch.no_grad():
        model.net.table.weight.fill_(-9.0)
        model.net.table.weight[model.tokenizer.vocabulary.ids(["pneumonia"])[0], 0] = np.log(3)
        model.net.table.weight[model.tokenizer.vocabulary.ids(["heart"])[0], 0] = np.log(2)
    actual = top_words(model, as_notes(["heart pneumonia Heart"])[0], [0], limit=2)[0]
    assert [(item.text, item.start, pytest.approx(item.score, abs=1e-3)) for item in actual] == [
        ("heart", 0, 4 / 7),
        ("pneumonia", 6, 3 / 7),
    ]


def test_attention_of_subwords_is_summed_by_word(model):
    class Pieces:
        def tokenize(self, text):
            # "pneu" "mon" "ia" of one word, then an empty subword, then "pain"
            return Encoding(
                np.array([2, 3, 4, 5, 5], np.int32), np.array([0, 0, 0, 9, 10]), np.array([9, 9, 9, 9, 14], np.int64)
            )

    model.tokenizer = Pieces()
    with torch.no_grad():
        model.net.table.weight.zero_()
    (spans,) = model.evidence(as_notes(["pneumonia pain"])[0], [0])
    assert [(span.text, pytest.approx(span.score)) for span in spans] == [("pneumonia", 0.6), ("pain", 0.2)]


def test_save_and_load_keep_tied_weights(model, tmp_path):
    model.calibration = PlattScaling(0.5, -1.0)
    model.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.json", "model.safetensors"}
    described = json.loads((tmp_path / "model.json").read_text())
    assert described["tied"] == {"same.weight": "table.weight"}
    loaded = Count.load(tmp_path, device="cpu")
    assert loaded.net.same.weight is loaded.net.table.weight
    assert np.array_equal(loaded.probabilities(as_notes(["pain heart"])), model.probabilities(as_notes(["pain heart"])))
    assert loaded.train_counts.tolist() == [3, 2, 1] and loaded.labels == LABELS
    assert loaded.device == torch.device("cpu")


def test_calibrated_returns_a_new_model_and_ignores_empty_notes(model):
    logits = np.concatenate([np.random.default_rng(0).normal(size=(400, 3)), np.full((50, 3), EXCLUDED_LOGIT)])
    gold = np.random.default_rng(1).random(logits.shape) < expit(2 * logits - 1)
    gold[400:] = True
    changed = model.calibrated(logits.astype(np.float32), sparse.csr_matrix(gold.astype(np.int8)))
    assert model.calibration == PlattScaling() and changed.net is model.net
    assert changed.calibration.a == pytest.approx(2, abs=0.4) and changed.calibration.b == pytest.approx(-1, abs=0.2)


def test_platt_scaling_recovers_its_parameters():
    rng = np.random.default_rng(3)
    logits = rng.normal(-2, 3, size=(2000, 20))
    gold = sparse.csr_matrix((rng.random(logits.shape) < expit(0.6 * logits - 0.8)).astype(np.int8))
    actual = PlattScaling.fit(logits, gold)
    assert (actual.a, actual.b) == (pytest.approx(0.6, abs=0.03), pytest.approx(-0.8, abs=0.06))
    thinned = PlattScaling.fit(logits, gold, max_cells=10_000)
    assert (thinned.a, thinned.b) == (pytest.approx(0.6, abs=0.06), pytest.approx(-0.8, abs=0.12))
    assert actual(logits) == pytest.approx(expit(actual.a * logits + actual.b), abs=1e-6)


def test_platt_scaling_equals_logistic_regression_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(5)
    logits = rng.normal(size=(3000, 5)) * 2
    target = rng.random(logits.shape) < expit(1.4 * logits + 0.3)
    actual = PlattScaling.fit(logits, sparse.csr_matrix(target.astype(np.int8)))
    oracle = LogisticRegression(C=1e6).fit(logits.reshape(-1, 1), target.ravel())
    assert actual.a == pytest.approx(float(oracle.coef_[0, 0]), abs=2e-3)
    assert actual.b == pytest.approx(float(oracle.intercept_[0]), abs=2e-3)


def test_platt_scaling_never_reverses_the_order():
    logits = np.linspace(-4, 4, 200).reshape(20, 10)
    wrong = PlattScaling.fit(logits, sparse.csr_matrix((logits < 0).astype(np.int8)))
    assert wrong.a > 0
    assert PlattScaling.fit(logits, sparse.csr_matrix(logits.shape, dtype=np.int8)) == PlattScaling(1.0, 0.0)


@pytest.mark.parametrize("perfect", [4, 1])
def test_platt_scaling_of_separable_or_few_notes_is_finite(perfect):
    logits = np.array([[-3.0, 3.0], [-2.0, 5.0]])[:perfect]
    actual = PlattScaling.fit(logits, sparse.csr_matrix((logits > 0).astype(np.int8)))
    assert 1 <= actual.a < 3 and abs(actual.b) < 1
