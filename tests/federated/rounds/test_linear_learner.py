"""Tests of the federated linear coder: its statistics and gradients are sums over sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.common.serde import recorddict_to_proto
from scipy.optimize import minimize

from nosology.config import load_federated_recipe
from nosology.core import ConfigError, FederationError, Note
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.evaluation.measure import measure
from nosology.federated.privacy.masking import to_fixed_point
from nosology.federated.privacy.secure_round import MASKED
from nosology.federated.rounds import label_lbfgs, messages
from nosology.federated.rounds.client_app import SECURE_ONLY
from nosology.federated.rounds.hashed_counts import estimates, hash_items, hashed_sum, pack_names, passing, read_names
from nosology.federated.rounds.linear_learner import CALIBRATE, LENGTHS, PAIRS, STEP
from nosology.federated.rounds.simulation import simulated_sites, simulation_grid
from nosology.federated.rounds.statistics_learner import COUNTS, FIND, NAMES
from nosology.federated.rounds.statistics_server import SECURE_STAGE, STAGE, StatisticsFederation
from nosology.models.bundle import Bundle
from nosology.models.linear.tfidf import Tfidf
from tests.conftest import small_notes

SECRET, OF_ONE_SITE = "quillonwick", "wardname"  # words of one patient, and of many patients of one site
CLEAR = "federation.privacy.secure=false"


def recipe(*changes: str):
    defaults = {"rounds": 4, "min_sites": 2, "quorum": 2, "min_site_notes": 1, "min_notes": 1, "max_retries": 0}
    settings = [f"federation.{name}={value}" for name, value in defaults.items()]
    small = ["statistics.buckets=16384", "statistics.features=8", "statistics.min_patients=1", "statistics.min_sites=1"]
    return load_federated_recipe("linear", [*settings, *small, *changes])


SECURE = ("federation.min_sites=3", "federation.quorum=3")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """Notes of three sites; one patient has the secret word, in two notes."""
    notes = [replace(note, site=f"site-{i // 4 % 3}") for i, note in enumerate(small_notes(72))]
    train = [i for i, note in enumerate(notes) if note.site == "site-0" and note.split == "train"]
    for i in train[:2]:
        notes[i] = replace(notes[i], text=f"{notes[i].text} Mr {SECRET}.", patient="p-secret")
    for i in train[2:7]:
        notes[i] = replace(notes[i], text=f"{notes[i].text} {OF_ONE_SITE}.")
    return corpus_of(notes, tmp_path_factory.mktemp("linear") / "corpus")


def corpus_of(notes: list[Note], folder) -> Corpus:
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


def sites_of(corpus: Corpus, settings, site_of=None):
    named = {note.id: site_of(note) if site_of else note.site or "" for note in corpus.notes(text=False)}
    return simulated_sites([corpus], named, settings, None)


def federation_of(corpus, settings, site_of=None, grid=None, report=lambda line: None) -> StatisticsFederation:
    return StatisticsFederation(grid or simulation_grid(sites_of(corpus, settings, site_of)), settings, report)


def recorded(grid) -> list[bytes]:
    """The bytes of all messages in both ways, filled while the grid is used."""
    seen: list[bytes] = []
    app = grid.app

    def recording(message, context):
        reply = app(message, context)
        seen.extend(recorddict_to_proto(each.content).SerializeToString() for each in (message, reply))
        return reply

    grid.app = recording
    return seen


def features_of(tfidf: Tfidf) -> dict[str, float]:
    """The scale of each word and of each pair of words."""
    n = len(tfidf.words)
    pairs = [f"{tfidf.words[key // n]} {tfidf.words[key % n]}" for key in tfidf.pairs.tolist()]
    return dict(zip([*tfidf.words, *pairs], tfidf.scale.tolist()))


@pytest.mark.parametrize("secure", [False, True])
def test_words_and_document_frequencies_are_those_of_all_notes(corpus, tmp_path, secure):
    settings = recipe(*SECURE) if secure else recipe(CLEAR)
    bundle = federation_of(corpus, settings).run(tmp_path / "bundle").bundle
    train = [note for note in corpus.notes() if note.split == "train"]
    pooled, _ = Tfidf.fit((note.text for note in train), settings.features)
    assert features_of(bundle.model.tfidf) == features_of(pooled)
    assert bundle.model.tfidf.shortest == pytest.approx(pooled.shortest, rel=0.005)
    expected = [sum(code in note.codes for note in train) for code in bundle.model.labels.codes]
    assert bundle.model.train_counts.tolist() == expected


def test_coder_does_not_depend_on_sites_or_masks(corpus, tmp_path):
    ways = {
        "clear": federation_of(corpus, recipe(CLEAR)),
        "secure": federation_of(corpus, recipe(*SECURE)),
        "two sites": federation_of(corpus, recipe(CLEAR), lambda note: f"s{int(note.id[1:]) % 2}"),
    }
    models = [federation.run(tmp_path / name).bundle.model for name, federation in ways.items()]
    for model in models[1:]:
        np.testing.assert_allclose(model.weights.toarray(), models[0].weights.toarray(), atol=1e-5)
        np.testing.assert_allclose(model.bias, models[0].bias, atol=1e-5)
        assert model.calibration.score == pytest.approx(models[0].calibration.score, abs=0.02)
    assert models[0].weights.count_nonzero()


def test_bundle_learns_and_its_metrics_are_those_of_evaluate(corpus, tmp_path):
    result = federation_of(corpus, recipe(*SECURE, "federation.rounds=8")).run(tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    losses = [row["loss"] for row in result.history if row["loss"]]
    assert losses[-1] < 0.5 * losses[0] and len(result.history) == 8 + 6
    measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
    assert bundle.provenance["found"]["test"]["micro_f1"] == pytest.approx(measured["micro_f1"], abs=1e-6)
    assert (
        bundle.provenance["found"]["test"]["map"] == pytest.approx(measured["map"], abs=1e-6) and measured["map"] > 0.8
    )


@pytest.mark.parametrize("secure", [False, True])
def test_rare_words_are_in_no_message(corpus, tmp_path, secure):
    changes = ("statistics.min_patients=3", "statistics.min_sites=2", "statistics.buckets=65536", "federation.rounds=1")
    settings = recipe(*(SECURE if secure else (CLEAR,)), *changes)
    grid = simulation_grid(sites_of(corpus, settings))
    seen = recorded(grid)
    words = federation_of(corpus, settings, grid=grid).run(tmp_path / "bundle").bundle.model.tfidf.words
    everything = b"\n".join(seen)
    for word in (SECRET, OF_ONE_SITE):
        assert word.encode() not in everything and word not in words
    assert b"clinic" in everything and "clinic" in words


def test_patients_are_counted_and_not_notes(corpus, tmp_path):
    """So that the test above can fail: the word of one patient in two notes is shared if one patient is enough."""
    for patients, is_shared in ((1, True), (2, False)):
        settings = recipe(CLEAR, f"statistics.min_patients={patients}", "federation.rounds=1")
        words = federation_of(corpus, settings).run(tmp_path / f"bundle-{patients}").bundle.model.tfidf.words
        assert (SECRET in words) == is_shared


class Interrupted(Exception):
    """Ends a run as Ctrl-C does."""


def test_interrupted_run_continues_with_the_same_weights(corpus, tmp_path):
    settings = recipe(CLEAR)
    whole = federation_of(corpus, settings).run(tmp_path / "whole").bundle.model

    def interrupting(line: str) -> None:
        if line.startswith("round 7/10"):
            raise Interrupted

    with pytest.raises(Interrupted):
        federation_of(corpus, settings, report=interrupting).run(tmp_path / "again")
    lines: list[str] = []
    resumed = federation_of(corpus, settings, report=lines.append).run(tmp_path / "again").bundle.model
    assert lines[0] == "3 sites, 6 codes, continues after round 7"
    np.testing.assert_array_equal(resumed.weights.toarray(), whole.weights.toarray())


def lying_grid(corpus, settings, stage: str, arrays):
    """A grid whose site-1 sends these arrays in a stage."""
    grid = simulation_grid(sites_of(corpus, settings))
    app = grid.app

    def lying(message: Message, context: Context) -> Message:
        content = message.content
        is_stage = message.metadata.message_type == STAGE and messages.get_value(content, "stage") == stage
        if is_stage and context.node_config["site-name"] == "site-1":
            return Message(messages.make_content(arrays), reply_to=message)
        return app(message, context)

    grid.app = lying
    return grid


@pytest.mark.parametrize(
    ("stage", "arrays", "reason"),
    [
        (FIND, {"index": np.array([10**9]), "value": np.ones(1)}, "its vector must have 131072 numbers"),
        (FIND, {"index": np.array([-1]), "value": np.ones(1)}, "its vector must have 131072 numbers"),
        (FIND, {"index": np.array([0]), "value": np.array([np.nan])}, "values that cannot come from notes"),
        (FIND, {"index": np.array([0, 1]), "value": np.ones(1)}, "its vector cannot be read"),
        (NAMES, {"names": pack_names(["unheardof"])}, "names words or phrases of too few patients"),
        (NAMES, {"names": np.array([255, 254], np.uint8)}, "its names are not texts"),
        (NAMES, {}, "its names are not bytes"),
    ],
)
def test_invalid_replies_are_refused(corpus, tmp_path, stage, arrays, reason):
    settings = recipe(CLEAR, "federation.quorum=3", "federation.rounds=1")
    with pytest.raises(FederationError, match=f"stage {stage} failed.*site-1: .*{reason}"):
        federation_of(corpus, settings, grid=lying_grid(corpus, settings, stage, arrays)).run(tmp_path / "bundle")


def test_vector_in_the_clear_that_notes_cannot_have_is_refused(corpus, tmp_path):
    settings = recipe(CLEAR, "federation.rounds=1")
    grid = lying_grid(corpus, settings, COUNTS, {"index": np.array([0]), "value": np.array([3.0])})
    federation = federation_of(corpus, settings, grid=grid)
    history = federation.run(tmp_path / "bundle").history
    assert [(row["sites"], row["refused"]) for row in history[:3]] == [(3, 0), (3, 0), (2, 1)]


def false_vector(grid, stage: str, place: int, added: float) -> None:
    """Lets site-1 add a number to one place of its masked vectors in a stage."""
    app = grid.app

    def lying(message: Message, context: Context) -> Message:
        reply = app(message, context)
        is_stage = (
            message.metadata.message_type == SECURE_STAGE and messages.get_value(message.content, "stage") == stage
        )
        if is_stage and context.node_config["site-name"] == "site-1":
            masked = messages.get_arrays(reply.content)[MASKED]
            masked += to_fixed_point(np.where(np.arange(len(masked)) == place % len(masked), added, 0.0), 3)
            reply.content[messages.ARRAYS] = messages.to_record({MASKED: masked})
        return reply

    grid.app = lying


@pytest.mark.parametrize(
    ("stage", "place", "added", "reason"),
    [
        (FIND, 0, -1000.0, "cannot have such a sum"),
        (FIND, -1, 4.0, "cannot have such a sum"),  # more sites than there are
        (COUNTS, -1, 2.0, r"the sum of notes must be \d+, as reported"),
        (COUNTS, 0, 100.0, "cannot have such a sum"),
        (LENGTHS, 5, 100.0, "cannot have such a sum"),
        (PAIRS, -1, 100.0, "cannot have such a sum"),
        (STEP, 0, 1000.0, "cannot have such a sum"),  # gradient and loss do not fit
        (STEP, -1, -1000.0, "cannot have such a sum"),
        (CALIBRATE, 0, -1000.0, "cannot have such a sum"),
    ],
)
def test_false_vector_in_a_secure_sum_is_noticed(corpus, tmp_path, stage, place, added, reason):
    settings = recipe(*SECURE, "federation.rounds=1")
    grid = simulation_grid(sites_of(corpus, settings))
    false_vector(grid, stage, place, added)
    with pytest.raises(FederationError, match=rf"stage {stage} failed.*{reason}; a site has sent a false vector"):
        federation_of(corpus, settings, grid=grid).run(tmp_path / "bundle")


def test_noise_is_no_false_vector(corpus, tmp_path):
    settings = recipe(*SECURE, "federation.rounds=1", "statistics.noise=2.0")
    history = federation_of(corpus, settings).run(tmp_path / "bundle").history
    assert {row["sites"] for row in history} == {3}


def failing_evaluations(grid) -> None:
    app = grid.app

    def failing(message: Message, context: Context) -> Message:
        if message.metadata.message_type == messages.EVALUATE:
            return messages.error_reply(messages.FAILED, "it failed with OSError", message)
        return app(message, context)

    grid.app = failing


def test_run_without_evaluation_writes_no_untuned_bundle(corpus, tmp_path):
    settings, out = recipe(CLEAR, "federation.rounds=1"), tmp_path / "bundle"
    grid = simulation_grid(sites_of(corpus, settings))
    failing_evaluations(grid)
    with pytest.raises(FederationError, match="no site has replied to the evaluation after round 7"):
        federation_of(corpus, settings, grid=grid).run(out)
    assert not out.exists()
    lines: list[str] = []
    federation_of(corpus, settings, report=lines.append).run(out)
    assert lines[0].endswith("continues after round 7") and out.exists()


def test_fixed_threshold_needs_no_evaluation(corpus, tmp_path):
    settings = recipe(CLEAR, "federation.rounds=1", "decision.threshold=0.4")
    grid = simulation_grid(sites_of(corpus, settings))
    failing_evaluations(grid)
    assert federation_of(corpus, settings, grid=grid).run(tmp_path / "bundle").bundle.decision.threshold == 0.4


def test_recipe_of_the_bundle_is_the_one_that_was_given(corpus, tmp_path):
    settings = recipe(CLEAR, "federation.rounds=2")
    federation = federation_of(corpus, settings)
    assert federation.run(tmp_path / "bundle").bundle.recipe == settings.model_dump(mode="json")
    assert federation.rounds == len(federation.stages) == 8


def test_site_that_fails_in_a_stage_is_left_out(corpus, tmp_path):
    settings = recipe(CLEAR, "federation.rounds=1")
    grid = lying_grid(corpus, settings, COUNTS, {})
    history = federation_of(corpus, settings, grid=grid).run(tmp_path / "bundle").history
    assert [(row["sites"], row["refused"]) for row in history[:3]] == [(3, 0), (3, 0), (2, 1)]


def test_secure_only_site_sends_no_vector_in_the_clear(corpus, tmp_path):
    settings = recipe(CLEAR)
    grid = simulation_grid(sites_of(corpus, settings))
    for context in grid._contexts.values():
        context.node_config[SECURE_ONLY] = "yes"
    with pytest.raises(FederationError, match="sends updates only with secure aggregation"):
        federation_of(corpus, settings, grid=grid).run(tmp_path / "bundle")


def test_noise_of_all_sites_has_the_standard_deviation_of_the_recipe(corpus):
    settings = recipe("statistics.noise=5.0")
    site = sites_of(corpus, settings)[0]
    exact = site.vector(FIND, {}, settings)
    noise = site.noisy_vector(FIND, {}, settings, 4) - exact
    assert noise.std() == pytest.approx(5.0 / 2, rel=0.02) and abs(noise.mean()) < 0.05
    assert (site.noisy_vector(FIND, {}, settings, 4) != exact + noise).any()  # new noise each time


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("federation.strategy=median", "federation.strategy must be 'fedavg' for a federated linear"),
        ("federation.privacy.record_noise=1.0", "record_noise must be 0.0"),
        ("federation.fraction_train=0.5", "fraction_train must be 1.0"),
        ("labels.top_k=5", "labels.top_k must not be set"),
    ],
)
def test_settings_that_sums_do_not_support_are_refused(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        StatisticsFederation(simulation_grid([]), recipe(change))


def test_sums_are_secure_unless_the_recipe_says_otherwise():
    assert load_federated_recipe("linear", ["federation.privacy.delta=1e-6"]).federation.privacy.secure
    assert not load_federated_recipe("linear", [CLEAR]).federation.privacy.secure


def test_hashed_counts_are_never_too_small():
    items = [f"item {i}" for i in range(500)]
    values = np.random.default_rng(0).integers(1, 9, 500).astype(float)
    hashes = hash_items(items)
    sums = hashed_sum(hashes, values, 4096)
    found = estimates(sums, hashes, 4096)
    assert (found >= values).all() and (found == values).mean() > 0.99
    bits = np.packbits(sums >= 5)
    assert passing(hashes, bits, 4096)[values >= 5].all() and passing(hashes, bits, 4096)[values < 5].mean() < 0.01
    assert read_names(pack_names(["item 1\x07"]), bits, 4096) == "its names are not words of notes"


def test_label_lbfgs_finds_the_minimum_of_each_problem():
    rng = np.random.default_rng(1)
    rows, target = rng.normal(size=(60, 5)), np.sign(rng.normal(size=(60, 3)))

    def losses(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hinge = np.maximum(0, 1 - target * (rows @ points.T))
        return (hinge**2).sum(0) + (points**2).sum(1) / 2, -2 * (rows.T @ (target * hinge)).T + points

    state = label_lbfgs.start(3, 5)
    for _ in range(30):
        state = label_lbfgs.advance(state, *losses(state["point"]))
    for label in range(3):
        best = minimize(lambda x, label=label: losses(np.tile(x, (3, 1)))[0][label], np.zeros(5))
        assert state["best_loss"][label] == pytest.approx(best.fun, rel=1e-6)
