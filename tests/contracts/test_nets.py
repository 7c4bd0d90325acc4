"""The contract of all nets; a new kind is one line in MODELS."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import PAD, ReportTokenizer, Vocabulary, WordTokenizer
from nosology.encoders.transformer import load_pretrained
from nosology.models.dual_laat.dual_laat_model import DualLaat, DualLaatNet
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.models.hmhan.code_groups import CodeCategories
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet
from nosology.models.hmhan.hmhan_settings import HmhanSettings, LossSettings
from nosology.models.laat.laat_model import Caml, Laat, PlmIcd, PlmIcdNet, WordEncoderNet
from nosology.models.laat.laat_settings import CamlSettings, LaatSettings, PlmIcdSettings
from nosology.models.neural import NeuralModel
from nosology.models.plant.plant_model import Plant
from nosology.models.plant.plant_settings import PlantSettings, RankerSettings
from nosology.models.plant.relevance import Relevance
from nosology.text.tokens import words_of
from nosology.training.data_loader import Batch, pad_notes, token_mask
from tests.conftest import as_notes
from tests.encoders.tiny import tiny_bert

CODES = LabelSpace(Code("icd10cm", code) for code in ("I50.9", "J18.9", "M54.5", "E10.9", "E11.9", "R51.9", "Z23"))
NOTES = np.arange(1, len(CODES) + 1)
WORDS = words_of("chronic low back pain heart failure pneumonia of the right lobe type 1 2")
TOKENIZER = WordTokenizer(Vocabulary(WORDS), 40)


def _caml(_: Path) -> Caml:
    shape = CamlSettings(filters=12, kernel=4)
    return Caml(CODES, NOTES, TOKENIZER, WordEncoderNet(shape, len(TOKENIZER.vocabulary), 8, len(CODES)), shape)


def _laat(_: Path) -> Laat:
    shape = LaatSettings(hidden=6, projection=10)
    return Laat(CODES, NOTES, TOKENIZER, WordEncoderNet(shape, len(TOKENIZER.vocabulary), 8, len(CODES)), shape)


def _plm_icd(folder: Path) -> PlmIcd:
    shape = PlmIcdSettings(encoder="tiny", window=10, max_tokens=40)
    tokenizer, encoder = load_pretrained(str(tiny_bert(folder / "encoder")), shape.window, shape.max_tokens)
    return PlmIcd(CODES, NOTES, tokenizer, PlmIcdNet(shape, encoder, len(CODES)), shape)


def _dual_laat(_: Path, encoder: str = "gru") -> DualLaat:
    shape = DualLaatSettings(encoder=encoder, width=6, heads=2, max_description=5).resolved(100)
    words = ["heart failure", "pneumonia", "low back pain", "type 1", "type 2", "pain of the heart", "chronic"]
    net = DualLaatNet(shape, len(TOKENIZER.vocabulary), 8)
    model = DualLaat(CODES, NOTES, TOKENIZER, net, shape, descriptions=words)
    net.descriptions = model.description_ids(words)  # needed by training
    return model


def _plant(_: Path, **settings: str | bool | int) -> Plant:
    shape = PlantSettings(size=8, hidden=10, layers=2, inattention=3, window=5, **settings)
    rng = np.random.default_rng(0)
    presence, gold = rng.random((40, len(TOKENIZER.vocabulary))) < 0.4, rng.random((40, len(CODES))) < 0.4
    relevance = Relevance.of(*(sparse.csr_matrix(part.astype(np.int8)) for part in (presence, gold)))
    return Plant.of(CODES, NOTES, TOKENIZER, shape, RankerSettings(hidden=6), relevance)


def _hmhan(folder: Path, attention: str = "hierarchical") -> Hmhan:
    shape = HmhanSettings(encoder="tiny", attention=attention, heads=2, hidden=[12, 6], frozen=False)
    loss = LossSettings(focal=0, weighted=False)
    tokenizer, encoder = load_pretrained(str(tiny_bert(folder / "encoder")), 0, 40)
    categories = CodeCategories.at_level(CODES, "chapter")
    net = HmhanEnsemble([HmhanNet(shape, loss, encoder, torch.from_numpy(categories.of_label))])
    return Hmhan(CODES, NOTES, ReportTokenizer(tokenizer.tokenizer_json, 40), net, shape)


MODELS: dict[str, Callable[[Path], NeuralModel]] = {
    "caml": _caml,
    "laat": _laat,
    "plm_icd": _plm_icd,
    "dual_laat": _dual_laat,
    "dual_laat conv": partial(_dual_laat, encoder="conv"),
    "plant": _plant,
    "plant both": partial(_plant, direction="both"),
    "plant stateless": partial(_plant, stateful=False, last_windows=2),
    "hmhan": _hmhan,
    "hmhan single": partial(_hmhan, attention="single"),
    "hmhan none": partial(_hmhan, attention="none"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory) -> NeuralModel:
    torch.manual_seed(1)
    model = MODELS[request.param](tmp_path_factory.mktemp(request.param))
    with torch.no_grad():
        for weight in model.net.parameters():  # at initialization all tokens have nearly the same attention
            weight.add_(0.3 * torch.randn_like(weight))
        for module in model.net.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    model.net.eval()
    return model


def _notes(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 16, size=length, dtype=np.int32) for length in lengths]


def _batch(notes: list[np.ndarray], **fields: torch.Tensor) -> Batch:
    return Batch(*pad_notes(notes), **fields)


def _wider(batch: Batch, pads: int) -> Batch:
    return replace(batch, tokens=torch.nn.functional.pad(batch.tokens, (0, pads), value=PAD))


def _logits(model: NeuralModel, batch: Batch) -> np.ndarray:
    with torch.no_grad():
        return model.batch_logits(batch).numpy()


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=5)
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(lengths=LENGTHS, pads=st.integers(1, 50), seed=st.integers(0, 99))
def test_padding_does_not_change_logits(model, lengths, pads, seed):
    batch = _batch(_notes(lengths, seed))
    assert _logits(model, _wider(batch, pads)) == pytest.approx(_logits(model, batch), abs=1e-5)


@QUICK
@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_other_notes_of_a_batch_do_not_change_logits(model, lengths, seed):
    notes = _notes(lengths, seed)
    alone = np.concatenate([_logits(model, _batch([note])) for note in notes])
    assert _logits(model, _batch(notes)) == pytest.approx(alone, abs=1e-5)


@QUICK
@given(columns=st.lists(st.integers(0, len(CODES) - 1), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_other_labels_do_not_change_logits(model, columns, seed):
    notes = _notes([7, 20, 3], seed)
    selected = _logits(model, _batch(notes, labels=torch.tensor(columns)))
    assert selected == pytest.approx(_logits(model, _batch(notes))[:, columns], abs=1e-5)


@QUICK
@given(lengths=LENGTHS, pads=st.integers(0, 20), seed=st.integers(0, 99))
def test_attention_is_a_distribution_over_tokens(model, lengths, pads, seed):
    batch = _wider(_batch(_notes(lengths, seed)), pads)
    with torch.no_grad():
        weights = model.batch_attention(batch)
    assert weights.shape == (len(lengths), len(CODES), batch.tokens.shape[1])
    inside = token_mask(batch.lengths, batch.tokens.shape[1], batch.tokens.device)
    assert (weights >= 0).all()
    assert weights.sum(-1).numpy() == pytest.approx(1, abs=1e-5)
    assert (weights * ~inside[:, None]).abs().max() == 0


def test_attention_does_not_depend_on_other_labels(model):
    notes = _notes([30])
    with torch.no_grad():
        some = model.batch_attention(_batch(notes, labels=torch.tensor([5, 2])))
        every = model.batch_attention(_batch(notes))
    assert some.numpy() == pytest.approx(every[:, [5, 2]].numpy(), abs=1e-6)


def test_loss_is_the_mean_cross_entropy(model):
    columns = torch.tensor([0, 3, 6])
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    batch = _batch(_notes([9, 22]), labels=columns, targets=targets)
    logits = torch.from_numpy(_logits(model, batch)).double()
    expected = -(targets * logits.sigmoid().log() + (1 - targets) * (-logits).sigmoid().log()).mean()
    with torch.no_grad():
        assert float(model.net(batch)) == pytest.approx(float(expected), abs=1e-5)


def test_all_weights_have_a_gradient(model):
    model.net.train()
    targets = (torch.arange(4 * len(CODES)).reshape(4, -1) % 3 == 0).float()
    model.net(_batch(_notes([40, 35, 38, 30]), labels=torch.arange(len(CODES)), targets=targets)).backward()
    unreached = [name for name, weight in model.net.named_parameters() if weight.grad is None]
    model.net.zero_grad()
    model.net.eval()
    assert not unreached


def test_gradient_step_lowers_the_loss(model):
    net = deepcopy(model.net)
    targets = (torch.arange(3 * len(CODES)).reshape(3, -1) % 2 == 0).float()
    batch = _batch(_notes([20, 8, 33]), labels=torch.arange(len(CODES)), targets=targets)
    optimiser = torch.optim.SGD((weight for weight in net.parameters() if weight.requires_grad), lr=1e-3)
    before = net(batch)
    before.backward()
    optimiser.step()
    with torch.no_grad():
        assert float(net(batch)) < float(before)


def test_evaluation_is_deterministic_and_training_has_dropout(model):
    reads = [model.tokenizer.tokenize("chronic low back pain, heart failure"), model.tokenizer.tokenize("pneumonia")]
    assert np.array_equal(model.logits_of(reads), model.logits_of(reads))
    model.net.train()
    batch = _batch(_notes([20, 30]), labels=torch.arange(len(CODES)), targets=torch.zeros(2, len(CODES)))
    with torch.no_grad():
        losses = {float(model.net(batch)) for _ in range(3)}
    assert model.logits_of(reads) is not None and model.net.training, "logits_of must restore the mode"
    model.net.eval()
    assert len(losses) == 3


def test_loaded_model_has_the_same_probabilities(model, tmp_path):
    texts = ["Chronic low back pain.", "Type 1 diabetes; type 2 diabetes", "", "heart failure and pneumonia " * 9]
    model.save(tmp_path)
    assert all(path.suffix in (".json", ".safetensors") and path.is_file() for path in tmp_path.iterdir())
    loaded = type(model).load(tmp_path, device="cpu")
    assert (loaded.kind, loaded.labels, loaded.calibration) == (model.kind, model.labels, model.calibration)
    assert loaded.train_counts.tolist() == NOTES.tolist() and not loaded.net.training
    assert np.array_equal(loaded.probabilities(as_notes(texts)), model.probabilities(as_notes(texts)))


def test_evidence_spans_are_in_the_note(model):
    text = "Chronic low back pain.\nPneumonia of the RIGHT lobe, type 2"
    spans = model.evidence(as_notes([text])[0], [4, 0], limit=3)
    assert len(spans) == 2 and all(1 <= len(found) <= 3 for found in spans)
    for span in (span for found in spans for span in found):
        assert text[span.start : span.end] == span.text and span.text.strip() and 0 < span.score <= 1 + 1e-5
    assert model.evidence(as_notes([""])[0], [1, 2]) == [[], []]


def test_note_without_tokens_has_no_codes(model):
    found = model.probabilities(as_notes(["", "heart failure", " \n"]))
    assert found.shape == (3, len(CODES)) and found.dtype == np.float32
    assert not found[[0, 2]].any() and found[1].all()
    assert model.probabilities(as_notes([])).shape == (0, len(CODES))


def test_bf16_loss_and_gradients(model):
    """Under autocast to bf16 the loss is close to that of float32, and all gradients are finite."""
    net = deepcopy(model.net).eval()
    if isinstance(net, DualLaatNet):
        net.descriptions = model.description_ids(model.descriptions)
    batch = replace(_batch(_notes([9, 4], 0), labels=torch.arange(len(CODES))), targets=torch.zeros(2, len(CODES)))
    exact = net(batch).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(batch)
    loss.backward()
    assert loss.item() == pytest.approx(exact, rel=0.02)
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


RIGHT = "heart failure and pneumonia of the right lobe "
LONG_AND_SHORT = ["Chronic low back pain.", "", RIGHT * 4, "Type 2\npain, type 1"]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-3)])
def test_scores_decisions_and_evidence_of_a_stream_equal_those_of_single_notes(model, precision, tolerance):
    """A stream is batched by length and encodes each note once; choices differ only at ties of the precision."""
    model = replace(model, precision=precision)
    model.weights_changed()
    notes = as_notes(LONG_AND_SHORT * 3)

    def choose(row: np.ndarray) -> tuple[np.ndarray, list[int]]:
        return row, np.flatnonzero(row >= 0.4).tolist()

    alone = np.concatenate([model.probabilities([note]) for note in notes])
    blocks = np.concatenate(list(model.probability_blocks(iter(notes))))
    np.testing.assert_allclose(blocks, alone, atol=tolerance)
    explained = list(model.explained(iter(notes), choose))
    np.testing.assert_allclose(np.stack([row for row, _ in explained]), alone, atol=tolerance)
    for note, expected, (row, evidence) in zip(notes, alone, explained):
        decided, wanted = row >= 0.4, expected >= 0.4
        assert (np.abs(expected[decided != wanted] - 0.4) < tolerance).all()
        found = model.evidence(note, np.flatnonzero(decided).tolist())
        assert len(evidence) == len(found)
        if precision == "fp32":
            for actual, spans in zip(evidence, found):
                assert [(span.start, span.end) for span in actual] == [(span.start, span.end) for span in spans]
                assert [span.score for span in actual] == pytest.approx([span.score for span in spans], abs=1e-5)


@pytest.mark.parametrize("columns", [range(len(CODES)), [4, 1], []])
def test_scores_of_some_labels_are_those_of_all(model, columns):
    notes = as_notes(LONG_AND_SHORT * 3)
    blocks = list(model.probability_blocks(iter(notes), columns))
    np.testing.assert_allclose(np.concatenate(blocks), model.probabilities(notes)[:, list(columns)], atol=1e-5)


def test_precision_is_that_of_training(model, tmp_path):
    read = [model.tokenize(note) for note in as_notes([LONG_AND_SHORT[2]])]
    half, single = (replace(model, precision=precision) for precision in ("bf16", "fp32"))
    for changed in (half, single):
        changed.weights_changed()
    if model.kind != "hmhan":  # chooses its precision by the device
        assert 0 < np.abs(half.logits_of(read) - single.logits_of(read)).max() < 0.3
    half.save(tmp_path)
    loaded = type(model).load(tmp_path, device="cpu")
    assert loaded.precision == "bf16" and np.array_equal(loaded.logits_of(read), half.logits_of(read))
