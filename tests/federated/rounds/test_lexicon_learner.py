"""Tests of the federated lexicon: counts of phrases and codes are sums over sites, trees are averaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.common.serde import recorddict_to_proto

from nosology.config import load_federated_recipe, load_recipe
from nosology.core import Code, ConfigError, FederationError, Note
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.evaluation.measure import measure
from nosology.federated.rounds import messages
from nosology.federated.rounds.client_app import SECURE_ONLY
from nosology.federated.rounds.hashed_counts import unpack_names
from nosology.federated.rounds.lexicon_site import BOTH, HELD_OUT, MENTION_TREES, PAIRS, SCORE_BINS, LexiconSite
from nosology.federated.rounds.simulation import simulated_sites, simulation_grid
from nosology.federated.rounds.site_trees import SiteTrees, TreeLimits, read_trees
from nosology.federated.rounds.statistics_server import STAGE, StatisticsFederation
from nosology.models.bundle import Bundle
from nosology.models.lexicon.cross_validation import CrossValidation
from nosology.models.lexicon.learned_phrases import LearnedPhrases
from nosology.models.lexicon.trees import TreeEnsemble, Trees
from tests.conftest import small_notes
from tests.federated.rounds.test_linear_learner import false_vector

SECRET = "morvund"  # a word of one patient, which is its own stem
CLEAR = "federation.privacy.secure=false"
SECURE = ("federation.min_sites=3", "federation.quorum=3")
EDITION = ("codes.release=2026", "codes.seventh=true")
NO_TERMS = "learn.terms=false"


def recipe(*changes: str):
    defaults = {"min_sites": 2, "quorum": 2, "min_site_notes": 1, "min_notes": 1, "max_retries": 0}
    settings = [f"federation.{name}={value}" for name, value in defaults.items()]
    small = ["statistics.buckets=16384", "statistics.min_patients=1", "statistics.min_sites=1", *EDITION, NO_TERMS]
    trees = ["learn.rounds=10", "learn.forest=6", "learn.min_leaf=5", "learn.folds=3"]
    return load_federated_recipe("lexicon", [*settings, *small, *trees, *changes])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """ICD-10 notes of three sites; the notes of one patient have the secret word and a code of their own."""
    notes = [replace(note, site=f"site-{i // 4 % 3}") for i, note in enumerate(small_notes(120))]
    notes = [replace(note, codes=tuple(code for code in note.codes if code.system == "icd10cm")) for note in notes]
    train = [i for i, note in enumerate(notes) if note.site == "site-0" and note.split == "train"]
    for i in train[:4]:
        codes = (*notes[i].codes, Code("icd10cm", "A08.4"))
        notes[i] = replace(notes[i], text=f"{notes[i].text} Mr {SECRET}.", patient="p-secret", codes=codes)
    return corpus_of(notes, tmp_path_factory.mktemp("lexicon") / "corpus")


def corpus_of(notes: list[Note], folder) -> Corpus:
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


def sites_of(corpus: Corpus, settings) -> list[LexiconSite]:
    return simulated_sites([corpus], {note.id: note.site or "" for note in corpus.notes(text=False)}, settings, None)


def run(corpus, settings, out, grid=None):
    return StatisticsFederation(grid or simulation_grid(sites_of(corpus, settings)), settings).run(out)


def described(learned: LearnedPhrases) -> dict:
    """The phrases with their counts, codes and notes."""
    phrases = {learned.index.phrase(i): (int(learned.seen[i]), learned.entries(i)) for i in range(len(learned.seen))}
    return {"phrases": phrases, "codes": learned.codes, "notes": learned.notes.tolist(), "n": learned.n_notes}


@pytest.mark.parametrize("secure", [False, True])
def test_phrases_and_counts_are_those_of_all_notes(corpus, tmp_path, secure):
    settings = recipe(*SECURE) if secure else recipe(CLEAR)
    lexicon = run(corpus, settings, tmp_path / "bundle").bundle.model
    train = [note for note in corpus.notes() if note.split == "train"]
    central = load_recipe("lexicon", [*EDITION, NO_TERMS, "learn.folds=3"])
    pooled = described(CrossValidation(central, ["icd10cm"], train, 1).learned[-1])
    assert described(lexicon.scorer.learned) == pooled and len(pooled["phrases"]) > 20
    assert (SECRET,) in pooled["phrases"]  # so that the test of thresholds can fail


def test_terms_of_the_classification_are_counted_as_in_central_training(corpus, tmp_path):
    settings = recipe(CLEAR, "learn.terms=true")
    lexicon = run(corpus, settings, tmp_path / "bundle").bundle.model
    train = [note for note in corpus.notes() if note.split == "train"]
    central = load_recipe("lexicon", [*EDITION, "learn.folds=3"])
    assert described(lexicon.scorer.learned) == described(CrossValidation(central, ["icd10cm"], train, 1).learned[-1])


def test_own_notes_of_a_fold_do_not_count_in_its_features(corpus, tmp_path):
    """A phrase of one patient is known in the notes of other folds only, so it is never found in its own notes."""
    settings = recipe(CLEAR)
    sites = sites_of(corpus, settings)
    federation = StatisticsFederation(simulation_grid(sites), settings)
    lexicon = federation.run(tmp_path / "bundle").bundle.model
    named = tuple(lexicon.scorer.learned.index.phrase(i) for i in range(len(lexicon.scorer.learned.seen)))
    assert (SECRET,) in named
    site = next(site for site in sites if site.name == "site-0")
    texts = [note.text for note in site._scored]
    found = [
        text[place.start : place.end] for item, text in zip(site._found[1], texts) for place in item.table.mentions
    ]
    assert not any(SECRET in mention for mention in found) and len(found) > 50


@pytest.mark.parametrize("secure", [False, True])
def test_rare_phrases_are_in_no_message(corpus, tmp_path, secure):
    settings = recipe(*(SECURE if secure else (CLEAR,)), "statistics.min_patients=3", "statistics.min_sites=2")
    grid = simulation_grid(sites_of(corpus, settings))
    app, seen = grid.app, []

    def recording(message: Message, context: Context) -> Message:
        reply = app(message, context)
        seen.extend(recorddict_to_proto(each.content).SerializeToString() for each in (message, reply))
        return reply

    grid.app = recording
    learned = run(corpus, settings, tmp_path / "bundle", grid).bundle.model.scorer.learned
    phrases = {learned.index.phrase(i): int(learned.seen[i]) for i in range(len(learned.seen))}
    assert SECRET.encode() not in b"\n".join(seen) and not any(SECRET in phrase for phrase in phrases)
    assert phrases and min(phrases.values()) >= 3 and min(learned.coded) >= 3
    shared = min(phrases, key=len)
    assert " ".join(shared).encode() in b"\n".join(seen)


def test_bundle_learns_and_its_metrics_are_those_of_evaluate(corpus, tmp_path):
    result = run(corpus, recipe(*SECURE), tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    assert len(result.history) == 8 and bundle.provenance["tuned_on"].startswith("held-out train notes")
    measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
    found = bundle.provenance["found"]["test"]
    assert found["micro_f1"] == pytest.approx(measured["micro_f1"], abs=1e-6) and measured["micro_f1"] > 0.8
    assert bundle.decision.threshold == pytest.approx(result.bundle.decision.threshold)


def test_secure_only_site_sends_no_trees(corpus, tmp_path):
    settings = recipe(*SECURE)
    grid = simulation_grid(sites_of(corpus, settings))
    for context in grid._contexts.values():
        context.node_config[SECURE_ONLY] = "yes"
    with pytest.raises(FederationError, match=r"stage mention_trees failed.*decision trees are no sums"):
        run(corpus, settings, tmp_path / "bundle", grid)


@pytest.mark.parametrize(
    ("stage", "place", "added"), [(PAIRS, 0, -1000.0), (BOTH, 0, 1000.0), (HELD_OUT, SCORE_BINS, 1000.0)]
)
def test_false_vector_in_a_secure_sum_is_noticed(corpus, tmp_path, stage, place, added):
    settings = recipe(*SECURE)
    grid = simulation_grid(sites_of(corpus, settings))
    false_vector(grid, stage, place, added)
    with pytest.raises(FederationError, match=f"stage {stage} failed.*a site has sent a false vector"):
        run(corpus, settings, tmp_path / "bundle", grid)


def test_one_site_is_not_enough(tmp_path):
    corpus = corpus_of([replace(note, site="only") for note in small_notes(24)], tmp_path / "corpus")
    settings = recipe(CLEAR, "federation.min_sites=1", "federation.quorum=1")
    with pytest.raises(FederationError, match="a federated lexicon needs two sites"):
        run(corpus, settings, tmp_path / "bundle")


def fitted(seed: int, boosted: bool) -> Trees:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(200, 4)).astype(np.float32)
    target = rows[:, 0] + rows[:, 1] * rows[:, 2] > 0.3
    if boosted:
        return Trees.boost(rows, target, rounds=5, leaves=6, learning_rate=0.2, min_leaf=5, seed=seed)
    return Trees.forest(rows, target, trees=4, leaves=8, min_leaf=5, seed=seed)


def test_average_of_trees_is_the_mean_of_their_scores():
    rows = np.random.default_rng(9).normal(size=(50, 4)).astype(np.float32)

    def logit(p):
        return np.log(p / (1 - p))

    boosted, forests = ([fitted(seed, kind) for seed in (1, 2, 3)] for kind in (True, False))
    sites = {f"s{i}": trees for i, trees in enumerate(boosted)}
    weights = dict(zip(sites, (1.0, 2.0, 1.0)))
    averaged = SiteTrees(sites, weights)
    parts = [logit(trees.probabilities(rows)) for trees in boosted]
    np.testing.assert_allclose(
        logit(averaged.average().probabilities(rows)), np.average(parts, 0, [1, 2, 1]), atol=1e-9
    )
    np.testing.assert_allclose(
        logit(averaged.average(without="s1").probabilities(rows)), (parts[0] + parts[2]) / 2, atol=1e-9
    )
    forests.append(Trees.constant(0.2))  # of a site without a true mention
    means = [trees.probabilities(rows) for trees in forests]
    np.testing.assert_allclose(Trees.average(forests, [1, 1, 1, 1]).probabilities(rows), np.mean(means, 0), atol=1e-9)
    restored = SiteTrees.from_arrays(averaged.arrays("x"), "x", list(sites), list(weights.values()))
    ensemble = TreeEnsemble(restored.average(), Trees.average(forests, [1] * 4))
    assert ensemble.probabilities(rows).shape == (50,)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x.left": None}, "cannot be read"),
        ({"x.feature": lambda array: array + 4}, "are no trees of 6 leaves over 4 features"),
        ({"x.left": lambda array: np.zeros_like(array)}, "are no trees"),  # a cycle: the note would never reach a leaf
        ({"x.right": lambda array: array + 10**6}, "are no trees"),
        ({"x.value": lambda array: array * np.nan}, "are no trees"),
        ({"x.value": lambda array: array[:-1]}, "arrays of different length"),
        ({"x.left": lambda array: array.astype(np.int64)}, "another dtype or shape"),
        ({"x.roots": lambda array: array - 1}, "are no trees"),
        ({"x.roots": lambda array: np.repeat(array, 2)}, "must be 5 at most; got 10"),
        ({"x.roots": lambda array: array[:1]}, "are no trees"),
        ({"x.numbers": lambda array: np.array([0.0, np.inf, 1.0])}, "cannot be read"),
        ({"x.numbers": lambda array: np.array(1.0)}, "cannot be read"),
        ({"x.numbers": lambda array: np.array([1e308, 3.0, 1.0])}, "are no trees"),
        ({"x.numbers": lambda array: np.array([np.nan, 3.0, 1.0])}, "are no trees"),
        ({"x.numbers": lambda array: np.array([0.0, 3.0, 0.0])}, "are no trees"),  # a forest
    ],
)
def test_invalid_trees_are_refused(change, reason):
    arrays, limits = fitted(1, True).arrays("x"), TreeLimits(4, 5, 6)
    assert isinstance(read_trees(arrays, "x", limits), Trees)
    for name, changed in change.items():
        arrays = {key: array for key, array in arrays.items() if key != name} | (
            {} if changed is None else {name: changed(arrays[name])}
        )
    assert reason in str(read_trees(arrays, "x", limits))


def test_forest_must_give_probabilities():
    limits, forest = TreeLimits(4, 4, 8, boosted=False), fitted(1, False)
    assert read_trees(forest.arrays("x"), "x", limits).depth == forest.depth
    assert isinstance(read_trees(Trees.constant(0.2).arrays("x"), "x", limits), Trees)  # of a site without mentions
    for wrong in (replace(forest, boosted=True), replace(forest, value=3 * forest.value), replace(forest, start=1.0)):
        assert "are no trees" in str(read_trees(wrong.arrays("x"), "x", limits))
    assert "are no trees" in str(read_trees(forest.arrays("x"), "x", replace(limits, leaves=5)))


def chain(leaves: int, shared: bool = False) -> Trees:
    """A tree in which each inner node has a leaf and the next inner node, or twice the next node."""
    node = np.arange(2 * leaves - 1)
    inner = node[: -1 if shared else leaves - 1]
    left, right = node.copy(), node.copy()
    left[inner], right[inner] = inner + 1, inner + (1 if shared else leaves)
    if not shared:
        left[leaves - 2], right[leaves - 2] = leaves - 1, 2 * leaves - 2
    numbers = np.zeros(len(node))
    parts = (np.zeros_like(node), numbers, left, right)
    feature, threshold, left, right = (part.astype(float if part is numbers else np.int32) for part in parts)
    return Trees(feature, threshold, left, right, numbers, np.zeros(1, np.int32), 0.0, 1)


def test_depth_of_trees_is_computed_and_limited():
    """A false depth has no effect, and trees cannot be so deep, or have so many paths, that scoring does not end."""
    limits = TreeLimits(4, 1, 10**4)
    assert read_trees(chain(40).arrays("x"), "x", limits).depth == 39
    assert "deeper than 256" in str(read_trees(chain(3000).arrays("x"), "x", limits))
    assert "are no trees" in str(read_trees(chain(40, shared=True).arrays("x"), "x", limits))


def test_site_with_invalid_trees_is_left_out(corpus, tmp_path):
    settings = recipe(CLEAR)
    grid = simulation_grid(sites_of(corpus, settings))
    app = grid.app

    def lying(message: Message, context: Context) -> Message:
        content, kind = message.content, message.metadata.message_type
        is_stage = kind == STAGE and messages.get_value(content, "stage") == MENTION_TREES
        if is_stage and context.node_config["site-name"] == "site-1":
            return Message(messages.make_content({}), reply_to=message)
        return app(message, context)

    grid.app = lying
    federation = StatisticsFederation(grid, settings)
    history = federation.run(tmp_path / "bundle").history
    assert [(row["sites"], row["refused"]) for row in history[4:7]] == [(3, 0), (2, 1), (3, 0)]
    assert unpack_names(federation.checkpoint.weights["boosted.sites"]) == ["site-0", "site-2"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("labels.min_notes=2", "of labels only systems can be set"),
        ("federation.compression=bf16", "federation.compression must be 'none' for a federated lexicon"),
        ("decision.at_least_one=true", "without at_least_one"),
    ],
)
def test_settings_that_a_federated_lexicon_does_not_support_are_refused(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        StatisticsFederation(simulation_grid([]), recipe(change))
