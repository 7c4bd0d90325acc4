"""Tests of federated CAML, LAAT and DualLAAT: sites read words and share a vocabulary."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.common.serde import recorddict_to_proto

from nosology.config import load_recipe
from nosology.core import ConfigError, Note
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.evaluation.measure import measure
from nosology.federated.rounds import local_training
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import STATISTICS
from nosology.federated.rounds.simulation import simulated_sites, simulation_grid
from nosology.federated.rounds.vectorized import VectorizedFederation
from nosology.federated.rounds.word_site import WordSite
from nosology.models.bundle import Bundle
from nosology.models.neural_trainer import fit_net
from nosology.models.registry import load_class
from nosology.training.examples import Examples
from tests.conftest import PHRASES, small_notes

KINDS = ("dual_laat", "caml", "laat")
SIZES = {"dual_laat": ["model.width=6"], "caml": ["model.filters=6"], "laat": ["model.hidden=4"]}
SECRET = "quillonwick"  # a word of too few patients


def recipe(kind: str, *changes: str):
    defaults = {
        "rounds": 2,
        "vector_rounds": 0,
        "min_sites": 1,
        "quorum": 1,
        "min_site_notes": 2,
        "min_notes": 1,
        "max_retries": 0,
    }
    settings = [f"federation.{name}={value}" for name, value in defaults.items()]
    return load_recipe(kind, [*settings, "vectors.size=8", "training.precision=fp32", *SIZES[kind], *changes])


def diagnoses(n: int) -> list[Note]:
    """Notes with four ICD-10 codes."""
    notes = small_notes(n)
    return [replace(note, codes=tuple(code for code in note.codes if code.system == "icd10cm")) for note in notes]


def corpus_of(notes: list[Note], folder) -> Corpus:
    return write_corpus(notes, folder, source={"kind": "test"}, filters=[], counts={})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """ICD-10 notes of three sites; only one patient of site-0 has the secret word, in several notes."""
    notes = [replace(note, site=f"site-{i // 4 % 3}") for i, note in enumerate(diagnoses(72))]
    secret = [i for i, note in enumerate(notes) if note.site == "site-0" and note.split == "train"][:4]
    for i in secret:
        notes[i] = replace(notes[i], text=f"{notes[i].text} Mr {SECRET}.", patient="p-secret")
    return corpus_of(notes, tmp_path_factory.mktemp("words") / "corpus")


def sites_of(corpus: Corpus, settings) -> list[WordSite]:
    sites = simulated_sites([corpus], {note.id: note.site or "" for note in corpus.notes(text=False)}, settings, None)
    for site in sites:
        site.device = torch.device("cpu")
    return sites


def run(corpus, settings, out, grid=None):
    return FlowerFederation(grid or simulation_grid(sites_of(corpus, settings)), settings).run(out)


def weights_of(result) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in result.bundle.model.net.state_dict().items()}


def assert_near(result, expected, within: float) -> None:
    assert list(result) == list(expected)
    for name in result:
        np.testing.assert_allclose(result[name], expected[name], atol=within, rtol=0, err_msg=name)


def central(settings, corpus: Corpus, folder) -> dict[str, np.ndarray]:
    """The weights of `nosology train` after the last epoch, with random word vectors."""
    trainer = load_class(settings.kind, "trainer")(settings, folder)
    model, targets, notes = trainer._build(Examples([corpus], lambda note: note.split == "train"))
    fit_net(settings, model, targets, notes, None, folder, "test")
    return {name: value.numpy() for name, value in model.net.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [3, 1])
def test_one_site_equals_central_training(tmp_path, kind, rounds):
    """Three rounds of one epoch with kept optimizer state, or one round of three epochs, equal three epochs."""
    corpus = corpus_of([replace(note, site="only") for note in diagnoses(48)], tmp_path / "corpus")
    federation = [f"federation.rounds={rounds}", f"federation.local_epochs={3 // rounds}"]
    state = ["federation.optimizer_state=keep", "federation.min_site_notes=1"]
    settings = recipe(kind, *federation, *state, "training.epochs=3", "vectors.epochs=0")
    result = weights_of(run(corpus, settings, tmp_path / "bundle"))
    assert_near(result, central(settings, corpus, tmp_path / "central"), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_bundle_learns_and_its_metrics_are_those_of_evaluate(corpus, tmp_path, kind):
    settings = recipe(kind, "federation.rounds=4", "federation.local_epochs=4")
    result = run(corpus, settings, tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.model.kind == kind and result.history[-1]["loss"] < result.history[0]["loss"]
    found = bundle.provenance["found"]
    measured = measure(bundle, corpus, "test", tmp_path / "report").evaluation.metrics
    assert found["test"]["micro_f1"] == pytest.approx(measured["micro_f1"], abs=1e-6)
    assert found["test"]["map"] == pytest.approx(measured["map"], abs=1e-6) and measured["map"] > 0.5
    assert found["shape"][SIZES[kind][0].split(".")[1].split("=")[0]] > 0  # sizes are resolved
    with (tmp_path / "bundle" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    weights = sum(array.nbytes for array in weights_of(result).values())
    for column in ("bytes_to_sites", "bytes_from_sites"):  # three sites; besides weights, the recipe and masks
        assert 3 * weights < int(rows[0][column]) < 3 * weights + 20_000


def recorded(grid) -> list[bytes]:
    """The bytes of all messages in both ways, filled while the grid is used."""
    seen: list[bytes] = []
    app = grid.app

    def recording(message, context):
        reply = app(message, context)
        for each in (message, reply):
            content = recorddict_to_proto(each.content).SerializeToString() if each.has_content() else b""
            seen.append(content + (each.error.reason.encode() if each.has_error() else b""))
        return reply

    grid.app = recording
    return seen


@pytest.mark.parametrize("kind", ["dual_laat", "caml"])
def test_word_of_too_few_patients_is_in_no_message(corpus, tmp_path, kind):
    settings = recipe(kind, "federation.rounds=1")
    grid = simulation_grid(sites_of(corpus, settings))
    seen = recorded(grid)
    result = run(corpus, settings, tmp_path / "bundle", grid)
    everything = b"\n".join(seen)
    assert SECRET.encode() not in everything and b"clinic" in everything
    vocabulary = result.bundle.model.tokenizer.vocabulary
    assert SECRET not in vocabulary and "clinic" in vocabulary


def test_word_of_enough_patients_is_reported(corpus):
    """So that the test above can fail: with a threshold of one patient the word is reported, with its patients."""
    site = sites_of(corpus, recipe("caml"))[0]
    assert site.word_counts(1)[SECRET] == 1 and SECRET not in site.word_counts(2)
    assert min(site.word_counts(5).values()) == 5


def test_patient_in_several_corpora_counts_once(tmp_path):
    notes = [replace(note, split="train") for note in diagnoses(6)]
    named = [replace(note, text=f"{note.text} {SECRET}", patient="p-secret") for note in notes]
    corpora = [corpus_of(named[start : start + 2], tmp_path / str(start)) for start in (0, 2, 4)]
    parts = {split: Examples(corpora, lambda note, split=split: note.split == split) for split in ("train", "dev")}
    settings = recipe("caml")
    site = WordSite("site-0", parts, settings.vectors.cleaning, 8, settings.labels)
    assert site.word_counts(1)[SECRET] == 1


def test_with_a_public_vocabulary_sites_report_no_word(corpus, tmp_path):
    (tmp_path / "words.txt").write_text("clinic\nStable\n")
    settings = recipe("caml", "federation.rounds=1", f"federation.vocabulary='{tmp_path / 'words.txt'}'")
    grid = simulation_grid(sites_of(corpus, settings))
    seen = recorded(grid)
    words = run(corpus, settings, tmp_path / "bundle", grid).bundle.model.tokenizer.vocabulary
    assert {"clinic", "stable", "heart"} <= set(words.words) and "feels" not in words  # heart: of a description
    assert b"feels" not in b"\n".join(seen)


@pytest.mark.parametrize("rare", ["train", "unknown"])
def test_update_shows_rare_words_unless_they_are_read_as_unknown(corpus, tmp_path, rare):
    """The server may send any list of words; vectors of words that a site does not train stay exactly as they are."""
    (tmp_path / "words.txt").write_text(f"{SECRET}\nclinic\n")
    settings = recipe("caml", f"federation.vocabulary='{tmp_path / 'words.txt'}'", f"federation.rare_words={rare}")
    sites = sites_of(corpus, settings)
    federation = FlowerFederation(simulation_grid(sites), settings)
    words = federation.run(tmp_path / "bundle").bundle.model.tokenizer.vocabulary
    initial = federation.setup.initial_weights()
    update = sites[0].train(initial, settings, 1).arrays["embedding.weight"]
    secret, clinic = words.ids([SECRET, "clinic"])
    assert (update[secret] != initial["embedding.weight"][secret]).any() == (rare == "train")
    assert (update[clinic] != initial["embedding.weight"][clinic]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_sites_with_disjoint_labels(tmp_path, kind):
    """Rows of a label are those of the one site that uses it; other weights are the mean."""
    codes = list(PHRASES)[:4]
    lists = {"site-0": frozenset(codes[:2]), "site-1": frozenset(codes[2:])}
    notes = []
    for i, note in enumerate(diagnoses(64)):
        site = f"site-{i // 4 % 2}"
        notes.append(replace(note, site=site, codes=tuple(code for code in note.codes if code in lists[site])))
    corpus, settings = corpus_of(notes, tmp_path / "corpus"), recipe(kind, "federation.rounds=1")
    sites = sites_of(corpus, settings)
    for site in sites:
        site.code_list = lists[site.name]
    federation = FlowerFederation(simulation_grid(sites), settings)
    both = weights_of(federation.run(tmp_path / "bundle"))
    initial = federation.setup.initial_weights()
    updates = [site.train(initial, settings, 1) for site in sites]
    labels = federation.setup.labels
    assert [[code in lists[site.name] for code in labels.codes] for site in sites] == [
        update.label_mask.tolist() for update in updates
    ]
    sizes = np.array([update.notes for update in updates]) / sum(update.notes for update in updates)
    rows = federation.strategy.rows.names
    assert len(rows) == (0 if kind == "dual_laat" else 3)
    for name, value in both.items():
        mean = sum(size * update.arrays[name] for size, update in zip(sizes, updates))
        if name in rows:
            for update in updates:
                array, used = update.arrays[name], update.label_mask
                mean[used] = array[used]
                np.testing.assert_array_equal(array[~used], initial[name][~used])
        np.testing.assert_allclose(value, mean, atol=1e-6, err_msg=name)


class Interrupted(Exception):
    """Ends a run as Ctrl-C does."""


@pytest.mark.parametrize("kind", ["dual_laat", "caml"])
def test_interrupted_run_continues_with_the_same_weights(corpus, tmp_path, kind):
    settings = recipe(kind, "federation.rounds=3", "federation.optimizer_state=reset")  # new nodes have no state
    whole = run(corpus, settings, tmp_path / "whole")

    def interrupting(line: str) -> None:
        if line.startswith("round 2/3"):
            raise Interrupted

    with pytest.raises(Interrupted):
        FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings, interrupting).run(tmp_path / "again")
    lines: list[str] = []
    resumed = FlowerFederation(simulation_grid(sites_of(corpus, settings)), settings, lines.append)
    assert_near(weights_of(resumed.run(tmp_path / "again")), weights_of(whole), 0)
    assert lines[0] == "3 sites, 4 codes, continues after round 2"


def test_secure_sum_gives_the_mean(corpus, tmp_path):
    """Labels that are in no weight (DualLAAT) are counted in the masked vector too."""
    plain = ("federation.rounds=1", "federation.min_sites=3", "federation.quorum=3")
    for kind in ("dual_laat", "caml"):
        expected = run(corpus, recipe(kind, *plain), tmp_path / f"{kind}-plain")
        secure = run(corpus, recipe(kind, *plain, "federation.privacy.secure=true"), tmp_path / f"{kind}-secure")
        assert_near(weights_of(secure), weights_of(expected), 1e-6)


def test_bf16_updates_halve_what_sites_send(corpus, tmp_path):
    plain, settings = recipe("dual_laat"), recipe("dual_laat", "federation.compression=bf16")
    expected, compressed = run(corpus, plain, tmp_path / "plain"), run(corpus, settings, tmp_path / "compressed")
    assert compressed.history[0]["bytes_from_sites"] < 0.51 * expected.history[0]["bytes_from_sites"]
    assert compressed.history[0]["bytes_to_sites"] == pytest.approx(expected.history[0]["bytes_to_sites"], abs=10)
    assert_near(weights_of(compressed), weights_of(expected), 0.01)
    assert any((weights_of(compressed)[name] != value).any() for name, value in weights_of(expected).items())


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("caml", "vectors.corpora=['x']", "vectors.corpora must be"),
        ("caml", "federation.privacy.record_noise=1.0", "record_noise must be 0.0 for a federated caml; got 1.0"),
        ("caml", "federation.vocabulary=none.txt", "must be a file on the server; got 'none.txt'"),
        ("caml", "training.precision=fp64", 'must not be "fp64"'),
        ("dual_laat", "two_stage.candidates=5", "two_stage.candidates must be 0"),
        ("laat", "labels.top_k=5", "labels.top_k must not be set"),
    ],
)
def test_settings_that_word_nets_do_not_support_are_refused(kind, change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        FlowerFederation(simulation_grid([]), recipe(kind, change))


def test_vectorized_engine_refuses_word_nets():
    with pytest.raises(ConfigError, match="trains coders of kind heads; got caml"):
        VectorizedFederation.check(recipe("caml"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"clinic": 1000}, "its words are not counts of 2 to 12 patients"),
        *(({word: 2}, "its words are not words of notes") for word in ("", "a\nb", "<pad>", "\ud800", "Clinic")),
    ],
)
def test_invalid_words_are_refused(corpus, tmp_path, words, reason):
    settings = recipe("caml", "federation.rounds=1")
    grid = simulation_grid(sites_of(corpus, settings))
    app = grid.app

    def lying(message, context):
        reply = app(message, context)
        if message.metadata.message_type == STATISTICS and context.node_config["site-name"] == "site-1":
            reply.content["config"]["words"] = json.dumps(words)
        return reply

    grid.app = lying
    result = run(corpus, settings, tmp_path / "bundle", grid)
    assert result.refused == {"site-1": reason}


def test_all_sites_compute_in_the_precision_that_the_server_has_chosen(corpus, tmp_path, monkeypatch):
    """Sites with and without a GPU would read "auto" differently."""
    asked = []
    train_epochs = local_training.train_epoch_range

    def spy(*given):
        asked.append(given[4].precision)
        return train_epochs(*given)

    monkeypatch.setattr(local_training, "train_epoch_range", spy)
    result = run(corpus, recipe("caml", "training.precision=auto", "federation.rounds=1"), tmp_path / "b")
    assert set(asked) == {"fp32"}
    saved = Bundle.load(tmp_path / "b")
    assert saved.recipe["training"]["precision"] == saved.model.precision == result.bundle.model.precision == "fp32"
    given = recipe("caml", "training.precision=bf16")
    assert FlowerFederation(simulation_grid(sites_of(corpus, given)), given).recipe == given
