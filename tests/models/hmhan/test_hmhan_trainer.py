"""HMHAN from a corpus to a bundle, with a tiny transformer."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nosology.cli import app
from nosology.codes.lookup import label_description
from nosology.config import load_recipe
from nosology.core import Code, ConfigError, Note
from nosology.corpora.corpus import write_corpus
from nosology.encoders.state_cache import DeviceCachedStates
from nosology.encoders.transformer import WindowedTransformer
from nosology.evaluation.measure import measure
from nosology.explanation.explanation_report import explain_note
from nosology.models.bundle import Bundle
from nosology.models.hmhan import hmhan_ensemble
from nosology.models.hmhan import hmhan_trainer as hmhan
from nosology.models.hmhan.code_groups import CodeCombinations
from nosology.models.hmhan.hmhan_decision import mask_by_date
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer, described_codes, load_report_encoder
from nosology.models.hmhan.hmhan_net import HmhanEnsemble
from nosology.models.hmhan.report_batches import ReportBatchBuilder, ReportDataset, assign_folds
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.models.train import train
from nosology.serving.coder import Coder
from nosology.serving.ray_engine import RayCoder, note_row
from nosology.training.run_folder import CURVES
from tests.conftest import as_notes, small_notes
from tests.encoders.tiny import tiny_hmhan_settings

PAIR = (Code("icd9cm", "428.0"), Code("icd10cm", "I50.9"))  # the same in either version


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    return tiny_hmhan_settings(tmp_path_factory.mktemp("hmhan"))


def with_columns(notes: list[Note]) -> list[Note]:
    """The notes with an age, and a modality that indicates one of the codes."""
    heart = Code("icd10cm", "I50.9")
    return [
        replace(n, extra={"age": 40 + i % 9, "modality": "CT" if heart in n.codes else "XR"})
        for i, n in enumerate(notes)
    ]


def f1(bundle, corpus, out):
    return measure(bundle, corpus, "test", out).evaluation.metrics["micro_f1"]


@pytest.fixture(scope="module")
def trained(small_corpus, tiny, tmp_path_factory):
    """A trained bundle and its folder."""
    folder = tmp_path_factory.mktemp("trained") / "bundle"
    return train(load_recipe("hmhan", tiny), [small_corpus], folder), folder


def test_bundle_is_trained_saved_and_loaded(small_corpus, trained, tmp_path):
    bundle, folder = trained
    again = Bundle.load(folder)
    texts = ["Type 2 diabetes. chronic low back pain", "no pneumonia", ""]
    assert np.array_equal(again.model.probabilities(as_notes(texts)), bundle.model.probabilities(as_notes(texts)))
    assert not again.model.probabilities(as_notes(texts))[2].any()
    assert f1(again, small_corpus, tmp_path / "report") > 0.4
    attributions = {a.method: a for a, _ in explain_note(again, as_notes(texts)[0], [0], [], samples=30)}
    assert list(attributions) == ["attention", "category", "occlusion", "lime"]
    for level in ("attention", "category"):
        assert attributions[level].weights.min() >= 0 and 0.5 < attributions[level].weights.sum() <= 1 + 1e-5
    assert not folder.with_name("bundle.run").exists()


def test_without_dev_each_net_holds_out_one_fold(tiny, tmp_path):
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
    assert not torch.equal(first.head.code_weight, second.head.code_weight)
    trainer = HmhanEnsembleTrainer.from_notes(recipe, notes, tmp_path / "run", "")
    fold = assign_folds(trainer.train, 2, 0)
    assert all(fold[i] == fold[i + 1] for i in range(0, 90, 2)), "reports of a patient are in one fold"
    assert 44 <= (fold == 0).sum() <= 46


@pytest.mark.parametrize("refit", [False, True])
def test_a_report_without_words_gets_the_most_frequent_code_if_each_report_has_one(refit, tiny, tmp_path):
    notes = [replace(note, split=("train", "dev")[i % 3 == 2]) for i, note in enumerate(small_notes(60)) if note.codes]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    train(load_recipe("hmhan", [*tiny, "training.epochs=1"]), [corpus], tmp_path / "bundle", refit=refit)
    bundle = Bundle.load(tmp_path / "bundle")
    known = [note for note in notes if refit or note.split == "train"]
    shares = [sum(code in note.codes for note in known) / len(known) for code in bundle.model.labels.codes]
    probabilities = bundle.model.probabilities(as_notes(["12345 67 89.0 ###", "...", ""]))
    assert probabilities == pytest.approx(np.array([shares, shares, np.zeros(len(shares))]), abs=1e-6)
    accepted = [[item.code for item in codes if item.accepted] for codes in Coder(bundle).code_all(["...", ""])]
    assert bundle.decision.at_least_one and accepted[0] and not accepted[1]


def test_near_duplicate_reports_are_in_one_fold(tiny, tmp_path):
    notes = small_notes(24)
    notes += [replace(note, id=f"again-{i}", patient=None) for i, note in enumerate(notes[:9])]
    train = HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", tiny), notes, tmp_path, "").train
    fold = assign_folds(train, 3, 0)
    assert (fold[24:] == fold[:9]).all() and np.bincount(fold).tolist() == [11, 11, 11]
    assert np.array_equal(assign_folds(train.subset(np.arange(33)[::-1]), 3, 0), fold[::-1]), "for any order of reports"


def test_folds_use_patients_if_near_duplicates_chain_most_reports(tiny, tmp_path):
    notes = small_notes(12) + [replace(small_notes(1)[0], id=f"normal-{i}", patient=f"p{i // 2}") for i in range(40)]
    fold = assign_folds(HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", tiny), notes, tmp_path, "").train, 4, 0)
    assert np.bincount(fold).tolist() == [13] * 4 and (fold[12::2] == fold[13::2]).all()


def test_frozen_encoder_runs_once_per_report_and_columns_change_scores(tiny, tmp_path):
    corpus = write_corpus(
        with_columns(small_notes(80)), tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={}
    )
    cache = tmp_path / "states"
    frozen = [*tiny, "model.frozen=true", f"states.cache='{cache}'", "smote.ratio=1.0"]
    bundle = train(load_recipe("hmhan", frozen), [corpus], tmp_path / "bundle")
    [entry] = cache.iterdir()
    before = (entry / "states.f16").stat()
    assert before.st_size % (2 * 16) == 0 and before.st_size > 0
    train(load_recipe("hmhan", [*frozen, "seed=5"]), [corpus], tmp_path / "second")
    assert (entry / "states.f16").stat().st_size == before.st_size, "the second run reads all states from the cache"
    model = bundle.model
    assert not any(weight.requires_grad for weight in model.net.nets[0].encoder.parameters())
    note = Note("a", "seen today", extra={"modality": "CT", "age": 44})
    assert (model.probabilities([note]) != model.probabilities([replace(note, extra={})])).all()
    assert np.array_equal(model.probabilities([replace(note, extra={})]), model.probabilities(as_notes(["seen today"])))


def test_column_values_unseen_in_training_have_zero_weights(tiny, tmp_path):
    notes = with_columns(small_notes(40))
    trainer = HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", [*tiny, "model.frozen=true"]), notes, tmp_path, "")
    weight = trainer.build_net(np.arange(40), 0).head.columns.weight
    assert trainer.model.columns.vector({}).tolist() == [0, 1, 0, 0, 1], "age, age unknown; CT, XR, modality unknown"
    assert weight.any(0).tolist() == [True, False, True, True, False], "unknown flags were never set in training"


def test_report_is_coded_and_explained_with_its_columns(tiny, tmp_path):
    notes = with_columns(small_notes(60))
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    settings = [*tiny, "model.frozen=true"]
    bundle = train(load_recipe("hmhan", settings), [corpus], tmp_path / "bundle")
    scan, other = (replace(notes[0], extra={"age": 44, "modality": kind}) for kind in ("CT", "XR"))
    probabilities = bundle.model.probabilities([scan, other])
    assert not np.array_equal(*probabilities)
    for note, expected in zip((scan, other), probabilities):
        [suggestions] = Coder(bundle).code_all([note])
        column = {code: j for j, code in enumerate(bundle.model.labels.codes)}
        shown = {column[Code(item.system, item.code)]: item.probability for item in suggestions}
        assert shown == {j: pytest.approx(expected[j]) for j in shown}
        [codes] = RayCoder({"folder": tmp_path / "bundle"}, None)({k: [v] for k, v in note_row(note).items()})["codes"]
        assert json.loads(codes) == [item.to_json() for item in suggestions]
        [(_, about)] = explain_note(bundle, note, [0], ["occlusion"])
        assert about["probability"] == pytest.approx(expected[0])


def test_nets_with_one_frozen_encoder_run_it_once_per_report(tiny, tmp_path):
    notes = with_columns([replace(note, split=None) for note in small_notes(40)])
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    settings = [*tiny, "model.frozen=true", "model.ensemble_size=2", "training.epochs=1"]
    train(load_recipe("hmhan", settings), [corpus], tmp_path / "bundle")
    model = Bundle.load(tmp_path / "bundle").model
    single = [replace(model, net=HmhanEnsemble([net])) for net in model.net.nets]
    texts = [note.text for note in notes[:3]]
    encodings, calls = [model.tokenize(note) for note in as_notes(texts)], []
    model.net.nets[0].encoder.register_forward_hook(lambda *_: calls.append(1))
    together = model.logits_of(encodings)
    assert len(calls) == 1
    assert together == pytest.approx(np.mean([part.logits_of(encodings) for part in single], axis=0), abs=1e-5)
    calls.clear()
    weights = model.attention_weights(as_notes(texts)[0], [0]).weights
    assert len(calls) == 1
    assert weights == pytest.approx(
        np.mean([part.attention_weights(as_notes(texts)[0], [0]).weights for part in single], axis=0), abs=1e-5
    )


def test_nets_learn_from_the_description_of_each_code(tiny, tmp_path, monkeypatch):
    """In training alone: folds, counts, synthetic rows and decisions are of reports."""
    notes = [replace(note, split=None) for note in small_notes(40)]
    corpus = write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    settings = [*tiny, "model.ensemble_size=2", "training.epochs=1", "report.descriptions=true", "smote.ratio=1.0"]
    seen, build = [], ReportBatchBuilder.build

    def spy(self, chosen, shared):
        seen.append((self, chosen))
        return build(self, chosen, shared)

    monkeypatch.setattr(ReportBatchBuilder, "build", spy)
    bundle = train(load_recipe("hmhan", settings), [corpus], tmp_path / "bundle")
    labels, model = bundle.model.labels, bundle.model
    assert bundle.provenance["n_dev"] == len(notes) and model.train_counts.sum() == sum(len(n.codes) for n in notes)
    for builder in {id(builder): builder for builder, _ in seen}.values():
        learned = {int(builder.rows[row]) for other, chosen in seen if other is builder for row in chosen}
        added = set(range(len(notes), len(notes) + len(labels)))
        assert added < learned and len(learned - added) == len(notes) // 2, "all descriptions, one half of the reports"
        assert max(builder.synthetic.first.max(), builder.synthetic.second.max()) < len(notes)
        for row, code in zip(sorted(added), labels.codes):
            text = label_description(code, expand_headers=True)
            assert builder.train.reports[row].ids.tolist() == model.tokenize(Note("", text)).ids.tolist()
            assert builder.train.gold[row].indices.tolist() == [labels.column(code)]
    with pytest.raises(ConfigError, match=r"report.descriptions must be false"):
        load_recipe("reports", [*tiny, "report.descriptions=true"])


def test_no_code_is_a_negative_of_another_with_the_same_description(trained, monkeypatch):
    model = trained[0].model
    texts = {code: "infection" if code.system == "icd10cm" else str(code) for code in model.labels.codes}
    monkeypatch.setattr(hmhan_ensemble, "label_description", lambda code, **_: texts[code])
    reports, gold, _ = described_codes(model)
    assert len(reports) == len(model.labels)
    for row, code in zip(gold, model.labels.codes):
        assert {model.labels.codes[j] for j in row.indices} == {c for c in texts if texts[c] == texts[code]}


def test_the_longest_report_is_one_window_of_the_encoder(tiny):
    tokenizer, encoder = load_report_encoder(load_recipe("hmhan", [*tiny, "report.max_tokens=20"]))
    assert len(tokenizer.tokenize("pneumonia " * 50)) + len(encoder.prefix_ids) + len(encoder.suffix_ids) == 20


def test_heads_that_do_not_divide_the_width_raise_config_error(tiny, small_corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"model.heads must divide .* 16; got 3"):
        train(load_recipe("hmhan", [*tiny, "model.heads=3"]), [small_corpus], tmp_path / "bundle")


def test_cached_states_give_the_logits_of_the_encoder(tiny, tmp_path):
    recipe = load_recipe("hmhan", [*tiny, "model.frozen=true"])
    trainer = HmhanEnsembleTrainer.from_notes(recipe, small_notes(12), tmp_path, "")
    rows = np.arange(12)
    net = trainer.build_net(rows, 0).eval()
    cached, encoded = (
        ReportBatchBuilder(trainer.train, rows, states, None).build(rows, None)
        for states in (trainer.cached_states, None)
    )
    assert cached.states is not None and encoded.states is None
    with torch.no_grad():
        assert net.logits(cached).numpy() == pytest.approx(net.logits(encoded).numpy(), abs=5e-3)


def test_frozen_encoder_encodes_dev_once_for_all_epochs(tiny, tmp_path, monkeypatch):
    runs, forward = [], WindowedTransformer.forward
    monkeypatch.setattr(WindowedTransformer, "forward", lambda *arguments: runs.append(1) or forward(*arguments))
    calls = []
    for epochs in (1, 3):
        recipe = load_recipe("hmhan", [*tiny, "model.frozen=true", f"training.epochs={epochs}", "training.patience=9"])
        trainer = HmhanEnsembleTrainer.from_notes(recipe, small_notes(30), tmp_path / str(epochs), "")
        dev = ReportDataset.from_notes(small_notes(12), recipe, trainer.model)
        runs.clear()
        validate = partial(hmhan.dev_metrics, dev=dev, cached_states=trainer.encode(dev))
        net, _ = trainer.train_net(0, np.arange(30), tmp_path / str(epochs) / "net", validate)
        calls.append(len(runs))
    assert calls[0] == calls[1]
    model = replace(trainer.model, net=HmhanEnsemble([net]))
    cached = model.logits_of(dev.reports, cached_states=trainer.encode(dev))
    assert cached == pytest.approx(model.logits_of(dev.reports), abs=5e-3)


@pytest.mark.parametrize("ensemble", [1, 2])
def test_training_with_cached_states_never_runs_the_frozen_encoder(ensemble, tiny, tmp_path, monkeypatch):
    """With one net dev reports are scored, with two without dev notes the left-out folds."""
    notes = [replace(note, split=note.split if ensemble == 1 else None) for note in small_notes(60)]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    settings = [*tiny, "model.frozen=true", "model.init_from_descriptions=false", f"model.ensemble_size={ensemble}"]
    recipe = load_recipe("hmhan", [*settings, "training.epochs=1", f"states.cache='{tmp_path / 'states'}'"])
    runs, forward = [], WindowedTransformer.forward
    monkeypatch.setattr(WindowedTransformer, "forward", lambda *arguments: runs.append(1) or forward(*arguments))
    train(recipe, [corpus], tmp_path / "first")
    assert runs
    runs.clear()
    train(recipe, [corpus], tmp_path / "second")
    assert not runs


@pytest.mark.parametrize("frozen", ["true", "false"])
def test_validation_notes_are_a_sample_of_the_dev_reports(frozen, small_corpus, tiny, tmp_path, monkeypatch):
    settings = [*tiny, f"model.frozen={frozen}", "training.epochs=2", "training.validation_notes=3"]
    validated = []
    monkeypatch.setattr(hmhan, "brief", lambda labels, codes, scores: validated.append(codes) or {"micro_f1": 1})
    bundle = train(load_recipe("hmhan", settings), [small_corpus], tmp_path / "bundle")
    assert [len(codes) for codes in validated] == [3, 3]
    assert bundle.provenance["n_dev"] > 3


def test_states_on_device_and_from_disk_train_the_same_net(tiny, tmp_path, monkeypatch):
    settings = [*tiny, "model.frozen=true", "smote.ratio=1.0", "training.epochs=2"]
    rows, curves, nets = np.arange(40), [], []
    for on_device in (False, True):
        if on_device:
            monkeypatch.setattr(
                hmhan_ensemble, "load_on_device", lambda states, device, _: DeviceCachedStates(states, device)
            )
        notes = with_columns(small_notes(40))  # of both ICD versions
        trainer = HmhanEnsembleTrainer.from_notes(
            load_recipe("hmhan", settings), notes, tmp_path / f"run-{on_device}", ""
        )
        net, _ = trainer.train_net(0, rows, tmp_path / f"net-{on_device}")
        assert (trainer.device_states is not None) == on_device
        lines = (tmp_path / f"net-{on_device}" / CURVES).read_text().splitlines()
        curves.append([line.split(",")[:3] for line in lines])
        nets.append(net.state_dict())
    assert curves[0] == curves[1] and len(curves[0]) > 4
    assert all(torch.equal(nets[1][name], weight) for name, weight in nets[0].items())


def test_class_weights_use_training_rows_and_columns_use_all_train_notes(tiny, tmp_path):
    notes = with_columns(small_notes(40))
    trainer = HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", [*tiny, "loss.weighted=true"]), notes, tmp_path, "")
    rows = np.arange(20)
    net = trainer.build_net(rows, 0)
    positives = trainer.train.gold[:20].toarray().sum(0)
    expected = np.clip((20 - positives) / np.maximum(positives, 1), 1, 10)
    assert net.class_weights.numpy() == pytest.approx(expected)
    ages = [note.extra["age"] for note in notes]
    assert trainer.model.columns.numbers["age"] == pytest.approx((np.mean(ages), np.std(ages)))


def test_synthetic_rows_are_in_the_loss_and_not_in_targets(tiny, tmp_path):
    trainer = HmhanEnsembleTrainer.from_notes(
        load_recipe("hmhan", [*tiny, "smote.ratio=2.0"]), small_notes(60), tmp_path, ""
    )
    rows = np.arange(10, 60)
    synthetic = trainer.synthetic_rows(rows, 3)
    assert len(synthetic) and set(synthetic.first) | set(synthetic.second) <= set(rows.tolist()), (
        "only rows of the training set"
    )
    batches = ReportBatchBuilder(trainer.train, rows, None, synthetic)
    chosen = np.flatnonzero(np.isin(rows, synthetic.first))[:4]
    batch = batches.build(chosen, None)
    assert len(batch.targets) == 4 and len(batch.synthetic.targets) == np.isin(synthetic.first, rows[chosen]).sum()
    net = trainer.build_net(rows, 0).eval()
    with torch.no_grad():
        net.head.bias.copy_(torch.arange(len(net.head.bias)))  # an untrained head scores all codes the same
        assert float(net(batch)) != pytest.approx(float(net(replace(batch, synthetic=None))), rel=1e-6)


def test_compare_prints_recipes_with_significance_tests(tiny, tmp_path):
    corpus = write_corpus(small_notes(60), tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    recipes = ["hmhan", "hmhan model.attention=single", "hmhan model.attention=none"]
    command = [
        "compare",
        *recipes,
        "--corpus",
        str(corpus.folder),
        "--out",
        str(tmp_path / "out"),
        "--seeds",
        "2",
    ]
    settings = [part for setting in [*tiny, "training.epochs=1"] for part in ("--set", setting)]
    result = CliRunner().invoke(app, [*command, *settings])
    assert result.exit_code == 0, result.output + repr(result.exception)
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert list(rows["rows"]) == ["hmhan", "hmhan-model.attention_single", "hmhan-model.attention_none"]
    assert len(rows["rows"]["hmhan"]["micro_f1"]["values"]) == 2
    assert "bootstrap over patients" in result.stdout and "paired t-test p" in result.stdout
    before = (tmp_path / "out" / "hmhan-0" / "bundle.json").stat().st_mtime
    assert CliRunner().invoke(app, [*command, *settings]).exit_code == 0
    assert (tmp_path / "out" / "hmhan-0" / "bundle.json").stat().st_mtime == before, "an existing bundle is reused"
    for pair in (["linear", "linear"], ["linear", "linear labels.top_k=2"]):
        refused = CliRunner().invoke(app, ["compare", *pair, *command[4:]])
        assert isinstance(refused.exception, ConfigError)


def test_code_sets_of_different_icd_versions_do_not_compete(tiny, tmp_path):
    notes = [Note(f"n{i}", text="heart failure", codes=(PAIR[i % 2],)) for i in range(6)]
    model = HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", tiny), notes, tmp_path, "").model
    model.combinations = replace(
        CodeCombinations.from_gold(model.labels.encode([note.codes for note in notes])), mixture_weight=1.0
    )
    logits = np.full((1, 2), 3.0, dtype=np.float32)
    both = model.to_probabilities(logits)
    for label in (0, 1):
        single = np.where(np.arange(2) == label, logits, EXCLUDED_LOGIT)
        assert both[0, label] == model.to_probabilities(single)[0, label] > 0.9


@pytest.mark.parametrize("within", [True, False])
def test_codes_of_another_version_are_unknown_within_versions_and_absent_otherwise(within, tiny, tmp_path):
    days = ["2014-01-01", "2150-01-01"]
    notes = [Note(f"n{i}", text="heart failure", codes=(PAIR[i % 2],), extra={"date": days[i % 2]}) for i in range(6)]
    settings = [*tiny, f"model.within_versions={str(within).lower()}", "loss.weighted=true"]
    trainer = HmhanEnsembleTrainer.from_notes(load_recipe("hmhan", settings), notes, tmp_path, "")
    assert trainer.model.within_versions == within
    net = trainer.build_net(np.arange(6), 0)
    batch = ReportBatchBuilder(trainer.train, np.arange(6), None, None).build(np.array([0, 2]), None)
    known = trainer.train.known_counts(trainer.train.versions)
    masked = mask_by_date(trainer.model, np.ones((6, 2)), trainer.train)
    if within:
        assert batch.targets.shape == (2, 1) and known.tolist() == [3, 3] and net.class_weights.tolist() == [1, 1]
        assert masked[0].tolist() == [1, EXCLUDED_LOGIT] or masked[0].tolist() == [EXCLUDED_LOGIT, 1]
    else:
        assert batch.labels is None and batch.targets.shape == (2, 2) and known.tolist() == [6, 6]
        assert (masked == 1).all(), "no code is excluded"
    assert (masked[1] == 1).all(), "a shifted date tells nothing, and the codes must not"


def test_early_fusion_appends_the_columns_to_every_token_before_attention(tiny, tmp_path):
    """Columns then change the attention weights; with late fusion they change only the head."""
    notes = with_columns(small_notes(40))
    scan, other = (replace(notes[0], extra={"age": 44, "modality": kind}) for kind in ("CT", "XR"))
    for fusion in ("late", "early"):
        settings = [*tiny, "model.frozen=true", f"columns.fusion={fusion}", "columns.width=4", "smote.ratio=1.0"]
        corpus = write_corpus(notes, tmp_path / f"corpus-{fusion}", source={"kind": "test"}, filters=[], counts={})
        bundle = train(load_recipe("hmhan", [*settings, "training.epochs=1"]), [corpus], tmp_path / fusion)
        model = Bundle.load(tmp_path / fusion).model
        net = model.net.nets[0]
        assert net.code_attention.codes.shape[1] == net.encoder.width + (4 if fusion == "early" else 0)
        assert (net.head.columns is None) == (fusion == "early") and net.column_layer.out_features == 4
        assert np.array_equal(model.probabilities([scan, other]), bundle.model.probabilities([scan, other]))
        assert not np.array_equal(*model.probabilities([scan, other]))
        weights = [model.attention_weights(note, [0]).weights for note in (scan, other)]
        assert np.array_equal(*weights) == (fusion == "late")


def test_loss_with_zero_weights_raises_config_error(tiny):
    with pytest.raises(ConfigError, match="must not both be 0"):
        load_recipe("hmhan", [*tiny, "loss.focal=0", "loss.bce=0"])


def test_explain_code_without_a_note_raises_config_error(trained):
    result = CliRunner().invoke(app, ["explain", str(trained[1]), "--code", "I50.9"])
    assert isinstance(result.exception, ConfigError) and "stores no informative words" in str(result.exception)


def test_approximate_probabilities_are_within_two_hundredths(tiny, tmp_path):
    notes = with_columns(small_notes(40))
    corpus = write_corpus(notes, tmp_path / "notes", source={"kind": "test"}, filters=[], counts={})
    model = train(load_recipe("hmhan", [*tiny, "training.epochs=1"]), [corpus], tmp_path / "bundle").model
    texts = [note.text for note in notes]
    assert np.abs(model.approximate_probabilities(as_notes(texts)) - model.probabilities(as_notes(texts))).max() < 0.02
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("kind", ["hmhan", "reports"])
def test_reports_are_scored_in_the_precision_of_training(kind, small_corpus, tiny, tmp_path):
    settings = [*tiny, "training.epochs=1", "training.precision=bf16"]
    settings += ["words.features=500", "words.c=[3.0]"] if kind == "reports" else []
    notes = small_notes(20)
    trained = train(load_recipe(kind, settings), [small_corpus], tmp_path / "bundle").model
    loaded = Bundle.load(tmp_path / "bundle").model
    assert trained.precision == loaded.precision == "bf16"
    logits = loaded.logits_of([loaded.tokenize(note) for note in notes])
    loaded.precision = "fp32"
    exact = loaded.logits_of([loaded.tokenize(note) for note in notes])
    assert 0 < np.abs(logits - exact).max() < 0.05


def test_the_paper_recipe_has_the_forms_of_the_paper(tiny, tmp_path):
    """Its switches are set, and a small coder with them can be trained."""
    paper = load_recipe("hmhan-paper")
    model, loss, training = paper.model, paper.loss, paper.training
    assert (paper.kind, paper.columns.fusion, paper.report.cleaning) == ("hmhan", "early", "paper")
    assert (paper.report.negation, paper.report.context, paper.report.max_tokens) == (True, False, 512)
    assert (model.attention, model.heads, model.hidden, model.ensemble_size) == ("hierarchical", 4, [512, 256, 128], 1)
    assert (model.frozen, model.init_from_descriptions, model.within_versions) == (True, False, False)
    assert (model.dropout, model.state_dropout) == (0.3, 0)
    assert (model.output_bias, model.output_weights) == ("default", "default")
    assert (loss.focal, loss.gamma, loss.alpha, loss.bce) == (1, 2, 0.25, 1)
    assert (loss.weighted, loss.max_class_weight, paper.smote.ratio, paper.smote.neighbours) == (True, 1e6, 1, 5)
    assert (training.batch, training.learning_rate, training.schedule) == (32, 5e-5, "constant")
    # What the paper does not state, see "What differs from the paper" in docs/hmhan.md.
    assert (loss.corrected, paper.calibration) == (True, "auto")
    assert (paper.stable_threshold, paper.decision.threshold, paper.decision.at_least_one) == (False, "global", False)
    assert (paper.combinations.prior, paper.labels.top_k) == ("never", 10)

    notes = with_columns(small_notes(40))
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    trained = train(load_recipe("hmhan-paper", [*tiny, "training.epochs=1"]), [corpus], tmp_path / "bundle").model
    again = Bundle.load(tmp_path / "bundle").model
    assert np.array_equal(trained.probabilities(notes), again.probabilities(notes))
    assert trained.net.nets[0].head.columns is None, "columns are read before attention"


def test_recipes_of_short_reports_differ_in_kind_and_word_svms():
    net, reports = load_recipe("hmhan"), load_recipe("reports")
    assert (net.kind, reports.kind) == ("hmhan", "reports")
    assert "words" not in net.model_dump() and "words" in reports.model_dump()
    assert net.decision.at_least_one == reports.decision.at_least_one == "auto"
    assert net.report.cleaning == reports.report.cleaning == "plain"
