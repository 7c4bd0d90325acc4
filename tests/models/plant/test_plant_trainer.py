"""PLANT, stage by stage and as a whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nosology.config import built_in, load_recipe, read_values
from nosology.core import ConfigError
from nosology.corpora.corpus import write_corpus
from nosology.encoders.word_encoders import AwdLstm
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.models.neural_trainer import Targets, fit_labels
from nosology.models.plant.plant_model import Plant, PlantNets
from nosology.models.plant.plant_net import CachedNoteStates
from nosology.models.plant.plant_settings import RateSettings
from nosology.models.plant.plant_trainer import (
    PlantPipeline,
    PlantTrainer,
    _classifier_fingerprint,
    parameter_groups,
    train_classifiers,
)
from nosology.models.train import train
from nosology.serving.coder import Coder
from nosology.training.examples import train_and_dev
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
    "ranker.list=16",
    "ranker.steps=0",
    "ranker.k=10",
    "training.epochs=10",
    "training.batch=8",
    "training.learning_rate=1e-2",
]


@pytest.fixture(scope="module")
def bundle(small_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant") / "bundle"
    train(load_recipe("plant", [*SMALL, "model.direction=both"]), [small_corpus], folder)
    return folder


def test_it_learns_and_codes(bundle, small_corpus, tmp_path):
    found = measure(Bundle.load(bundle), small_corpus, "test", tmp_path / "report").evaluation.metrics
    assert found["micro_f1"] > 0.9
    text = "Seen in clinic today. Known congestive heart failure, stable."
    top = Coder.load(bundle, systems=["icd10cm"]).code(text, top=1)[0]
    assert top.code == "I50.9"
    assert any(word in span.text for span in top.evidence for word in ("congestive", "heart", "failure"))


def test_the_curves_of_all_stages_are_kept(bundle):
    stages = {f"{stage}_{way}" for stage in ("language", "ranker", "classifier") for way in ("forward", "backward")}
    assert {path.stem.removeprefix("curves_") for path in bundle.glob("curves*.csv")} == stages
    assert "map" in (bundle / "curves_classifier_forward.csv").read_text().splitlines()[0]


def test_the_words_that_tell_a_code(bundle):
    model = Bundle.load(bundle).model
    column = next(j for j, code in enumerate(model.labels.codes) if code.code == "I50.9")
    assert {word for word, _ in model.relevant_words(column, 2)} <= {
        "congestive",
        "heart",
    }  # "failure" is in another code too


def test_only_train_notes_enter_the_stages(small_corpus, tmp_path):
    """Dev and test notes are replaced by others: each stage of a whole run is the same, the classifier's epoch too."""
    recipe = load_recipe("plant", [*SMALL, "model.direction=both", "training.epochs=1", "ranker.epochs=3"])
    other = [
        note
        if note.split == "train"
        else replace(note, text="Quite another text about fractures.", codes=note.codes[:1])
        for note in small_notes(160)
    ]
    changed = write_corpus(other, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    made = []
    for name, corpus in (("a", small_corpus), ("b", changed)):
        learn, dev, _ = train_and_dev([corpus], 0.15, 0)
        made.append(PlantTrainer(recipe, tmp_path / name).train(learn, dev, False).model)
    assert made[0].tokenizer == made[1].tokenizer and made[0].labels == made[1].labels
    assert (made[0].train_counts == made[1].train_counts).all()
    stages = [f"{stage}_{way}" for stage in ("language", "ranker") for way in ("forward", "backward")]
    for stage in ("relevance", *stages):
        first, second = (load_file(tmp_path / name / f"{stage}.safetensors") for name in "ab")
        assert first.keys() == second.keys()
        for name, value in first.items():
            torch.testing.assert_close(second[name], value, atol=0, rtol=0)
    for name, value in made[0].net.state_dict().items():
        torch.testing.assert_close(made[1].net.state_dict()[name], value, atol=0, rtol=0)


def test_test_notes_do_not_enter_the_classifier(small_corpus, tmp_path):
    """The whole coder, with dev notes as they were and other test notes: no weight and no threshold is another one."""
    other = [
        note if note.split != "test" else replace(note, text="Quite another text.", codes=note.codes[:1])
        for note in small_notes(160)
    ]
    changed = write_corpus(other, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    recipe = load_recipe("plant", [*SMALL, "training.epochs=2", "ranker.epochs=3"])
    first, second = (train(recipe, [c], tmp_path / n) for n, c in (("a", small_corpus), ("b", changed)))
    assert first.decision == second.decision
    for name, value in first.model.net.state_dict().items():
        torch.testing.assert_close(second.model.net.state_dict()[name], value, atol=0, rtol=0)


def test_stages_are_made_once(small_corpus, tmp_path, monkeypatch):
    recipe = load_recipe("plant", SMALL)
    examples = train_and_dev([small_corpus], 0.15, 0)[0]
    first = PlantPipeline.of(recipe, examples, tmp_path).net(False)
    for stage in ("nosology.models.plant.plant_trainer.fit", "nosology.models.plant.ranker.fit"):
        monkeypatch.setattr(stage, lambda *a, **k: pytest.fail("a stage was made again"))
    later = load_recipe("plant", [*SMALL, "model.inattention=2", "rates.ranker=0.1", "training.epochs=3"])
    again = PlantPipeline.of(later, examples, tmp_path).net(False)  # another classifier, the same stages before it
    for name, value in first.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, atol=0, rtol=0)


IDLE = {
    "checkpoint_minutes": 0,
    "log_steps": 1,
    "micro_tokens": 7,
    "micro_batches": 3,
    "patience": 1,
    "monitor": "micro_f1",
    "validation_notes": 1,
}


def test_settings_that_change_no_weight_leave_the_stages_as_they_are(small_corpus, tmp_path):
    """The same weights come of other values, to the last bit; so what is there is taken, the classifier too."""
    examples, dev, _ = train_and_dev([small_corpus], 0.15, 0)
    small = [*SMALL, "ranker.epochs=2", "training.epochs=1"]
    other = [*small, *(f"language.training.{name}={value}" for name, value in IDLE.items())]
    plain, changed = (load_recipe("plant", settings) for settings in (small, other))
    first, apart = (
        PlantPipeline.of(recipe, examples, tmp_path / n) for recipe, n in ((plain, "first"), (changed, "apart"))
    )
    for name, value in first.net(False).state_dict().items():
        torch.testing.assert_close(apart.net(False).state_dict()[name], value, atol=0, rtol=0)
    for stage in ("language_forward", "ranker_forward"):
        kept, made = (tmp_path / name / f"{stage}.safetensors" for name in ("first", "apart"))
        assert kept.read_bytes() == made.read_bytes(), "tensors and fingerprint"
    train_classifiers(plain, examples, dev, tmp_path / "first")
    again = train_classifiers(changed, examples, dev, tmp_path / "first")["forward"]
    assert again.resumed_at == again.steps, "it was all there"
    more = load_recipe("plant", [*small, "language.training.clip=0.1"])
    assert PlantPipeline.of(more, examples, tmp_path)._language_inputs(False) != first._language_inputs(False)


def test_other_codes_need_no_other_language_model(small_corpus, tmp_path, monkeypatch):
    """Which codes are learned is no matter to it, so the recipes of smaller sets take what is there."""
    examples = train_and_dev([small_corpus], 0.15, 0)[0]
    first = PlantPipeline.of(load_recipe("plant", SMALL), examples, tmp_path)
    words, encoder = first.relevance(), first.language(False)
    monkeypatch.setattr("nosology.models.plant.plant_trainer.fit", lambda *a, **k: pytest.fail("it was made again"))
    fewer = PlantPipeline.of(load_recipe("plant", [*SMALL, "labels.top_k=2"]), examples, tmp_path)
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(fewer.language(False).state_dict()[name], value, atol=0, rtol=0)
    assert len(words) == 6 and len(fewer.relevance()) == 2


def test_stages_outlive_the_run_where_the_recipe_names_a_folder(small_corpus, tmp_path, monkeypatch):
    kept = [*SMALL, "ranker.epochs=2", "training.epochs=1", f"stages={tmp_path / 'kept'}"]
    train(load_recipe("plant", kept), [small_corpus], tmp_path / "first")
    assert not (tmp_path / "first.run").exists()
    assert {path.name for path in (tmp_path / "kept").glob("*/*.safetensors")} == {
        "language_forward.safetensors",
        "relevance.safetensors",
        "ranker_forward.safetensors",
    }
    assert not list((tmp_path / "kept").rglob("checkpoint.safetensors"))  # what is done needs none
    for stage in ("nosology.models.plant.plant_trainer.fit", "nosology.models.plant.ranker.fit"):
        monkeypatch.setattr(stage, lambda *a, **k: pytest.fail("a stage was made again"))
    train(load_recipe("plant", [*kept, "rates.gradual=false"]), [small_corpus], tmp_path / "second")


def test_published_weights_of_each_direction(small_corpus, tmp_path):
    """Each begins with its own file; another file of the same name is not taken for it."""
    words = tmp_path / "words.txt"
    words.write_text("xxpad\nheart\npain\n")
    sources = []
    for seed, name in enumerate(("forward", "backward", "later")):
        torch.manual_seed(seed)
        sources.append(AwdLstm(3, size=16, hidden=20, layers=2))
        torch.save({f"0.{key}": value for key, value in sources[-1].state_dict().items()}, tmp_path / f"{name}.pth")
    still = [*SMALL, "language.training.epochs=1", "language.training.learning_rate=1e-9", f"language.words={words}"]
    files = [f"language.weights={tmp_path / 'forward.pth'}", f"language.backward_weights={tmp_path / 'backward.pth'}"]
    examples = train_and_dev([small_corpus], 0.15, 0)[0]
    pipeline = PlantPipeline.of(load_recipe("plant", [*still, *files]), examples, tmp_path / "run")
    for backward, source in ((False, sources[0]), (True, sources[1])):
        found = pipeline.language(backward)
        torch.testing.assert_close(found.rnns[1].weight_hh_l0_raw, source.rnns[1].weight_hh_l0_raw, atol=1e-6, rtol=0)
        heart = 2 + pipeline.tokenizer.vocabulary.words.index("heart")
        torch.testing.assert_close(found.encoder.weight[heart], source.encoder.weight[1], atol=1e-6, rtol=0)
    (tmp_path / "later.pth").replace(tmp_path / "forward.pth")
    found = pipeline.language(False).rnns[1].weight_hh_l0_raw
    torch.testing.assert_close(found, sources[2].rnns[1].weight_hh_l0_raw, atol=1e-6, rtol=0)


def test_published_weights_and_their_words_belong_together(small_corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"language\.words must be the vocabulary .*both or neither; got ''"):
        load_recipe("plant", ["language.weights=lm.pth"])
    with pytest.raises(ConfigError, match=r"language\.words .*both or neither; got 'words\.txt'"):
        load_recipe("plant", ["language.words=words.txt"])
    with pytest.raises(ConfigError, match=r"language\.backward_weights .*both have the same words; got 'lm\.pth'"):
        load_recipe("plant", ["language.backward_weights=lm.pth"])
    missing = [f"language.weights={tmp_path / 'lm.pth'}", f"language.words={tmp_path / 'words.txt'}"]
    pipeline = PlantPipeline.of(
        load_recipe("plant", [*SMALL, *missing]), train_and_dev([small_corpus], 0.15, 0)[0], tmp_path
    )
    with pytest.raises(ConfigError, match=r"lm\.pth must be a readable file"):
        pipeline.language(False)


@pytest.mark.parametrize("name", [name for name in built_in() if name.startswith("plant")])
def test_paces_and_unfreezing_stand_in_the_recipe(name):
    assert read_values(name)["rates"].keys() == RateSettings.model_fields.keys()


def test_a_frozen_part_does_not_move(small_corpus, tmp_path):
    """After one epoch of gradual unfreezing only the decoder has learned."""
    recipe = load_recipe("plant", [*SMALL, "training.epochs=1"])
    examples = train_and_dev([small_corpus], 0.15, 0)[0]
    before = PlantPipeline.of(recipe, examples, tmp_path / "a").net(False)
    bundle = train(recipe, [small_corpus], tmp_path / "bundle")
    after = bundle.model.net.nets[0]
    for number, part in enumerate(zip(before.groups(), after.groups())):
        moved = [not torch.equal(a, b) for a, b in zip(part[0][1], part[1][1])]
        assert all(moved) if number == 0 else not any(moved), part[0][0]


def test_an_encoder_that_does_not_learn_reads_each_note_once(small_corpus, tmp_path, monkeypatch):
    """The same coder comes out, whether states are kept or computed anew each epoch; the encoder stays as it was."""
    reads, weights = [], []
    for kept in (4.0, 0.0):
        recipe = load_recipe("plant", [*SMALL, "rates.encoder=0", "training.epochs=4", f"model.cache_gb={kept}"])
        examples = train_and_dev([small_corpus], 0.15, 0)[0]
        pipeline = PlantPipeline.of(recipe, examples, tmp_path / str(kept))
        net = pipeline.net(False)
        before = {name: value.clone() for name, value in net.encoder.state_dict().items()}
        model = Plant(pipeline.labels, np.ones(6), pipeline.tokenizer, PlantNets([net]), recipe.model)
        targets = Targets.of(pipeline.labels)
        monkeypatch.setattr(CachedNoteStates, "states", _counting(reads, CachedNoteStates.states))
        reads.append(0)
        fit_labels(
            recipe,
            model,
            targets,
            pipeline.notes,
            None,
            tmp_path / f"c{kept}",
            "",
            parameter_groups=parameter_groups(net, recipe.rates),
        )
        monkeypatch.undo()
        for name, value in net.encoder.state_dict().items():
            assert torch.equal(before[name], value), name
        weights.append(net.state_dict())
    notes = len(pipeline.notes.reads)
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


def test_the_cache_has_a_bound():
    cache = CachedNoteStates(100 * 4 * 4 / 2**30)  # room for 100 states of 4 numbers
    notes, lengths = torch.tensor([0, 1, 2]), torch.tensor([60, 50, 40])
    states = torch.randn(3, 60, 4)
    asked = []
    for _ in range(2):
        found = cache.states(notes, lengths, 60, lambda rows: asked.append(rows) or states[rows])
        assert cache.bytes == 100 * 4 * 4  # the first and the last have found room
        for row, length in zip(range(3), lengths):
            assert torch.equal(found[row, :length], states[row, :length])
    assert asked == [[0, 1, 2], [1]]  # what has found none is read again, and nothing else
    found = cache.states(notes[[2, 0]], lengths[[2, 0]], 64, lambda _: pytest.fail("they are there"))
    assert torch.equal(found[0, :40], states[2, :40]) and torch.equal(found[1, :60], states[0])
    cache.clear()
    assert cache.bytes == 0


def test_paces_are_those_of_the_recipe(small_corpus, tmp_path):
    recipe = load_recipe("plant", [*SMALL, "rates.ranker=0.3", "rates.encoder=0.4", "rates.layer_decay=2.0"])
    net = PlantPipeline.of(recipe, train_and_dev([small_corpus], 0.15, 0)[0], tmp_path).net(False)
    found = parameter_groups(net, recipe.rates)
    assert [part.learning_rate_factor for part in found] == [1.0, 0.3, 0.4, 0.2, 0.1]
    assert [part.start_epoch for part in found] == [0, 1, 2, 3, 4]
    assert sum(len(part.parameters) for part in found) == len(list(net.parameters()))


def test_the_recipes_of_smaller_sets_differ_from_the_paper_s_in_their_codes_alone():
    whole = load_recipe("plant-paper")
    for name in ("plant-top50", "plant-rare50", "plant-few"):
        recipe = load_recipe(name)
        assert recipe.labels != whole.labels
        still = {"encoder": 0.0} if name == "plant-rare50" else {}
        rates = whole.rates.model_copy(update=still)
        assert recipe == whole.model_copy(update={"labels": recipe.labels, "rates": rates}), name


def test_other_weights_to_begin_with_are_another_classifier(small_corpus, tmp_path):
    (tmp_path / "words.txt").write_text("xxpad\nxxunk\n")
    settings = [*SMALL, f"language.weights='{tmp_path / 'w'}'", f"language.words='{tmp_path / 'words.txt'}'"]
    examples, told = train_and_dev([small_corpus], 0.15, 0)[0], []
    for content in (b"one", b"two", b"two"):
        (tmp_path / "w").write_bytes(content)
        told.append(_classifier_fingerprint(load_recipe("plant", settings), examples))
    assert told[0] != told[1] == told[2]
