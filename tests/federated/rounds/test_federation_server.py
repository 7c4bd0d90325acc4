"""Tests of federations of small hospitals, from the first message to the bundle."""

from __future__ import annotations

import csv
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord

from nosology.core import Code, ConfigError, FederationError, OutputError
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import write_corpus
from nosology.evaluation import evaluate
from nosology.evaluation.decision import DecisionSettings
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import METADATA, to_record
from nosology.federated.rounds.simulation import simulation_grid
from nosology.models.bundle import Bundle
from nosology.models.heads.feature_statistics import FeatureStatistics
from nosology.models.heads.heads_net import CodedVectors, build_head, make_vector_notes, train_epochs
from nosology.training.recipe_settings import LabelSettings
from tests.federated import federation_program as program
from tests.federated.small_hospitals import CODES, DIM, recipe, site, sites


def run(hospitals, settings, out, grid=None, report=lambda line: None, **more):
    return FlowerFederation(grid or simulation_grid(hospitals), settings, report).run(out, **more)


def weights_of(federated) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in federated.bundle.model.net.state_dict().items()}


def assert_near(result, expected, within: float) -> None:
    assert list(result) == list(expected)
    for name in result:
        np.testing.assert_allclose(result[name], expected[name], atol=within, rtol=0, err_msg=name)


def central(settings, hospital) -> dict[str, np.ndarray]:
    """The weights of training in one place."""
    labels = run_labels(hospital)
    part = hospital.notes["train"]
    notes = make_vector_notes(part.vectors, part.codes, FeatureStatistics.of(part.vectors).scaler(), labels)
    net = build_head(settings.model, DIM, len(labels), settings.seed)
    train_epochs(net, notes, settings.training, range(settings.training.epochs), seed=settings.seed)
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def run_labels(hospital) -> LabelSpace:
    return LabelSpace(sorted({code for codes in hospital.notes["train"].codes for code in codes}))


@pytest.mark.parametrize("head", ["mlp", "deep", "res"])
@pytest.mark.parametrize("rounds", [4, 1])
def test_one_site_equals_central_training(tmp_path, head, rounds):
    """Four rounds of one epoch with kept optimizer state, or one round of four epochs, equal four epochs."""
    settings = recipe(head, rounds, {"epochs": 4}, local_epochs=4 // rounds, optimizer_state="keep")
    hospital = site("only", seed=3, n=50)
    result = run([hospital], settings, tmp_path / "bundle")
    assert_near(weights_of(result), central(settings, hospital), 1e-6)


def test_repeated_round_starts_from_the_same_optimizer_state(tmp_path):
    """A site that has trained, but whose reply is lost, does not train the round on top of itself."""
    settings = recipe("deep", 3, quorum=2, max_retries=1, optimizer_state="keep")
    grid = simulation_grid(sites(2))

    def losing(message, context, app):
        app(message, context)
        if json.loads(message.content["config"]["round"]) != 2:
            broken.times += 1
            return app(message, context)  # the first round twice: a message may come again, too
        raise RuntimeError

    broken = Broken(grid, "site-01", "train", losing, times=1)
    lines = []
    result = run(None, settings, tmp_path / "bundle", grid, report=lines.append)
    assert any(line.startswith("round 2 is repeated") for line in lines)
    assert_near(weights_of(result), weights_of(run(sites(2), settings, tmp_path / "whole")), 0)


def test_reset_optimizer_state_differs_from_central_training(tmp_path):
    """So that the test above can fail."""
    settings = recipe("deep", 4, {"epochs": 4}, optimizer_state="reset")
    hospital = site("only", seed=3, n=50)
    result, expected = weights_of(run([hospital], settings, tmp_path / "bundle")), central(settings, hospital)
    assert max(np.abs(result[name] - expected[name]).max() for name in result) > 1e-3


def test_order_of_sites_has_no_effect(tmp_path):
    settings = recipe(rounds=2, fraction_train=0.6)
    first = run(sites(5), settings, tmp_path / "first")
    other = run([sites(5)[i] for i in (3, 1, 4, 0, 2)], settings, tmp_path / "other")
    assert_near(weights_of(first), weights_of(other), 0)
    assert first.bundle.decision == other.bundle.decision


def test_bundle_contains_provenance_and_history(tmp_path):
    hospitals, out = sites(4), tmp_path / "bundle"
    lines, corpus = [], write_corpus([], tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    result = run(hospitals, recipe(rounds=4, evaluate_every=2), out, report=lines.append, corpora=[corpus])
    bundle = Bundle.load(out)
    assert bundle.model.kind == "heads" and bundle.decision == result.bundle.decision
    provenance = bundle.provenance
    assert (
        provenance["n_train"] == sum(len(each.notes["train"].codes) for each in hospitals) and provenance["n_dev"] == 80
    )
    assert provenance["corpora"] == [{"hash": corpus.hash, "source": {"kind": "test"}}] and provenance["n_test"] == 64
    assert provenance["federation"]["sites"]["site-03"] == 51
    with (out / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]][:6] == ["round", "loss", "sites", "refused", "micro_f1", "epsilon"]
    assert [bool(row["micro_f1"]) for row in rows] == [False, True, False, True]
    assert float(rows[3]["loss"]) < float(rows[0]["loss"])
    assert (out / "history.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "bundle.run").exists()
    assert "4 sites, 12 codes" in lines[0] and lines[-1].startswith("round 4/4  loss ")


@pytest.mark.parametrize("outside", [False, True])
def test_metrics_equal_pooled_evaluation(tmp_path, outside):
    """Scores come from summed counts, not from a mean of scores; true codes outside the label space are misses."""
    hospitals = sites(4)
    for split in ("dev", "test") if outside else ():
        for each in hospitals:
            part = each.notes[split]
            codes = [(*note, *OUTSIDE[: i % 3]) for i, note in enumerate(part.codes)]
            codes[0] = OUTSIDE  # and no other code
            each.notes[split] = CodedVectors(part.vectors, codes)
    result = run(hospitals, recipe("mlp", rounds=20), tmp_path / "bundle").bundle
    dev, test = pooled(result, hospitals, "dev"), pooled(result, hospitals, "test")
    report = result.provenance["found"]
    assert report["dev_micro_f1"] == pytest.approx(dev["micro_f1"], abs=1e-12)
    assert report["dev_map"] == pytest.approx(dev["map"], abs=1e-12)
    unknown = {name for name, number in report["test"].items() if number is None}
    assert not unknown & {"micro_f1", "micro_precision", "micro_recall", "exact_match", "map"}
    assert bool(unknown) == outside
    for name in report["test"].keys() - unknown:
        assert report["test"][name] == pytest.approx(test[name], abs=1e-12), name
    assert test["exact_match"] > 0 and bool(test["n_true_assignments_outside_label_space"]) == outside


OUTSIDE = (Code("icd10cm", "Z98"), Code("icd10pcs", "0DTJ4ZZ"))


def pooled(bundle: Bundle, hospitals, split: str):
    """The result of `nosology evaluate` on the notes of all hospitals together."""
    vectors = np.concatenate([each.notes[split].vectors for each in hospitals])
    codes = [codes for each in hospitals for codes in each.notes[split].codes]
    scores = bundle.model.calibration(bundle.model.logits_of(vectors))
    return evaluate(bundle.model.labels, codes, scores, bundle.decision.threshold, replicates=0)


def test_scaler_equals_pooled_scaler(tmp_path):
    hospitals = sites(4)
    scaler = run(hospitals, recipe(rounds=1), tmp_path / "bundle").bundle.model.scaler
    every = np.concatenate([each.notes["train"].vectors for each in hospitals]).astype(np.float64)
    np.testing.assert_allclose(scaler.mean, every.mean(0), atol=1e-9)
    np.testing.assert_allclose(scaler.scale, every.std(0), atol=1e-9)


def test_incompatible_sites_are_excluded_with_the_difference(tmp_path):
    odd = site("odd", seed=9, identity={"model": "test", "revision": "2"})
    few = site("few", seed=8, n=6)
    result = run([*sites(3), odd, few], recipe(rounds=1, min_site_notes=8), tmp_path / "bundle")
    assert result.refused["odd"] == "embedder: revision must be '1'; got '2'"
    assert "6 train notes; 8 are needed" in result.refused["few"]
    assert list(result.bundle.provenance["federation"]["sites"]) == ["site-00", "site-01", "site-02"]


def test_site_with_code_list_does_not_change_other_labels(tmp_path):
    some = frozenset(CODES[:6])
    part, full = site("part", seed=1, code_list=some), site("whole", seed=2)
    settings = recipe("mlp", 1)
    both = weights_of(run([part, full], settings, tmp_path / "both"))
    update = full.train(first_weights(settings, 12), settings, 1)  # it has labels and scaler from the run
    np.testing.assert_allclose(both["out.weight"][6:], update.arrays["out.weight"][6:], atol=1e-6)
    assert np.abs(both["out.weight"][:6] - update.arrays["out.weight"][:6]).max() > 1e-3


def first_weights(settings, labels: int) -> dict[str, np.ndarray]:
    net = build_head(settings.model, DIM, labels, settings.seed)
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


class Broken:
    """A grid's app in which chosen sites do something else with chosen messages."""

    def __init__(self, grid, site_name: str, kind: str, act, times: int = 10**6):
        self.app, self.site, self.kind, self.act, self.times = grid.app, site_name, kind, act, times
        grid.app = self

    def __call__(self, message, context):
        hit = (context.node_config["site-name"], message.metadata.message_type) == (self.site, self.kind)
        if not hit or self.times <= 0:
            return self.app(message, context)
        self.times -= 1
        return self.act(message, context, self.app)


def raising(message, context, app):
    raise RuntimeError("the patient John Doe")


def sending_nan(message, context, app):
    reply = app(message, context)
    arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    arrays["out.bias"] = arrays["out.bias"] * np.float32(np.nan)
    reply.content["arrays"] = to_record(arrays)
    return reply


def claiming(**metrics):
    def act(message, context, app):
        reply = app(message, context)
        reply.content["metrics"] = MetricRecord(dict(reply.content["metrics"]) | metrics)
        return reply

    return act


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (raising, "RuntimeError"),
        (sending_nan, "out.bias contains NaN"),
        (claiming(**{"num-examples": 10**6}), "num-examples must be 44, as reported before; got 1e+06"),
        (claiming(loss=1e308), "loss must be between 0 and 1e+06; got 1e+308"),
    ],
)
def test_failing_site_is_named_and_the_round_continues(tmp_path, act, reason):
    hospitals, lines = sites(4), []
    grid = simulation_grid(hospitals)
    Broken(grid, "site-02", "train", act)
    result = run(hospitals, recipe(rounds=2, quorum=3), tmp_path / "bundle", grid, report=lines.append)
    assert [row["sites"] for row in result.history] == [3, 3] and result.history[0]["refused"] == 1
    assert "site-02" in lines[1] and reason in lines[1] and "John Doe" not in "".join(lines)
    alone = run([hospitals[i] for i in (0, 1, 3)], recipe(rounds=2, quorum=3), tmp_path / "alone")
    assert alone.history[0]["loss"] == pytest.approx(result.history[0]["loss"], rel=0.05)


def test_round_below_quorum_is_repeated(tmp_path):
    grid, lines = simulation_grid(sites(3)), []
    Broken(grid, "site-01", "train", raising, times=1)
    result = run(None, recipe(rounds=2, quorum=3, max_retries=1), tmp_path / "bundle", grid, report=lines.append)
    assert lines[1].startswith("round 1 is repeated: 2 of 3 replies were valid, 3 are needed; site-01: its app raised")
    assert_near(weights_of(result), weights_of(run(sites(3), recipe(rounds=2, quorum=3), tmp_path / "other")), 0)


def test_run_stops_with_reasons_if_all_sites_fail(tmp_path):
    grid, out = simulation_grid(sites(2)), tmp_path / "bundle"
    for name in ("site-00", "site-01"):
        Broken(grid, name, "train", raising)
    with pytest.raises(FederationError) as error:
        run(None, recipe(rounds=2, max_retries=1), out, grid)
    for part in ("round 1 failed 2 times", "site-00: its app raised an exception (RuntimeError)", "site-01"):
        assert part in str(error.value)
    assert not out.exists()


def test_krum_is_refused_with_too_few_sites(tmp_path):
    """No site trains, and no checkpoint is left."""
    grid, trained = simulation_grid(sites(4)), []
    Broken(grid, "site-00", "train", lambda message, context, app: trained.append(1))
    with pytest.raises(FederationError, match="krum needs 5 sites in a round; there are 4"):
        run(None, recipe(strategy="krum", malicious=1, timeout=0.2), tmp_path / "bundle", grid)
    assert not trained and not (tmp_path / "bundle.run").exists()


def test_wait_for_sites_has_a_timeout(tmp_path):
    started, grid = time.monotonic(), simulation_grid(sites(2))
    grid.timeout = 0.3
    with pytest.raises(FederationError, match=r"2 sites were online after 0.3 s; federation.min_sites = 5"):
        run(None, recipe(min_sites=5), tmp_path / "bundle", grid)
    assert time.monotonic() - started > 0.3


def test_sites_join_and_leave_between_rounds(tmp_path):
    hospitals, settings = sites(4), recipe(rounds=4)
    grid = simulation_grid(hospitals)
    grid.remove("site-03")
    seen = []

    def report(line):
        seen.append(line)
        if line.startswith("round 1/"):
            grid.add("site-03")
        if line.startswith("round 2/"):
            grid.remove("site-00")

    result = run(hospitals, settings, tmp_path / "bundle", grid, report=report)
    assert [row["sites"] for row in result.history] == [3, 4, 3, 3]
    assert result.refused == {}


def test_incompatible_site_is_refused_when_it_joins_later(tmp_path):
    odd = site("a-odd", seed=9, identity={"model": "other"})
    grid = simulation_grid([site("b-only", seed=1), odd])
    grid.remove("a-odd")
    result = run(
        None,
        recipe(rounds=2),
        tmp_path / "bundle",
        grid,
        report=lambda line: grid.add("a-odd") if "1/2" in line else None,
    )
    assert [row["sites"] for row in result.history] == [1, 1] and "model must be 'test'" in result.refused["a-odd"]


def test_restarted_site_gets_the_setup_again(tmp_path):
    hospitals, settings = sites(3), recipe(rounds=3)
    grid = simulation_grid(hospitals)
    result = run(
        None,
        settings,
        tmp_path / "bundle",
        grid,
        report=lambda line: grid.add("site-01") if "round 1/" in line else None,
    )
    assert [row["sites"] for row in result.history] == [3, 3, 3]
    assert_near(weights_of(result), weights_of(run(sites(3), settings, tmp_path / "other")), 0)


def test_site_restarted_with_another_embedder_is_refused(tmp_path):
    hospitals, lines = sites(3), []
    grid = simulation_grid(hospitals)

    def report(line):
        lines.append(line)
        if "round 1/" in line:  # the node is the same, but it has forgotten, and its vectors are others
            grid._contexts[grid.get_node_ids()[1]].state.clear()
            hospitals[1].key = "other"

    result = run(None, recipe(rounds=2), tmp_path / "bundle", grid, report=report)
    assert [row["sites"] for row in result.history] == [3, 2]
    assert f"site-01: the site has changed since the setup: embedder must be {hospitals[0].key}; got other" in lines[-2]


def test_run_without_evaluation_continues_after_its_last_round(tmp_path):
    grid, out = simulation_grid(sites(2)), tmp_path / "bundle"
    for name in ("site-00", "site-01"):
        Broken(grid, name, "evaluate", raising, times=2)
    with pytest.raises(FederationError, match="no site has replied to the evaluation after round 2"):
        run(None, recipe(rounds=2, evaluate_every=5), out, grid)
    assert not out.exists()
    lines = []
    run(sites(2), recipe(rounds=2, evaluate_every=5), out, report=lines.append)
    assert lines[0].endswith("continues after round 2") and out.exists()


def test_failed_metadata_request_is_repeated(tmp_path):
    grid = simulation_grid(sites(3))
    grid.timeout = 1.0
    Broken(grid, "site-01", METADATA, raising, times=1)
    result = run(None, recipe(rounds=1, min_sites=3), tmp_path / "bundle", grid)
    assert result.history[0]["sites"] == 3 and result.refused == {}


def changing(**values):
    def act(message, context, app):
        reply = app(message, context)
        for name, value in values.items():
            config = reply.content["config"]
            config[name] = json.dumps(json.loads(config[name]) | value if isinstance(value, dict) else value)
        return reply

    return act


def test_unreadable_metadata_excludes_only_its_site(tmp_path):
    grid = simulation_grid(sites(3))
    Broken(grid, "site-01", METADATA, changing(metadata={"notes": "many"}))
    result = run(None, recipe(rounds=1, min_sites=2), tmp_path / "bundle", grid)
    assert result.history[0]["sites"] == 2 and list(result.refused.values()) == ["its metadata cannot be read"]


@pytest.mark.parametrize("change", [{"codes": [["icd10cm", "I10", math.inf]]}, {"notes": 10**400}, "nested"])
def test_numbers_that_are_too_large_and_nested_metadata_exclude_only_their_site(tmp_path, change):
    grid = simulation_grid(sites(3))

    def nested(message, context, app):
        reply = app(message, context)
        reply.content["config"]["metadata"] = "[" * 200_000
        return reply

    Broken(grid, "site-01", METADATA, nested if change == "nested" else changing(metadata=change))
    result = run(None, recipe(rounds=1, min_sites=2), tmp_path / "bundle", grid)
    assert result.history[0]["sites"] == 2 and list(result.refused.values()) == ["its metadata cannot be read"]


@pytest.mark.parametrize("labels", [{"top_k": 5}, {"min_notes": 2}, {"max_notes": 9}])
def test_label_settings_are_refused_in_a_federation(tmp_path, labels):
    narrow = recipe().model_copy(update={"labels": LabelSettings(**labels)})
    with pytest.raises(ConfigError, match=rf"labels\.{next(iter(labels))} must not be set in a federation"):
        run(sites(2), narrow, tmp_path / "bundle")


def test_at_least_one_decision_is_refused(tmp_path):
    likeliest = recipe().model_copy(update={"decision": DecisionSettings(at_least_one=True)})
    with pytest.raises(ConfigError, match=r"decision\.at_least_one must be false in a federation"):
        run(sites(2), likeliest, tmp_path / "bundle")


def test_site_cannot_use_the_name_of_another_site(tmp_path):
    """A node's key determines its name; a node with the name of another site is refused, and that site stays."""
    grid = simulation_grid(sites(3))
    grid.names = dict(zip(grid.get_node_ids(), ["site-00", "site-01", "site-02"]))
    Broken(grid, "site-02", METADATA, changing(site="site-00"))
    result = run(None, recipe(rounds=1, min_sites=2), tmp_path / "bundle", grid)
    assert sorted(result.bundle.provenance["federation"]["sites"]) == ["site-00", "site-01"]
    assert list(result.refused.values()) == ["its name must be site-02, the name of its key"]
    grid = simulation_grid(sites(3))
    grid.names = dict(zip(grid.get_node_ids(), ["site-00", "site-01", "site-02"]))
    assert run(None, recipe(rounds=1), tmp_path / "all", grid).refused == {}


def test_resumed_run_keeps_its_quorum(tmp_path):
    settings, out = recipe(rounds=2, min_sites=1, quorum=3), tmp_path / "bundle"

    def stop(line):
        if line.startswith("round 1/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sites(4), settings, out, report=stop)
    with pytest.raises(FederationError, match="2 of 2 replies were valid, 3 are needed"):
        run(sites(2), settings, out)
    grid = simulation_grid(sites(4))
    grid.timeout = 5.0
    for name in ("site-02", "site-03"):
        grid.remove(name)
    result = run(None, settings, out, grid, report=lambda line: grid.add("site-02") if "continues" in line else None)
    assert [row["sites"] for row in result.history] == [4, 3]


def test_run_of_another_recipe_is_not_resumed(tmp_path):
    def stop(line):
        if line.startswith("round 1/"):
            with pytest.raises(OutputError, match="another federation is running"):
                run(sites(2), recipe(rounds=2), tmp_path / "bundle")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sites(2), recipe(rounds=2), tmp_path / "bundle", notes="a", report=stop)
    with pytest.raises(ConfigError, match="another recipe"):
        run(sites(2), recipe(rounds=3), tmp_path / "bundle", notes="a")
    with pytest.raises(ConfigError, match="other notes"):
        run(sites(2), recipe(rounds=2), tmp_path / "bundle", notes="b")
    run(sites(2), recipe(rounds=2), tmp_path / "bundle", notes="a")


def test_bf16_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"training\.precision must be"):
        run(sites(2), recipe(rounds=1, training={"precision": "bf16"}), tmp_path / "bundle")


def test_central_noise_costs_epsilon_in_every_round(tmp_path):
    privacy = {"site_clip": 1.0, "site_noise": 2.0}
    result = run(sites(3), recipe("mlp", rounds=3, privacy=privacy), tmp_path / "bundle")
    spent = [row["epsilon"] for row in result.history]
    assert 0 < spent[0] < spent[1] < spent[2]


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_killed_server_resumes_to_the_same_weights(tmp_path, strategy):
    """A process is killed within a round; the resumed run gives the weights of an uninterrupted one."""
    out = tmp_path / "killed"
    command = [sys.executable, str(Path(program.__file__)), str(out), strategy]
    ended = subprocess.run(command, capture_output=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL and not out.exists(), ended.stderr.decode()
    lines = []
    resumed = run(sites(4), program.settings(strategy), out, report=lines.append)
    assert lines[0].endswith("continues after round 3")
    uninterrupted = run(sites(4), program.settings(strategy), tmp_path / "whole")
    assert_near(weights_of(resumed), weights_of(uninterrupted), 1e-5)
    changed = {"seconds", "bytes_to_sites"}  # new nodes get the setup again
    without = [{key: row[key] for key in row if key not in changed} for row in uninterrupted.history]
    assert [{key: row[key] for key in row if key not in changed} for row in resumed.history] == without
    assert torch.isfinite(next(resumed.bundle.model.net.parameters())).all()
