"""Tests of federated HMHAN: a frozen encoder at every site; attention and head are shared."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nosology.config import load_recipe
from nosology.core import Code, ConfigError, Note
from nosology.corpora.corpus import Corpus
from nosology.evaluation.measure import measure
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.hmhan_site import HmhanSite
from nosology.federated.rounds.learner import SiteFiles, learner_of
from nosology.federated.rounds.messages import STATISTICS
from nosology.federated.rounds.personal_layers import complete_bundle
from nosology.federated.rounds.simulation import simulated_sites, simulation_grid
from nosology.models.bundle import Bundle
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer
from nosology.models.hmhan.report_features import MetadataColumns
from nosology.training.losses import class_weights
from tests.encoders.tiny import tiny_hmhan_settings
from tests.federated.rounds.test_word_learner import assert_near, corpus_of, diagnoses, recorded

SECRET = "quillonwick"  # a value of a column of one patient


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    return tiny_hmhan_settings(tmp_path_factory.mktemp("encoder"))


def recipe(tiny: list[str], *changes: str):
    defaults = {"rounds": 2, "min_sites": 1, "quorum": 1, "min_site_notes": 2, "min_notes": 1, "max_retries": 0}
    settings = [f"federation.{name}={value}" for name, value in defaults.items()]
    return load_recipe("hmhan", [*tiny, *settings, "training.precision=fp32", "columns.width=4", *changes])


def with_columns(notes: list[Note]) -> list[Note]:
    """The notes with an age, which a few lack, and a modality; one patient has a modality of its own in many notes."""
    result = []
    for i, note in enumerate(notes):
        extra = {"age": 40 + i % 9, "modality": "CT" if i % 3 else "XR"}
        extra |= {"age": None} if i % 5 == 1 else {}
        result.append(replace(note, extra=extra, site=f"site-{i // 4 % 3}", patient=f"p{i}"))
    train = [i for i, note in enumerate(result) if note.split == "train" and note.site == "site-0"][:4]
    for i in train:
        result[i] = replace(result[i], extra=result[i].extra | {"modality": SECRET}, patient="p-secret")
    return result


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return corpus_of(with_columns(diagnoses(72)), tmp_path_factory.mktemp("reports") / "corpus")


def sites_of(corpus: Corpus, settings, folder, keep: str = "") -> list[HmhanSite]:
    site_of = {note.id: keep or note.site or "" for note in corpus.notes(text=False)}
    sites = simulated_sites([corpus], site_of, settings, folder / "states")
    for site in sites:
        site.device = torch.device("cpu")
    return sites


def weights_of(bundle: Bundle) -> dict[str, np.ndarray]:
    named = bundle.model.net.named_parameters(remove_duplicate=False)
    return {name: value.detach().numpy() for name, value in named if "encoder." not in name}


@pytest.mark.parametrize("rounds", [3, 1])
def test_one_site_equals_central_training(tiny, corpus, tmp_path, rounds):
    """Also class weights, prior and columns; two nets, in three rounds of an epoch or one round of three epochs."""
    federation = [f"federation.rounds={rounds}", f"federation.local_epochs={3 // rounds}"]
    changes = [
        "federation.optimizer_state=keep",
        "federation.min_site_notes=1",
        "model.ensemble_size=2",
        "report.descriptions=false",
    ]
    settings = recipe(tiny, *federation, *changes, "loss.weighted=true", "loss.focal=1.0")
    sites = sites_of(corpus, settings, tmp_path, keep="only")
    result = FlowerFederation(simulation_grid(sites), settings).run(tmp_path / "bundle").bundle
    train = list(corpus.notes("train"))
    trainer = HmhanEnsembleTrainer.from_notes(settings, train, tmp_path, "test")
    rows = np.arange(len(train))
    for number, net in enumerate(result.model.net.nets):
        expected, _ = trainer.train_net(number, rows, tmp_path / f"net_{number}")
        own = {name: value for name, value in expected.state_dict().items() if not name.startswith("encoder.")}
        found = {name: value.numpy() for name, value in net.state_dict().items() if name in own}
        assert_near(found, {name: value.cpu().numpy() for name, value in own.items()}, 1e-5)


def test_bundle_learns_and_its_metrics_are_those_of_evaluate(tiny, corpus, tmp_path):
    fast = ["training.learning_rate=2e-2", "training.batch=8", "model.dropout=0.0", "model.state_dropout=0.0"]
    settings = recipe(tiny, "federation.rounds=6", "federation.local_epochs=3", *fast)
    grid = simulation_grid(sites_of(corpus, settings, tmp_path))
    seen = recorded(grid)
    result = FlowerFederation(grid, settings).run(tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.model.kind == "hmhan" and result.history[-1]["loss"] < 0.95 * result.history[0]["loss"]
    found = bundle.provenance["found"]["test"]
    measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
    assert found["micro_f1"] == pytest.approx(measured["micro_f1"], abs=1e-6)
    assert found["map"] == pytest.approx(measured["map"], abs=1e-6) and measured["map"] > 0.5
    everything = b"\n".join(seen)
    assert SECRET.encode() not in everything and b"modality" in everything  # a value of one patient
    assert bundle.model.columns.choices == {"modality": ["CT", "XR"]}
    weights = sum(array.nbytes for array in weights_of(bundle).values())
    encoder = sum(value.nbytes for value in bundle.model.net.nets[0].encoder.parameters())
    assert 3 * weights < result.history[0]["bytes_from_sites"] < 3 * weights + 20_000 < 3 * (weights + encoder)


def test_columns_and_class_weights_are_those_of_all_notes(tiny, corpus, tmp_path):
    settings = recipe(tiny, "loss.weighted=true", "federation.min_site_notes=1")
    federation = FlowerFederation(simulation_grid(sites_of(corpus, settings, tmp_path)), settings)
    bundle = federation.run(tmp_path / "bundle").bundle
    notes = list(corpus.notes("train"))
    pooled = MetadataColumns.fit((note.extra for note in notes), ["age"], ["gender", "admission_type", "modality"])
    columns = federation.setup.inputs.columns
    assert columns.choices == pooled.choices
    np.testing.assert_allclose(columns.numbers["age"], pooled.numbers["age"])
    vectors = np.stack([columns.vector(note.extra) for note in notes])
    np.testing.assert_array_equal(federation.setup.inputs.seen, vectors.any(0))
    labels = bundle.model.labels
    counts = torch.tensor([sum(code in note.codes for note in notes) for code in labels.codes])
    expected = class_weights(counts.float(), len(notes), settings.loss.max_class_weight)
    np.testing.assert_allclose(bundle.model.net.nets[0].class_weights.numpy(), expected.numpy())


def test_rows_of_labels_are_those_of_sites_that_use_them(tiny, corpus, tmp_path):
    settings = recipe(tiny, "federation.rounds=1")
    sites = sites_of(corpus, settings, tmp_path)
    codes = sorted({code for note in corpus.notes(text=False) for code in note.codes})
    lists = {"site-0": codes[:2], "site-1": codes[2:], "site-2": codes}
    for site in sites:
        site.code_list = frozenset(lists[site.name])
    federation = FlowerFederation(simulation_grid(sites), settings)
    result = weights_of(federation.run(tmp_path / "bundle").bundle)
    initial = federation.setup.initial_weights()
    updates = [site.train(initial, settings, 1) for site in sites]
    rows = federation.strategy.rows.names
    assert {name.removeprefix("nets.0.") for name in rows} == {"code_attention.codes", "head.code_weight", "head.bias"}
    for name, value in result.items():
        masks = np.stack([update.label_mask if name in rows else np.ones(len(value), bool) for update in updates])
        parts = np.stack([update.arrays[name] for update in updates])
        share = masks * np.array([update.notes for update in updates])[:, None]
        share = (share / share.sum(0)).reshape(*share.shape, *[1] * (value.ndim - 1))
        np.testing.assert_allclose(value, (share * parts).sum(0), atol=1e-6, err_msg=name)
        for update in updates if name in rows else ():
            np.testing.assert_array_equal(update.arrays[name][~update.label_mask], initial[name][~update.label_mask])


@pytest.mark.parametrize("change", ["federation.privacy.secure=true", "federation.compression=top_k"])
def test_secure_sums_and_compression(tiny, corpus, tmp_path, change):
    limits = ("federation.min_sites=3", "federation.quorum=3", "federation.rounds=1")
    settings = recipe(tiny, *limits, change, "federation.top_k=0.3")
    plain = recipe(tiny, *limits)
    found, expected = (
        FlowerFederation(simulation_grid(sites_of(corpus, each, tmp_path)), each).run(tmp_path / name).bundle
        for name, each in (("changed", settings), ("plain", plain))
    )
    within = 1e-5 if "secure" in change else 0.05
    assert_near(weights_of(found), weights_of(expected), within)


def test_personal_head(tiny, corpus, tmp_path):
    settings = recipe(tiny, "federation.personal=['head']")
    grid = simulation_grid(sites_of(corpus, settings, tmp_path), tmp_path / "personal")
    bundle = FlowerFederation(grid, settings).run(tmp_path / "bundle").bundle
    missing = bundle.missing_layers
    assert missing and all(name.startswith("nets.0.head.") for name in missing)
    before = weights_of(bundle)["nets.0.head.bias"].copy()
    completed = complete_bundle(bundle, tmp_path / "personal" / "site-1")
    assert (weights_of(completed)["nets.0.head.bias"] != before).any()


def test_opened_site_has_the_reports_of_its_corpus(tiny, corpus, tmp_path):
    settings = recipe(tiny)
    listed = frozenset({Code("icd10cm", "I50.9")})
    files = SiteFiles("anna", [corpus.folder], tmp_path / "states", listed)
    site = learner_of(settings).open_site(files)
    assert site.sizes["train"] == len(list(corpus.notes("train"))) and set(site.metadata(1).codes) <= listed
    with pytest.raises(ConfigError, match="anna needs a cache folder for its encoder states"):
        learner_of(settings).open_site(replace(files, cache=None))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("model.frozen=false", "model.frozen must be True for a federated hmhan; got False"),
        ("smote.ratio=0.5", "smote.ratio must be 0.0 for a federated hmhan; got 0.5"),
        ("federation.privacy.record_noise=1.0", "record_noise must be 0.0"),
        ("decision.at_least_one=true", "decision.at_least_one must be false"),
    ],
)
def test_settings_that_are_not_supported_are_refused(tiny, change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        FlowerFederation(simulation_grid([]), recipe(tiny, change))


@pytest.mark.parametrize(
    "columns",
    [
        {"versions": {"2": 1000}},
        {"versions": {"9": 5}},
        {"numbers": {"age": [10, 1e9, 1.0]}},
        {"numbers": {"weight": [10, 0.0, 1.0]}},
        {"choices": {"modality": {"CT": 1}}},
        {"numbers": {"age": [math.inf, 1, 1]}},
        {"numbers": {"age": [10**400, 1, 1]}},
        {"numbers": {"age": [10, 1, 10**400]}},
        {"missing": {"age": -1}},
        {"choices": [1]},
        {"unknown": {}},
    ],
)
def test_invalid_columns_are_refused(tiny, corpus, tmp_path, columns):
    settings = recipe(tiny, "federation.rounds=1")
    grid = simulation_grid(sites_of(corpus, settings, tmp_path))
    app = grid.app

    def lying(message, context):
        reply = app(message, context)
        if message.metadata.message_type == STATISTICS and context.node_config["site-name"] == "site-1":
            reply.content["config"]["columns"] = json.dumps(columns)
        return reply

    grid.app = lying
    federation = FlowerFederation(grid, settings)
    federation.participants.wait_for_start()
    federation._reports()
    assert federation.refused["site-1"].startswith("its columns ")
