"""HMHAN from a corpus to a bundle, with a transformer small enough for a test."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nosology.cli import app
from nosology.config import load_recipe
from nosology.core import Code, ConfigError, Note
from nosology.corpora.corpus import write_corpus
from nosology.encoders.state_cache import DeviceCachedStates
from nosology.encoders.transformer import WindowedTransformer
from nosology.evaluation.measure import measure
from nosology.explanation.explanation_report import explain_note
from nosology.models.bundle import Bundle
from nosology.models.hmhan import hmhan_trainer as hmhan
from nosology.models.hmhan.combinations import Combinations
from nosology.models.hmhan.hmhan_net import HmhanNets
from nosology.models.hmhan.hmhan_trainer import Course
from nosology.models.hmhan.report_batches import Batches, Reports, parts_of
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.models.train import train
from nosology.serving.coder import Coder
from nosology.serving.ray_engine import RayCoder, row_of
from nosology.training.run_folder import CURVES
from tests.conftest import as_notes, small_notes
from tests.encoders.tiny import tiny_bert

PAIR = (Code("icd9cm", "428.0"), Code("icd10cm", "I50.9"))  # the same in either version


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    encoder = tiny_bert(tmp_path_factory.mktemp("hmhan") / "encoder")
    return [
        f"model.encoder='{encoder}'",
        "model.heads=2",
        "model.hidden=[16, 8]",
        "model.ensemble_size=1",
        "training.epochs=3",
        "training.learning_rate=5e-3",
        "words.features=500",
        "words.c=[3.0]",
    ]


def with_columns(notes: list[Note]) -> list[Note]:
    """The notes with an age, and a modality that tells one of the codes."""
    heart = Code("icd10cm", "I50.9")
    return [
        replace(n, extra={"age": 40 + i % 9, "modality": "CT" if heart in n.codes else "XR"})
        for i, n in enumerate(notes)
    ]


def f1(bundle, corpus, out):
    return measure(bundle, corpus, "test", out).evaluation.metrics["micro_f1"]


def test_a_bundle_is_trained_saved_and_read_again(small_corpus, tiny, tmp_path):
    bundle = train(load_recipe("hmhan", tiny), [small_corpus], tmp_path / "bundle")
    again = Bundle.load(tmp_path / "bundle")
    texts = ["Type 2 diabetes. chronic low back pain", "no pneumonia", ""]
    assert np.array_equal(again.model.probabilities(as_notes(texts)), bundle.model.probabilities(as_notes(texts)))
    assert not again.model.probabilities(as_notes(texts))[2].any()
    assert f1(again, small_corpus, tmp_path / "report") > 0.6
    found = {a.method: a for a, _ in explain_note(again, as_notes(texts)[0], [0], [], samples=30)}
    assert list(found) == ["attention", "category", "occlusion", "lime"]
    for level in ("attention", "category"):
        assert found[level].weights.min() >= 0 and 0.5 < found[level].weights.sum() <= 1 + 1e-5
    assert not (tmp_path / "bundle.run").exists()


def test_members_hold_out_a_part_each_where_there_is_no_dev(tiny, tmp_path):
    notes = [replace(note, split=None, patient=f"p{i // 2}") for i, note in enumerate(small_notes(90))]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    recipe = load_recipe("hmhan", [*tiny, "model.ensemble_size=2", "training.epochs=2", "decision.at_least_one=true"])
    bundle = train(recipe, [corpus], tmp_path / "bundle")
    again = Bundle.load(tmp_path / "bundle")
    assert len(bundle.model.net.nets) == len(again.model.net.nets) == 2 and again.decision.at_least_one
    assert np.array_equal(
        again.model.probabilities(as_notes([notes[0].text])), bundle.model.probabilities(as_notes([notes[0].text]))
    )
    assert bundle.provenance["n_dev"] == 90 and "n_dev" not in bundle.provenance["found"]
    first, second = again.model.net.nets
    assert not torch.equal(first.head.own, second.head.own)
    assert torch.equal(first.words, second.words), "what words say is learned from all reports, by every member alike"
    course = Course.of(recipe, notes, tmp_path / "run", "")
    part = parts_of(course.train, 2, 0)
    assert all(part[i] == part[i + 1] for i in range(0, 90, 2)), "a patient's reports are in one part"
    assert 44 <= (part == 0).sum() <= 46


def test_reports_that_repeat_each_other_are_in_one_part(tiny, tmp_path):
    notes = small_notes(24)
    notes += [replace(note, id=f"again-{i}", patient=None) for i, note in enumerate(notes[:9])]
    train = Course.of(load_recipe("hmhan", tiny), notes, tmp_path, "").train
    part = parts_of(train, 3, 0)
    assert (part[24:] == part[:9]).all() and np.bincount(part).tolist() == [11, 11, 11]
    assert np.array_equal(parts_of(train.part(np.arange(33)[::-1]), 3, 0), part[::-1]), "in any order"


def test_reports_that_chain_most_of_the_others_are_apart_but_for_their_patients(tiny, tmp_path):
    notes = small_notes(12) + [replace(small_notes(1)[0], id=f"normal-{i}", patient=f"p{i // 2}") for i in range(40)]
    part = parts_of(Course.of(load_recipe("hmhan", tiny), notes, tmp_path, "").train, 4, 0)
    assert np.bincount(part).tolist() == [13] * 4 and (part[12::2] == part[13::2]).all()


def test_a_frozen_encoder_reads_each_report_once_and_columns_count(tiny, tmp_path):
    corpus = write_corpus(
        with_columns(small_notes(80)), tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={}
    )
    cache = tmp_path / "states"
    frozen = [*tiny, "model.frozen=true", f"states.cache='{cache}'", "smote.share=1.0", "words.features=0"]
    bundle = train(load_recipe("hmhan", frozen), [corpus], tmp_path / "bundle")
    [kept] = cache.iterdir()
    before = (kept / "states.f16").stat()
    assert before.st_size % (2 * 16) == 0 and before.st_size > 0
    train(load_recipe("hmhan", [*frozen, "seed=5"]), [corpus], tmp_path / "second")
    assert (kept / "states.f16").stat().st_size == before.st_size, "the second run found everything there"
    model = bundle.model
    assert not any(weight.requires_grad for weight in model.net.nets[0].encoder.parameters())
    told = Note("a", "seen today", extra={"modality": "CT", "age": 44})
    assert (model.probabilities([told]) != model.probabilities([replace(told, extra={})])).all()
    assert np.array_equal(model.probabilities([replace(told, extra={})]), model.probabilities(as_notes(["seen today"])))


def test_a_column_that_training_always_had_may_be_unknown_later(tiny, tmp_path):
    notes = with_columns(small_notes(40))
    course = Course.of(load_recipe("hmhan", [*tiny, "model.frozen=true"]), notes, tmp_path, "told")
    weight = course.net(np.arange(40), 0).head.columns.weight
    assert course.model.columns.vector({}).tolist() == [0, 1, 0, 0, 1], "age, its mark; CT, XR, neither"
    assert weight.any(0).tolist() == [True, False, True, True, False], "what was never seen says nothing"


def test_a_report_is_coded_and_explained_with_what_stands_beside_it(tiny, tmp_path):
    notes = with_columns(small_notes(60))
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    settings = [*tiny, "model.frozen=true", "words.features=0"]
    bundle = train(load_recipe("hmhan", settings), [corpus], tmp_path / "bundle")
    scan, other = (replace(notes[0], extra={"age": 44, "modality": kind}) for kind in ("CT", "XR"))
    asked = bundle.model.probabilities([scan, other])
    assert not np.array_equal(*asked)
    for note, expected in zip((scan, other), asked):
        [found] = Coder(bundle).code_all([note])
        column = {code: j for j, code in enumerate(bundle.model.labels.codes)}
        shown = {column[Code(item.system, item.code)]: item.probability for item in found}
        assert shown == {j: pytest.approx(expected[j]) for j in shown}
        [codes] = RayCoder({"folder": tmp_path / "bundle"}, None)({k: [v] for k, v in row_of(0, note).items()})["codes"]
        assert json.loads(codes) == [item.to_json() for item in found]
        [(_, about)] = explain_note(bundle, note, [0], ["occlusion"])
        assert about["probability"] == pytest.approx(expected[0])


def test_members_above_one_frozen_encoder_let_it_read_a_report_once(tiny, tmp_path):
    notes = with_columns([replace(note, split=None) for note in small_notes(40)])
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    settings = [*tiny, "model.frozen=true", "model.ensemble_size=2", "training.epochs=1"]
    train(load_recipe("hmhan", settings), [corpus], tmp_path / "bundle")
    model = Bundle.load(tmp_path / "bundle").model
    alone = [replace(model, net=HmhanNets([net])) for net in model.net.nets]
    texts = [note.text for note in notes[:3]]
    reads, calls = [model.tokenize(note) for note in as_notes(texts)], []
    model.net.nets[0].encoder.register_forward_hook(lambda *_: calls.append(1))
    together = model.logits_of(reads)
    assert len(calls) == 1
    assert together == pytest.approx(np.mean([one.logits_of(reads) for one in alone], axis=0), abs=1e-5)
    calls.clear()
    weights = model.attention_weights(as_notes(texts)[0], [0]).weights
    assert len(calls) == 1
    assert weights == pytest.approx(
        np.mean([one.attention_weights(as_notes(texts)[0], [0]).weights for one in alone], axis=0), abs=1e-5
    )


def test_heads_that_do_not_divide_the_width_are_the_users_mistake(tiny, small_corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"model.heads must divide .* 16; got 3"):
        train(load_recipe("hmhan", [*tiny, "model.heads=3"]), [small_corpus], tmp_path / "bundle")


def test_states_from_disk_give_what_the_encoder_gives(tiny, tmp_path):
    recipe = load_recipe("hmhan", [*tiny, "model.frozen=true"])
    course = Course.of(recipe, small_notes(12), tmp_path, "")
    rows = np.arange(12)
    net = course.net(rows, 0).eval()
    kept, asked = (Batches(course.train, rows, places, None).make(rows, None) for places in (course.places, None))
    assert kept.states is not None and asked.states is None
    with torch.no_grad():
        assert net.logits(kept).numpy() == pytest.approx(net.logits(asked).numpy(), abs=5e-3)


def test_a_frozen_encoder_reads_dev_once_however_many_epochs_there_are(tiny, tmp_path, monkeypatch):
    asked, forward = [], WindowedTransformer.forward
    monkeypatch.setattr(WindowedTransformer, "forward", lambda *given: asked.append(1) or forward(*given))
    calls = []
    for epochs in (1, 3):
        recipe = load_recipe("hmhan", [*tiny, "model.frozen=true", f"training.epochs={epochs}", "training.patience=9"])
        course = Course.of(recipe, small_notes(30), tmp_path / str(epochs), "")
        dev = Reports.of(small_notes(12), recipe, course.model)
        asked.clear()
        net, _ = course.member(0, np.arange(30), dev, tmp_path / str(epochs) / "member")
        calls.append(len(asked))
    assert calls[0] == calls[1]
    model = replace(course.model, net=HmhanNets([net]))
    kept = model.logits_of(dev.reports, places=course.states(dev))
    assert kept == pytest.approx(model.logits_of(dev.reports), abs=5e-3)


@pytest.mark.parametrize("words", [0, 500])
def test_states_on_a_device_and_states_from_disk_train_the_same_net(words, tiny, tmp_path, monkeypatch):
    settings = [*tiny, "model.frozen=true", "smote.share=1.0", f"words.features={words}", "training.epochs=2"]
    rows, curves, nets = np.arange(40), [], []
    for there in (False, True):
        if there:
            monkeypatch.setattr(hmhan, "load_on_device", lambda places, device, _: DeviceCachedStates(places, device))
        notes = with_columns(small_notes(40))  # of both ICD versions
        course = Course.of(load_recipe("hmhan", settings), notes, tmp_path / f"run-{there}", "")
        net, _ = course.member(0, rows, None, tmp_path / f"member-{there}")
        assert (course.near is not None) == there
        lines = (tmp_path / f"member-{there}" / CURVES).read_text().splitlines()
        curves.append([line.split(",")[:3] for line in lines])
        nets.append(net.state_dict())
    assert curves[0] == curves[1] and len(curves[0]) > 4
    assert all(torch.equal(nets[1][name], weight) for name, weight in nets[0].items())


def test_class_weights_are_of_the_rows_that_are_learned_from_and_the_scaler_of_all_train_notes(tiny, tmp_path):
    notes = with_columns(small_notes(40))
    course = Course.of(load_recipe("hmhan", [*tiny, "loss.weighted=true"]), notes, tmp_path, "")
    rows = np.arange(20)
    net = course.net(rows, 0)
    positives = course.train.gold[:20].toarray().sum(0)
    expected = np.clip((20 - positives) / np.maximum(positives, 1), 1, 10)
    assert net.weights.numpy() == pytest.approx(expected)
    ages = [note.extra["age"] for note in notes]
    assert course.model.columns.numbers["age"] == pytest.approx((np.mean(ages), np.std(ages)))


def test_synthetic_rows_are_in_the_loss_and_in_no_target(tiny, tmp_path):
    course = Course.of(load_recipe("hmhan", [*tiny, "smote.share=2.0"]), small_notes(60), tmp_path, "")
    rows = np.arange(10, 60)
    made = course.synthetic(rows, 3)
    assert len(made) and set(made.first) | set(made.second) <= set(rows.tolist()), "only rows that are learned from"
    batches = Batches(course.train, rows, None, made)
    held = np.flatnonzero(np.isin(rows, made.first))[:4]
    batch = batches.make(held, None)
    assert len(batch.targets) == 4 and len(batch.synthetic.targets) == np.isin(made.first, rows[held]).sum()
    net = course.net(rows, 0).eval()
    with torch.no_grad():
        net.head.bias.copy_(torch.arange(len(net.head.bias)))  # a fresh head says the same of all
        assert float(net(batch)) != pytest.approx(float(net(replace(batch, synthetic=None))), rel=1e-6)


def test_compare_prints_recipes_with_their_tests(small_corpus, tiny, tmp_path):
    recipes = ["hmhan", "hmhan model.attention=single", "hmhan model.attention=none"]
    asked = ["compare", *recipes, "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "out"), "--seeds", "2"]
    settings = [part for setting in [*tiny, "training.epochs=1", "words.features=0"] for part in ("--set", setting)]
    found = CliRunner().invoke(app, [*asked, *settings])
    assert found.exit_code == 0, found.output + repr(found.exception)
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert list(rows["rows"]) == ["hmhan", "hmhan-model.attention_single", "hmhan-model.attention_none"]
    assert len(rows["rows"]["hmhan"]["micro_f1"]["values"]) == 2
    assert "bootstrap over patients" in found.stdout and "paired t-test p" in found.stdout
    before = (tmp_path / "out" / "hmhan-0" / "bundle.json").stat().st_mtime
    assert CliRunner().invoke(app, [*asked, *settings]).exit_code == 0
    assert (tmp_path / "out" / "hmhan-0" / "bundle.json").stat().st_mtime == before, "what is there is taken"
    for pair in (["linear", "linear"], ["linear", "linear labels.top_k=2"]):
        refused = CliRunner().invoke(app, ["compare", *pair, *asked[4:]])
        assert isinstance(refused.exception, ConfigError)


def test_sets_of_one_icd_version_take_nothing_from_those_of_the_other(tiny, tmp_path):
    notes = [Note(f"n{i}", text="heart failure", codes=(PAIR[i % 2],)) for i in range(6)]
    model = Course.of(load_recipe("hmhan", tiny), notes, tmp_path, "told").model
    model.combinations = replace(Combinations.of(model.labels.encode([note.codes for note in notes])), share=1.0)
    logits = np.full((1, 2), 3.0, dtype=np.float32)
    both = model.to_probabilities(logits)
    for own in (0, 1):
        alone = np.where(np.arange(2) == own, logits, EXCLUDED_LOGIT)
        assert both[0, own] == model.to_probabilities(alone)[0, own] > 0.9


def test_a_loss_of_nothing_is_refused(tiny):
    with pytest.raises(ConfigError, match="must not both be 0"):
        load_recipe("hmhan", [*tiny, "loss.focal=0", "loss.bce=0"])


def test_a_code_without_a_note_has_no_list_of_words(small_corpus, tiny, tmp_path):
    train(load_recipe("hmhan", tiny), [small_corpus], tmp_path / "bundle")
    found = CliRunner().invoke(app, ["explain", str(tmp_path / "bundle"), "--code", "I50.9"])
    assert isinstance(found.exception, ConfigError) and "stores no informative words" in str(found.exception)


def test_nets_that_add_nothing_are_not_asked_and_are_named(tiny, tmp_path, monkeypatch):
    """Words alone then speak, which the training says and the bundle keeps."""
    notes = with_columns(small_notes(40))
    settings = [*tiny, "words.features=100", "model.frozen=true", "training.epochs=1"]
    corpus = write_corpus(notes, tmp_path / "notes", source={"kind": "test"}, filters=[], counts={})
    monkeypatch.setattr("nosology.models.hmhan.hmhan_decision.largest_good", lambda _: 0.0)
    bundle = train(load_recipe("hmhan", settings), [corpus], tmp_path / "bundle")
    assert bundle.provenance["found"]["net_share"] == 0.0
    model, texts = bundle.model, [note.text for note in notes[:5]]
    before = model.probabilities(as_notes(texts))
    for net in model.net.nets:
        torch.nn.init.normal_(net.head.own)
        monkeypatch.setattr(net.encoder, "forward", None)
    assert (model.probabilities(as_notes(texts)) == before).all()


def test_lime_asks_for_scores_to_about_a_hundredth(tiny, tmp_path):
    notes = with_columns(small_notes(40))
    corpus = write_corpus(notes, tmp_path / "notes", source={"kind": "test"}, filters=[], counts={})
    model = train(load_recipe("hmhan", [*tiny, "training.epochs=1"]), [corpus], tmp_path / "bundle").model
    texts = [note.text for note in notes]
    assert np.abs(model.approximate_probabilities(as_notes(texts)) - model.probabilities(as_notes(texts))).max() < 0.02
    assert not torch.is_autocast_enabled("cpu")
