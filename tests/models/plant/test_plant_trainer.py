"""Tests of the training of PLANT: its stages, their cache, and the whole model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nosology.config import built_in, load_recipe, read_values
from nosology.core import ConfigError, Note
from nosology.corpora.corpus import write_corpus
from nosology.encoders.word_encoders import AwdLstm
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.models.neural_trainer import Targets, fit_net
from nosology.models.plant.cached_note_states import CachedNoteStates
from nosology.models.plant.plant_model import Plant, PlantNets
from nosology.models.plant.plant_settings import RateSettings
from nosology.models.plant.plant_trainer import (
    PlantPipeline,
    PlantTrainer,
    _classifier_fingerprint,
    parameter_groups,
)
from nosology.models.train import train
from nosology.serving.coder import Coder
from nosology.training.examples import Examples, train_and_dev
from tests.conftest import small_notes

SMALL = [
    "words.min_notes=2",
    "model.size=16",
    "model.hidden=20",
    "model.layers=2",
    "model.inattention=3",
    "language.training.epochs=2",
    "language.training.batch=4",
    "language.window=10",
    "ranker.epochs=30",
    "ranker.list_size=16",
    "ranker.steps=0",
    "ranker.k=10",
    "training.epochs=10",
    "training.batch=8",
    "training.learning_rate=1e-2",
]
QUICK = [*SMALL, "language.training.epochs=1", "ranker.epochs=1", "training.epochs=1"]  # nothing is learned well


@pytest.fixture(scope="module")
def examples(small_corpus) -> Examples:
    """The train notes."""
    return train_and_dev([small_corpus], 0.15, 0)[0]


@pytest.fixture(scope="module")
def bundle(small_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant") / "bundle"
    train(load_recipe("plant", [*SMALL, "model.direction=both"]), [small_corpus], folder)
    return folder


def test_trained_model_codes_a_note_with_evidence(bundle, small_corpus, tmp_path):
    metrics = measure(Bundle.load(bundle), small_corpus, "test", tmp_path / "report").evaluation.metrics
    assert metrics["micro_f1"] > 0.9
    text = "Seen in clinic today. Known congestive heart failure, stable."
    top = Coder.load(bundle, systems=["icd10cm"]).code(text, top=1)[0]
    assert top.code == "I50.9"
    assert any(word in span.text for span in top.evidence for word in ("congestive", "heart", "failure"))


def test_bundle_contains_the_curves_of_all_stages(bundle):
    stages = {f"{stage}_{way}" for stage in ("language", "ranker", "classifier") for way in ("forward", "backward")}
    assert {path.stem.removeprefix("curves_") for path in bundle.glob("curves*.csv")} == stages
    assert "map" in (bundle / "curves_classifier_forward.csv").read_text().splitlines()[0]


def test_relevant_words_are_those_of_the_description(bundle):
    model = Bundle.load(bundle).model
    column = next(j for j, code in enumerate(model.labels.codes) if code.code == "I50.9")
    words = {word for word, _ in model.relevant_words(column, 2)}
    assert words <= {"congestive", "heart"}  # "failure" also occurs with another code


def test_stages_depend_only_on_train_notes(small_corpus, tmp_path):
    """If dev and test notes are replaced, all stages and the weights of the classifier stay the same."""
    recipe = load_recipe("plant", [*QUICK, "model.direction=both"])
    other = [
        note if note.split == "train" else replace(note, text="A different text about fractures.", codes=note.codes[:1])
        for note in small_notes(160)
    ]
    changed = write_corpus(other, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    models = []
    for name, corpus in (("a", small_corpus), ("b", changed)):
        learn, dev, _ = train_and_dev([corpus], 0.15, 0)
        models.append(PlantTrainer(recipe, tmp_path / name).train(learn, dev, False).model)
    assert models[0].tokenizer == models[1].tokenizer and models[0].labels == models[1].labels
    assert (models[0].train_counts == models[1].train_counts).all()
    stages = [f"{stage}_{way}" for stage in ("language", "ranker") for way in ("forward", "backward")]
    for stage in ("relevance", *stages):
        first, second = (load_file(tmp_path / name / f"{stage}.safetensors") for name in "ab")
        assert first.keys() == second.keys()
        for name, value in first.items():
            torch.testing.assert_close(second[name], value, atol=0, rtol=0)
    for name, value in models[0].net.state_dict().items():
        torch.testing.assert_close(models[1].net.state_dict()[name], value, atol=0, rtol=0)


def test_classifier_does_not_depend_on_test_notes(small_corpus, tmp_path):
    """If test notes are replaced, all weights and the threshold stay the same."""
    other = [
        note if note.split != "test" else replace(note, text="A different text.", codes=note.codes[:1])
        for note in small_notes(160)
    ]
    changed = write_corpus(other, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    recipe = load_recipe("plant", [*QUICK, "training.epochs=2"])
    first, second = (train(recipe, [c], tmp_path / n) for n, c in (("a", small_corpus), ("b", changed)))
    assert first.decision == second.decision
    for name, value in first.model.net.state_dict().items():
        torch.testing.assert_close(second.model.net.state_dict()[name], value, atol=0, rtol=0)


def test_stages_are_computed_once(examples, tmp_path, monkeypatch):
    recipe = load_recipe("plant", QUICK)
    first = PlantPipeline.of(recipe, examples, tmp_path).net(False)
    for stage in ("nosology.models.plant.plant_trainer.fit", "nosology.models.plant.ranker_trainer.fit"):
        monkeypatch.setattr(stage, lambda *a, **k: pytest.fail("a stage was computed again"))
    later = load_recipe("plant", [*QUICK, "model.inattention=2", "rates.ranker=0.1", "training.epochs=3"])
    again = PlantPipeline.of(later, examples, tmp_path).net(False)  # only the classifier differs
    for name, value in first.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, atol=0, rtol=0)


WITHOUT_EFFECT = {
    "checkpoint_minutes": 0,
    "log_steps": 1,
    "micro_tokens": 7,
    "micro_batches": 3,
    "patience": 1,
    "monitor": "micro_f1",
    "validation_notes": 1,
}


def test_settings_without_effect_on_weights_keep_the_cache(small_corpus, tmp_path):
    """They give the same tensors and fingerprints, so that stages and classifier are read from the cache."""
    examples, dev, _ = train_and_dev([small_corpus], 0.15, 0)
    other = [*QUICK, *(f"language.training.{name}={value}" for name, value in WITHOUT_EFFECT.items())]
    plain, changed = (load_recipe("plant", settings) for settings in (QUICK, other))
    first, second = (
        PlantPipeline.of(recipe, examples, tmp_path / n) for recipe, n in ((plain, "first"), (changed, "second"))
    )
    nets = [pipeline.net(False).state_dict() for pipeline in (first, second)]
    for name, value in nets[0].items():
        torch.testing.assert_close(nets[1][name], value, atol=0, rtol=0)
    for stage in ("language_forward", "ranker_forward"):
        files = [tmp_path / name / f"{stage}.safetensors" for name in ("first", "second")]
        assert files[0].read_bytes() == files[1].read_bytes()  # tensors and fingerprint
    PlantTrainer(plain, tmp_path / "first").train_classifiers(examples, dev)
    again = PlantTrainer(changed, tmp_path / "first").train_classifiers(examples, dev)["forward"]
    assert again.resumed_at == again.steps  # nothing was left to train
    more = load_recipe("plant", [*QUICK, "language.training.clip=0.1"])
    assert PlantPipeline.of(more, examples, tmp_path)._language_inputs(False) != first._language_inputs(False)


def test_language_model_does_not_depend_on_the_codes(examples, tmp_path, monkeypatch):
    first = PlantPipeline.of(load_recipe("plant", QUICK), examples, tmp_path)
    relevance, encoder = first.relevance(), first.language(False)
    monkeypatch.setattr("nosology.models.plant.plant_trainer.fit", lambda *a, **k: pytest.fail("computed again"))
    fewer = PlantPipeline.of(load_recipe("plant", [*QUICK, "labels.top_k=2"]), examples, tmp_path)
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(fewer.language(False).state_dict()[name], value, atol=0, rtol=0)
    assert len(relevance) == 6 and len(fewer.relevance()) == 2


def test_stages_stay_in_the_folder_of_the_recipe(small_corpus, tmp_path, monkeypatch):
    settings = [*QUICK, f"stages={tmp_path / 'stages'}"]
    train(load_recipe("plant", settings), [small_corpus], tmp_path / "first")
    assert not (tmp_path / "first.run").exists()
    assert {path.name for path in (tmp_path / "stages").glob("*/*.safetensors")} == {
        "language_forward.safetensors",
        "relevance.safetensors",
        "ranker_forward.safetensors",
    }
    assert not list((tmp_path / "stages").rglob("checkpoint.safetensors"))
    for stage in ("nosology.models.plant.plant_trainer.fit", "nosology.models.plant.ranker_trainer.fit"):
        monkeypatch.setattr(stage, lambda *a, **k: pytest.fail("a stage was computed again"))
    train(load_recipe("plant", [*settings, "rates.gradual=false"]), [small_corpus], tmp_path / "second")


def test_each_direction_starts_from_its_published_weights(examples, tmp_path):
    """A different file under the same name is detected by its hash."""
    words = tmp_path / "words.txt"
    words.write_text("xxpad\nheart\npain\n")
    sources = []
    for seed, name in enumerate(("forward", "backward", "later")):
        torch.manual_seed(seed)
        sources.append(AwdLstm(3, size=16, hidden=20, layers=2))
        torch.save({f"0.{key}": value for key, value in sources[-1].state_dict().items()}, tmp_path / f"{name}.pth")
    still = [*QUICK, "language.training.learning_rate=1e-9", f"language.words={words}"]
    files = [f"language.weights={tmp_path / 'forward.pth'}", f"language.backward_weights={tmp_path / 'backward.pth'}"]
    pipeline = PlantPipeline.of(load_recipe("plant", [*still, *files]), examples, tmp_path / "run")
    for backward, source in ((False, sources[0]), (True, sources[1])):
        encoder = pipeline.language(backward)
        torch.testing.assert_close(encoder.rnns[1].weight_hh_l0_raw, source.rnns[1].weight_hh_l0_raw, atol=1e-6, rtol=0)
        heart = 2 + pipeline.tokenizer.vocabulary.words.index("heart")
        torch.testing.assert_close(encoder.encoder.weight[heart], source.encoder.weight[1], atol=1e-6, rtol=0)
    (tmp_path / "later.pth").replace(tmp_path / "forward.pth")
    weights = pipeline.language(False).rnns[1].weight_hh_l0_raw
    torch.testing.assert_close(weights, sources[2].rnns[1].weight_hh_l0_raw, atol=1e-6, rtol=0)


def test_published_weights_need_their_words(examples, tmp_path):
    with pytest.raises(ConfigError, match=r"language\.words must be the vocabulary .*both or neither; got ''"):
        load_recipe("plant", ["language.weights=lm.pth"])
    with pytest.raises(ConfigError, match=r"language\.words .*both or neither; got 'words\.txt'"):
        load_recipe("plant", ["language.words=words.txt"])
    with pytest.raises(ConfigError, match=r"language\.backward_weights .*both have the same words; got 'lm\.pth'"):
        load_recipe("plant", ["language.backward_weights=lm.pth"])
    missing = [f"language.weights={tmp_path / 'lm.pth'}", f"language.words={tmp_path / 'words.txt'}"]
    pipeline = PlantPipeline.of(load_recipe("plant", [*QUICK, *missing]), examples, tmp_path)
    with pytest.raises(ConfigError, match=r"lm\.pth must be a readable file"):
        pipeline.language(False)


@pytest.mark.parametrize("name", [name for name in built_in() if name.startswith("plant")])
def test_built_in_recipes_state_all_learning_rate_factors(name):
    assert read_values(name)["rates"].keys() == RateSettings.model_fields.keys()


def test_gradual_unfreezing_trains_only_the_decoder_in_the_first_epoch(examples, small_corpus, tmp_path):
    recipe = load_recipe("plant", [*QUICK, f"stages={tmp_path / 'stages'}"])
    before = PlantPipeline.of(recipe, examples, tmp_path / "a").net(False)
    after = train(recipe, [small_corpus], tmp_path / "bundle").model.net.by_direction[0]
    for number, part in enumerate(zip(before.groups(), after.groups())):
        changed = [not torch.equal(a, b) for a, b in zip(part[0][1], part[1][1])]
        assert all(changed) if number == 0 else not any(changed), part[0][0]


def test_frozen_encoder_reads_each_note_once(examples, tmp_path, monkeypatch):
    """The weights are the same with and without cached states; the encoder does not change."""
    reads, weights = [], []
    for cache_gb in (4.0, 0.0):
        changed = ["rates.encoder=0", "training.epochs=4", f"model.cache_gb={cache_gb}", f"stages={tmp_path / 's'}"]
        recipe = load_recipe("plant", [*QUICK, *changed])
        pipeline = PlantPipeline.of(recipe, examples, tmp_path / str(cache_gb))
        net = pipeline.net(False)
        before = {name: value.clone() for name, value in net.encoder.state_dict().items()}
        model = Plant(pipeline.labels, np.ones(6), pipeline.tokenizer, PlantNets([net]), recipe.model)
        targets = Targets.of(pipeline.labels)
        monkeypatch.setattr(CachedNoteStates, "states", _counting(reads, CachedNoteStates.states))
        reads.append(0)
        fit_net(
            recipe,
            model,
            targets,
            pipeline.notes,
            None,
            tmp_path / f"c{cache_gb}",
            "",
            parameter_groups=parameter_groups(net, recipe.rates),
        )
        monkeypatch.undo()
        for name, value in net.encoder.state_dict().items():
            assert torch.equal(before[name], value), name
        weights.append(net.state_dict())
    notes = len(pipeline.notes.encodings)
    assert reads == [notes, 4 * notes]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=1e-4, rtol=1e-3)


def _counting(reads: list[int], real):
    """CachedNoteStates.states that counts the notes that are read."""

    def states(self, notes, lengths, width, read):
        def counted(rows):
            reads[-1] += len(rows)
            return read(rows)

        return real(self, notes, lengths, width, counted)

    return states


def test_cache_respects_its_memory_limit():
    cache = CachedNoteStates(100 * 4 * 4 / 2**30)  # 100 states of 4 numbers
    notes, lengths = torch.tensor([0, 1, 2]), torch.tensor([60, 50, 40])
    states = torch.randn(3, 60, 4)
    reads = []
    for _ in range(2):
        result = cache.states(notes, lengths, 60, lambda rows: reads.append(rows) or states[rows])
        assert cache.bytes == 100 * 4 * 4  # the first and the last note
        for row, length in zip(range(3), lengths):
            assert torch.equal(result[row, :length], states[row, :length])
    assert reads == [[0, 1, 2], [1]]  # only the note that is not cached is read again
    result = cache.states(notes[[2, 0]], lengths[[2, 0]], 64, lambda _: pytest.fail("both are cached"))
    assert torch.equal(result[0, :40], states[2, :40]) and torch.equal(result[1, :60], states[0])
    cache.clear()
    assert cache.bytes == 0


def test_parameter_groups_follow_the_recipe(examples, tmp_path):
    recipe = load_recipe("plant", [*QUICK, "rates.ranker=0.3", "rates.encoder=0.4", "rates.layer_decay=2.0"])
    net = PlantPipeline.of(recipe, examples, tmp_path).net(False)
    groups = parameter_groups(net, recipe.rates)
    assert [group.learning_rate_factor for group in groups] == [1.0, 0.3, 0.4, 0.2, 0.1]
    assert [group.start_epoch for group in groups] == [0, 1, 2, 3, 4]
    assert sum(len(group.parameters) for group in groups) == len(list(net.parameters()))


def test_output_bias_starts_at_the_frequency_of_a_code_or_at_zero(examples, tmp_path):
    for start in ("prior", "zero"):
        recipe = load_recipe("plant", [*QUICK, f"model.output_bias={start}"])
        pipeline = PlantPipeline.of(recipe, examples, tmp_path / start)
        bias = pipeline.net(False).bias.detach().numpy()
        rates = np.asarray(pipeline.notes.gold.mean(0)).ravel()
        expected = np.log(rates / (1 - rates)) if start == "prior" else np.zeros(len(rates))
        assert bias == pytest.approx(expected, abs=1e-5)


def test_paper_recipes_have_the_forms_of_the_paper(small_corpus, tmp_path):
    """Their switches are set, and a small coder with them can be trained."""
    paper = load_recipe("plant-paper")
    assert (paper.model.inattention_scope, paper.model.window, paper.model.inattention) == ("window", 72, 56)
    assert (paper.ranker.levels, paper.ranker.own_vectors, paper.words.alphabetic) == (0, False, True)
    assert (paper.language.ar, paper.language.tar, paper.model.output_bias) == (2.0, 1.0, "zero")
    switches = [
        "model.inattention_scope=window", "ranker.levels=0", "ranker.own_vectors=false", "words.alphabetic=true",
        "language.ar=2.0", "language.tar=1.0", "model.output_bias=zero", "ranker.scorer=mlp",
    ]  # fmt: skip
    trained = train(load_recipe("plant", [*QUICK, *switches]), [small_corpus], tmp_path / "bundle").model
    again = Bundle.load(tmp_path / "bundle").model
    notes = [Note("a", "Type 2 diabetes, 120 units. Congestive heart failure.")]
    assert np.array_equal(trained.probabilities(notes), again.probabilities(notes))
    assert again.tokenizer.alphabetic and again.net.by_direction[0].ranker.words is None


def test_recipes_of_label_subsets_differ_from_the_paper_only_in_labels():
    paper = load_recipe("plant-paper")
    for name in ("plant-top50", "plant-rare50", "plant-few"):
        recipe = load_recipe(name)
        assert recipe.labels != paper.labels
        still = {"encoder": 0.0} if name == "plant-rare50" else {}
        rates = paper.rates.model_copy(update=still)
        assert recipe == paper.model_copy(update={"labels": recipe.labels, "rates": rates}), name


def test_classifier_fingerprint_depends_on_published_weights(examples, tmp_path):
    (tmp_path / "words.txt").write_text("xxpad\nxxunk\n")
    settings = [*SMALL, f"language.weights='{tmp_path / 'w'}'", f"language.words='{tmp_path / 'words.txt'}'"]
    fingerprints = []
    for content in (b"one", b"two", b"two"):
        (tmp_path / "w").write_bytes(content)
        fingerprints.append(_classifier_fingerprint(load_recipe("plant", settings), examples))
    assert fingerprints[0] != fingerprints[1] == fingerprints[2]
