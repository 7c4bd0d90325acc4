"""Tests of DualLAAT: size, invariance of scores, other codes, two stages, save and load."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nosology.core import BundleError, Code
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import Vocabulary, WordTokenizer
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle
from nosology.models.dual_laat.candidate_retriever import CandidateRetriever
from nosology.models.dual_laat.dual_laat_model import DualLaat, DualLaatNet
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.text.tokens import words_of
from nosology.training.data_loader import Batch, pad_notes
from tests.conftest import as_notes

DESCRIBED = {
    "E10.9": "Type 1 diabetes mellitus without complications",
    "E11.9": "Type 2 diabetes mellitus without complications",
    "I50.9": "Heart failure, unspecified",
    "J18.9": "Pneumonia, unspecified organism",
    "Z99.9": "???",
}
CODES = [(Code("icd10cm", code), text) for code, text in DESCRIBED.items()]
WORDS = sorted({*words_of(" ".join(DESCRIBED.values())), "pain", "acute"})
TEXT = "Acute heart-failure;\n\n TYPE 2 diabetes mellitus. Pneumonia?"
QUICK = settings(max_examples=15, deadline=None)
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=5)
ENCODERS = st.sampled_from(["gru", "conv"])


def coder(encoder: str, seed: int = 0) -> DualLaat:
    config = DualLaatSettings(encoder=encoder, width=6, heads=3, kernel=4, labels=4)
    tokenizer = WordTokenizer(Vocabulary(WORDS), 200)
    torch.manual_seed(seed)
    net = DualLaatNet(config, len(tokenizer.vocabulary), 5)
    with torch.no_grad():
        for weight in net.parameters():  # large, so that attention is not uniform
            weight.copy_(torch.randn_like(weight))
        net.embedding.weight[0] = 3.0  # a trained vector of padding
    labels = LabelSpace(code for code, _ in CODES)
    model = DualLaat(labels, np.arange(5), tokenizer, net.eval(), config, descriptions=[text for _, text in CODES])
    net.descriptions = model.description_ids(model.descriptions)
    return model


CODERS = {encoder: coder(encoder) for encoder in ("gru", "conv")}


def notes_of(lengths: list[int], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, len(WORDS) + 2, n) for n in lengths]


def close(actual: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> bool:
    return bool(((actual - expected).abs() < 1e-5 * max(1.0, scale.abs().max().item())).all())


@pytest.mark.parametrize("encoder, width, size", [("gru", 512, 37_332_425), ("conv", 256, 14_665_673)])
def test_number_of_parameters_is_that_of_the_paper(encoder, width, size):
    with torch.device("meta"):
        net = DualLaatNet(DualLaatSettings(encoder=encoder, width=width), 125_762, 100)
    assert sum(weight.numel() for weight in net.parameters()) == size


@QUICK
@given(ENCODERS, LENGTHS, st.integers(0, 99), st.integers(1, 90))
def test_padding_changes_neither_logits_nor_attention(encoder, lengths, seed, pads):
    net = CODERS[encoder].net
    tokens, sizes = pad_notes(notes_of(lengths, seed))
    wider = Batch(torch.nn.functional.pad(tokens, (0, pads)), sizes)
    before, after = net.logits(Batch(tokens, sizes)), net.logits(wider)
    assert close(after, before, before)
    weights = net.attention(wider)
    assert (weights[:, :, : tokens.shape[1]] - net.attention(Batch(tokens, sizes))).abs().max() < 1e-5
    assert (weights.sum(-1) - 1).abs().max() < 1e-5


@QUICK
@given(ENCODERS, LENGTHS, st.integers(0, 99))
def test_logits_do_not_depend_on_the_batch(encoder, lengths, seed):
    net = CODERS[encoder].net
    notes = notes_of(lengths, seed)
    together = net.logits(Batch(*pad_notes(notes)))
    for row, note in zip(together, notes):
        assert close(net.logits(Batch(*pad_notes([note])))[0], row, together)


@QUICK
@given(ENCODERS, st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 99))
def test_logits_do_not_depend_on_other_labels(encoder, columns, seed):
    net = CODERS[encoder].net
    notes = Batch(*pad_notes(notes_of([7, 0, 30], seed)))
    every = net.logits(notes)
    some = net.logits(Batch(notes.tokens, notes.lengths, torch.tensor(columns)))
    assert close(some, every[:, columns], every)


@pytest.mark.parametrize("encoder", CODERS)
def test_loss_is_the_cross_entropy_and_every_weight_has_a_gradient(encoder):
    net = coder(encoder).net
    tokens, sizes = pad_notes(notes_of([9, 0, 30, 3], 1))
    labels, targets = torch.tensor([4, 0, 1]), torch.eye(4)[:, :3]
    batch = Batch(tokens, sizes, labels, targets)
    loss = net(batch)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(net.logits(batch), targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in net.parameters())


@pytest.mark.parametrize("encoder", CODERS)
def test_numbers_in_descriptions_change_the_logits(encoder):
    model = CODERS[encoder]
    first, second = model.logits_of([model.tokenizer.tokenize(TEXT)], [0, 1])[0]
    assert abs(first - second) > 1e-3
    assert not np.array_equal(*model.description_ids([text for _, text in CODES[:2]]))


def test_descriptions_are_encoded_once(monkeypatch):
    model, calls = coder("conv"), []
    encode = model.net.queries
    monkeypatch.setattr(model.net, "queries", lambda texts: calls.append(len(texts)) or encode(texts))
    for _ in range(3):
        model.probabilities(as_notes([TEXT, "pain"]))
        model.evidence(as_notes([TEXT])[0], [0, 2])
        model.logits_of([model.tokenizer.tokenize(TEXT)], [1, 3])
    assert calls == [5]
    model.weights_changed()
    model.probabilities(as_notes([TEXT]))
    assert calls == [5, 5]


def test_queries_do_not_depend_on_the_chunk_size(monkeypatch):
    model = CODERS["gru"]
    queries = model.net.all_queries(model.net.descriptions)
    monkeypatch.setattr("nosology.models.dual_laat.dual_laat_model._CODES", 2)
    assert (model.net.all_queries(model.net.descriptions) - queries).abs().max() < 1e-6
    assert queries.shape == (3, 5, 6)


def test_with_codes_scores_other_codes():
    model = CODERS["conv"]
    new = Code("icd10cm", "A00.0")
    other = model.with_codes([(new, "Acute pneumonia"), *CODES[2:0:-1]])
    assert other.labels.codes == (new, Code("icd10cm", "I50.9"), Code("icd10cm", "E11.9"))
    assert other.train_counts.tolist() == [0, 2, 1]
    before, after = model.probabilities(as_notes([TEXT])), other.probabilities(as_notes([TEXT]))
    assert after.shape == (1, 3)
    assert after[0, 1:] == pytest.approx(before[0, [2, 1]], abs=1e-5)
    assert model.labels.codes == tuple(code for code, _ in CODES), "the original model is unchanged"
    assert model.probabilities(as_notes([TEXT])) == pytest.approx(before)


def test_codes_with_equal_descriptions_have_equal_probabilities():
    model = CODERS["gru"].with_codes([(Code("icd10cm", code), "Heart failure") for code in ("I50.1", "I50.9")])
    first, second = model.probabilities(as_notes([TEXT]))[0]
    assert first == pytest.approx(second, abs=1e-6)


def test_notes_and_descriptions_without_words():
    model = CODERS["conv"]
    actual = model.probabilities(as_notes(["", "...", "pain"]))
    assert not actual[:2].any() and actual[2].all()
    assert model.evidence(as_notes(["?!"])[0], [0, 4]) == [[], []]
    assert np.isfinite(model.logits_of([model.tokenizer.tokenize("pain")])).all()


def test_unreadable_codes_have_no_known_word():
    model = CODERS["conv"]
    assert model.unreadable_codes() == [Code("icd10cm", "Z99.9")]
    listed = [(Code("icd10cm", "A00.0"), "trastorno agudo"), (Code("icd10cm", "A00.1"), "trastorno acute")]
    assert model.with_codes(listed).unreadable_codes() == [Code("icd10cm", "A00.0")]


@pytest.mark.parametrize("encoder", CODERS)
def test_evidence_spans_are_in_the_original_note(encoder):
    model = CODERS[encoder]
    every = model.evidence(as_notes([TEXT])[0], range(5), limit=4)
    assert len(every) == 5 and all(every)
    for spans in every:
        assert len(spans) <= 4
        for span in spans:
            assert 0 <= span.start < span.end <= len(TEXT)
            assert TEXT[span.start : span.end] == span.text
            assert 0 < span.score <= 1 + 1e-6


def with_retriever(model: DualLaat) -> DualLaat:
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, len(WORDS) + 2, 30).astype(np.int32) for _ in range(40)]
    gold = sparse.csr_matrix(rng.random((40, 5)) < 0.4)
    model.retriever = CandidateRetriever.fit(ids, gold, model.description_ids(model.descriptions).numpy())
    return model


def test_two_stage_scores_only_candidates():
    model = with_retriever(coder("gru"))
    encodings = [model.tokenizer.tokenize(text) for text in (TEXT, "", "pain 2")]
    full, some = model.logits_of(encodings), model.two_stage(2).logits_of(encodings)
    for row, encoding in enumerate(encodings):
        chosen = model.retriever.retrieve(encoding.ids, 2) if len(encoding.ids) else []
        assert some[row, chosen] == pytest.approx(full[row, chosen], abs=1e-4)
        assert (np.delete(some[row], chosen) == EXCLUDED_LOGIT).all()
    assert np.array_equal(model.two_stage(2).logits_of(encodings, [2, 0]), some[:, [2, 0]])
    assert np.array_equal(model.two_stage(5).logits_of(encodings), full), "as many candidates as codes: all are scored"
    assert np.array_equal(model.two_stage(0).logits_of(encodings), full)


def test_two_stages_on_a_cpu_encode_only_the_descriptions_of_candidates(monkeypatch):
    model, calls = with_retriever(coder("conv")).two_stage(2), []
    full = model.two_stage(0).logits_of([model.tokenizer.tokenize(TEXT)])
    model.weights_changed()
    encode = model.net.queries
    monkeypatch.setattr(model.net, "queries", lambda texts: calls.append(len(texts)) or encode(texts))
    note = as_notes([TEXT])[0]
    chosen = sorted(model.retriever.retrieve(model.tokenize(note).ids, 2).tolist())
    (explained,) = model.explained([note], lambda row: (row, np.flatnonzero(row).tolist()))
    assert np.flatnonzero(explained[0]).tolist() == chosen and calls == [2]
    assert model.logits_of([model.tokenize(note)])[0, chosen] == pytest.approx(full[0, chosen], abs=1e-5)
    assert calls == [2], "known descriptions are not encoded again"
    assert model.two_stage(0).logits_of([model.tokenize(note)]) == pytest.approx(full, abs=1e-5)
    assert calls == [2, 3], "only the others"


def test_two_stage_with_other_codes():
    model = with_retriever(coder("conv")).two_stage(1).with_codes([(Code("icd10cm", "A00.0"), "Pneumonia"), CODES[2]])
    assert (model.probabilities(as_notes(["pneumonia pneumonia"])) > 0).sum() == 1


@pytest.mark.parametrize("encoder", CODERS)
@pytest.mark.parametrize("candidates", [0, 3])
def test_loaded_bundle_gives_the_same_probabilities(encoder, candidates, tmp_path):
    model = with_retriever(coder(encoder)).two_stage(candidates) if candidates else coder(encoder)
    Bundle(model, Decision(0.5), {"kind": "dual_laat"}, {}).save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b").model
    loaded.to("cpu")
    assert isinstance(loaded, DualLaat) and loaded.candidates == candidates
    texts = [TEXT, "", "pneumonia 2"]
    assert np.array_equal(loaded.probabilities(as_notes(texts)), model.probabilities(as_notes(texts)))
    assert np.array_equal(loaded.train_counts, model.train_counts) and loaded.descriptions == model.descriptions
    new = [(Code("icd10cm", "A00.0"), "Acute pneumonia"), *CODES]
    assert np.array_equal(
        loaded.with_codes(new).probabilities(as_notes(texts)), model.with_codes(new).probabilities(as_notes(texts))
    )
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "bundle.json",
        "model.json",
        "model.safetensors",
    ]
    assert "proposer" not in json.loads((tmp_path / "b" / "model.json").read_text())["more"]


def test_damaged_bundle_is_refused(tmp_path):
    Bundle(coder("conv"), Decision(0.5), {"kind": "dual_laat"}, {}).save(tmp_path / "b")
    weights = tmp_path / "b" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BundleError, match=r"damaged: model\.safetensors"):
        Bundle.load(tmp_path / "b")
