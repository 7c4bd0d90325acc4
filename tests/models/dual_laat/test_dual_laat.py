"""The DualLAAT coder: its size, what may not change a score, codes by description, and the way to disk and back."""

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
from nosology.models.dual_laat.dual_laat_model import DualLaat
from nosology.models.dual_laat.dual_laat_net import DualLaatNet
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
    shape = DualLaatSettings(encoder=encoder, width=6, heads=3, kernel=4, labels=4)
    reader = WordTokenizer(Vocabulary(WORDS), 200)
    torch.manual_seed(seed)
    net = DualLaatNet(shape, len(reader.vocabulary), 5)
    with torch.no_grad():
        for weight in net.parameters():  # large ones, so that attention is far from even and a difference shows
            weight.copy_(torch.randn_like(weight))
        net.embedding.weight[0] = 3.0  # a pad that somebody has trained
    labels = LabelSpace(code for code, _ in CODES)
    made = DualLaat(labels, np.arange(5), reader, net.eval(), shape, descriptions=[text for _, text in CODES])
    net.descriptions = made.description_ids(made.descriptions)
    return made


CODERS = {encoder: coder(encoder) for encoder in ("gru", "conv")}


def notes_of(lengths: list[int], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, len(WORDS) + 2, n) for n in lengths]


def close(found: torch.Tensor, wanted: torch.Tensor, scale: torch.Tensor) -> bool:
    return bool(((found - wanted).abs() < 1e-5 * max(1.0, scale.abs().max().item())).all())


@pytest.mark.parametrize("encoder, width, size", [("gru", 512, 37_332_425), ("conv", 256, 14_665_673)])
def test_as_many_parameters_as_in_the_paper(encoder, width, size):
    with torch.device("meta"):
        net = DualLaatNet(DualLaatSettings(encoder=encoder, width=width), 125_762, 100)
    assert sum(weight.numel() for weight in net.parameters()) == size


@QUICK
@given(ENCODERS, LENGTHS, st.integers(0, 99), st.integers(1, 90))
def test_pads_never_change_a_score_or_a_weight(encoder, lengths, seed, pads):
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
def test_batch_mates_never_change_a_score(encoder, lengths, seed):
    net = CODERS[encoder].net
    notes = notes_of(lengths, seed)
    together = net.logits(Batch(*pad_notes(notes)))
    for row, note in zip(together, notes):
        assert close(net.logits(Batch(*pad_notes([note])))[0], row, together)


@QUICK
@given(ENCODERS, st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 99))
def test_other_labels_never_change_a_score(encoder, columns, seed):
    net = CODERS[encoder].net
    notes = Batch(*pad_notes(notes_of([7, 0, 30], seed)))
    every = net.logits(notes)
    some = net.logits(Batch(notes.tokens, notes.lengths, torch.tensor(columns)))
    assert close(some, every[:, columns], every)


@pytest.mark.parametrize("encoder", CODERS)
def test_loss_is_the_cross_entropy_of_the_logits_and_reaches_every_weight(encoder):
    net = coder(encoder).net
    tokens, sizes = pad_notes(notes_of([9, 0, 30, 3], 1))
    labels, targets = torch.tensor([4, 0, 1]), torch.eye(4)[:, :3]
    batch = Batch(tokens, sizes, labels, targets)
    loss = net(batch)
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(net.logits(batch), targets)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    loss.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in net.parameters())


@pytest.mark.parametrize("encoder", CODERS)
def test_a_number_makes_a_difference(encoder):
    made = CODERS[encoder]
    first, second = made.logits_of([made.tokenizer.tokenize(TEXT)], [0, 1])[0]
    assert abs(first - second) > 1e-3
    assert not np.array_equal(*made.description_ids([text for _, text in CODES[:2]]))


def test_descriptions_are_encoded_once(monkeypatch):
    made, calls = coder("conv"), []
    encode = made.net.queries
    monkeypatch.setattr(made.net, "queries", lambda texts: calls.append(len(texts)) or encode(texts))
    for _ in range(3):
        made.probabilities(as_notes([TEXT, "pain"]))
        made.evidence(as_notes([TEXT])[0], [0, 2])
        made.logits_of([made.tokenizer.tokenize(TEXT)], [1, 3])
    assert calls == [5]
    made.weights_changed()
    made.probabilities(as_notes([TEXT]))
    assert calls == [5, 5]


def test_many_descriptions_are_encoded_in_parts_alike(monkeypatch):
    made = CODERS["gru"]
    whole = made.net.all_queries(made.net.descriptions)
    monkeypatch.setattr("nosology.models.dual_laat.dual_laat_net._CODES", 2)
    assert (made.net.all_queries(made.net.descriptions) - whole).abs().max() < 1e-6
    assert whole.shape == (3, 5, 6)


def test_other_codes_need_their_descriptions_alone():
    made = CODERS["conv"]
    new = Code("icd10cm", "A00.0")
    other = made.with_codes([(new, "Acute pneumonia"), *CODES[2:0:-1]])
    assert other.labels.codes == (new, Code("icd10cm", "I50.9"), Code("icd10cm", "E11.9"))
    assert other.train_counts.tolist() == [0, 2, 1]
    before, after = made.probabilities(as_notes([TEXT])), other.probabilities(as_notes([TEXT]))
    assert after.shape == (1, 3)
    assert after[0, 1:] == pytest.approx(before[0, [2, 1]], abs=1e-5)
    assert made.labels.codes == tuple(code for code, _ in CODES), "the coder itself stays"
    assert made.probabilities(as_notes([TEXT])) == pytest.approx(before)


def test_codes_with_one_description_have_one_score():
    made = CODERS["gru"].with_codes([(Code("icd10cm", code), "Heart failure") for code in ("I50.1", "I50.9")])
    first, second = made.probabilities(as_notes([TEXT]))[0]
    assert first == pytest.approx(second, abs=1e-6)


def test_notes_and_descriptions_without_a_word():
    made = CODERS["conv"]
    found = made.probabilities(as_notes(["", "...", "pain"]))
    assert not found[:2].any() and found[2].all()
    assert made.evidence(as_notes(["?!"])[0], [0, 4]) == [[], []]
    assert np.isfinite(made.logits_of([made.tokenizer.tokenize("pain")])).all()


def test_codes_that_no_known_word_describes_are_named():
    made = CODERS["conv"]
    assert made.unreadable_codes() == [Code("icd10cm", "Z99.9")]
    listed = [(Code("icd10cm", "A00.0"), "trastorno agudo"), (Code("icd10cm", "A00.1"), "trastorno acute")]
    assert made.with_codes(listed).unreadable_codes() == [Code("icd10cm", "A00.0")]


@pytest.mark.parametrize("encoder", CODERS)
def test_evidence_lies_in_the_note_as_it_was_given(encoder):
    made = CODERS[encoder]
    every = made.evidence(as_notes([TEXT])[0], range(5), limit=4)
    assert len(every) == 5 and all(every)
    for spans in every:
        assert len(spans) <= 4
        for span in spans:
            assert 0 <= span.start < span.end <= len(TEXT)
            assert TEXT[span.start : span.end] == span.text
            assert 0 < span.score <= 1 + 1e-6


def with_retriever(made: DualLaat) -> DualLaat:
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, len(WORDS) + 2, 30).astype(np.int32) for _ in range(40)]
    gold = sparse.csr_matrix(rng.random((40, 5)) < 0.4)
    made.retriever = CandidateRetriever.fit(ids, gold, made.description_ids(made.descriptions).numpy())
    return made


def test_in_two_stages_the_candidates_have_their_full_scores_and_the_others_none():
    made = with_retriever(coder("gru"))
    reads = [made.tokenizer.tokenize(text) for text in (TEXT, "", "pain 2")]
    full, some = made.logits_of(reads), made.two_stage(2).logits_of(reads)
    for row, read in enumerate(reads):
        kept = made.retriever.retrieve(read.ids, 2) if len(read.ids) else []
        assert some[row, kept] == pytest.approx(full[row, kept], abs=1e-4)
        assert (np.delete(some[row], kept) == EXCLUDED_LOGIT).all()
    assert np.array_equal(made.two_stage(5).logits_of(reads), full), "as many candidates as codes: all are scored"
    assert np.array_equal(made.two_stage(0).logits_of(reads), full)


def test_other_codes_in_two_stages():
    made = with_retriever(coder("conv")).two_stage(1).with_codes([(Code("icd10cm", "A00.0"), "Pneumonia"), CODES[2]])
    assert (made.probabilities(as_notes(["pneumonia pneumonia"])) > 0).sum() == 1


@pytest.mark.parametrize("encoder", CODERS)
@pytest.mark.parametrize("candidates", [0, 3])
def test_a_bundle_gives_the_same_probabilities_after_saving(encoder, candidates, tmp_path):
    made = with_retriever(coder(encoder)).two_stage(candidates) if candidates else coder(encoder)
    Bundle(made, Decision(0.5), {"kind": "dual_laat"}, {}).save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b").model
    loaded.to("cpu")
    assert isinstance(loaded, DualLaat) and loaded.candidates == candidates
    texts = [TEXT, "", "pneumonia 2"]
    assert np.array_equal(loaded.probabilities(as_notes(texts)), made.probabilities(as_notes(texts)))
    assert np.array_equal(loaded.train_counts, made.train_counts) and loaded.descriptions == made.descriptions
    new = [(Code("icd10cm", "A00.0"), "Acute pneumonia"), *CODES]
    assert np.array_equal(
        loaded.with_codes(new).probabilities(as_notes(texts)), made.with_codes(new).probabilities(as_notes(texts))
    )
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "bundle.json",
        "model.json",
        "model.safetensors",
    ]
    assert "proposer" not in json.loads((tmp_path / "b" / "model.json").read_text())["more"]


def test_a_damaged_bundle_is_refused(tmp_path):
    Bundle(coder("conv"), Decision(0.5), {"kind": "dual_laat"}, {}).save(tmp_path / "b")
    weights = tmp_path / "b" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BundleError, match=r"damaged: model\.safetensors"):
        Bundle.load(tmp_path / "b")
