"""The stacked coder on small corpora with tiny parts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nosology.config import built_in, load_recipe
from nosology.core import BundleError, Code, ConfigError, DataError
from nosology.core.label_space import label_versions, note_versions
from nosology.corpora.corpus import write_corpus
from nosology.evaluation import examine
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle
from nosology.models.linear.linear_trainer import LinearTrainer
from nosology.models.stacked import stacked_trainer
from nosology.models.stacked.candidate_cells import PartScorer
from nosology.models.stacked.stacked_model import Stacked
from nosology.models.stacked.stacked_trainer import StackedTrainer, _input_files
from nosology.models.train import train
from tests.conftest import PHRASES, as_notes, small_notes

QUICK = ["stacking.folds=2", "stacking.min_leaf=5", "stacking.rounds=20"]
CAML = ["training.epochs=2", "training.batch=16", "vectors.epochs=1", "vectors.size=12", "model.filters=12"]
SPLITS = {"few dev notes": [], "many dev notes": ["stacking.min_notes=20"]}


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """The parts of a recipe as settings: each is a linear coder that knows only some code systems."""
    folder = tmp_path_factory.mktemp("recipes")
    systems = {"diagnoses": ["icd10cm"], "others": ["icd9cm", "icd10pcs"]}
    for name, known in systems.items():
        (folder / f"{name}.toml").write_text(f'kind = "linear"\n[labels]\nsystems = {json.dumps(known)}\n')
    return [f"parts={[str(folder / f'{name}.toml') for name in systems]}"]


@pytest.fixture(scope="module", params=SPLITS)
def stacked(request, halves, small_corpus, tmp_path_factory):
    """The folder of a coder whose parts know different codes."""
    folder = tmp_path_factory.mktemp("stacked") / "bundle"
    train(load_recipe("stacked", [*halves, *QUICK, *SPLITS[request.param]]), [small_corpus], folder)
    return folder


def micro_f1(bundle, corpus):
    """On the test notes, over all their codes."""
    notes, labels = list(corpus.notes("test")), bundle.model.labels
    probabilities = bundle.model.probabilities(notes)
    gold = [note.codes for note in notes]
    return examine(labels, gold, probabilities, bundle.decision.thresholds(labels)).metrics["micro_f1"]


def test_a_part_that_is_no_recipe_is_named_with_its_setting():
    with pytest.raises(ConfigError, match=r"^stacked, parts: recipe must be a file or one of .*; got 'lexcon'$"):
        load_recipe("stacked", ["parts=['lexcon']"])


def test_parts_that_know_different_codes_are_joined(stacked, small_corpus):
    bundle = Bundle.load(stacked)
    parts = bundle.model.parts
    assert set(bundle.model.labels.codes) == {code for part in parts.values() for code in part.model.labels.codes}
    best = max(micro_f1(part, small_corpus) for part in parts.values())
    assert best < 0.9 and micro_f1(bundle, small_corpus) > best + 0.1


def test_stacker_follows_the_better_part(small_corpus, tmp_path):
    weak = [f"recipes.caml.{setting}" for setting in CAML]
    bundle = train(load_recipe("stacked", ["parts=['caml', 'linear']", *QUICK, *weak]), [small_corpus], tmp_path / "b")
    scores = {name: micro_f1(part, small_corpus) for name, part in bundle.model.parts.items()}
    assert scores["caml"] < scores["linear"] - 0.05
    assert micro_f1(bundle, small_corpus) >= scores["linear"] - 0.005


@pytest.mark.parametrize("settings", SPLITS.values(), ids=SPLITS)
def test_threshold_is_tuned_on_the_cells_that_are_served(halves, small_corpus, tmp_path, monkeypatch, settings):
    """Also of codes that no part ranks among its candidates, which few candidates leave above the threshold."""
    tuned, held_out = [], []
    tune, cells = Decision.tune, StackedTrainer._cells

    def spy_tune(recipe, labels, gold, probabilities):
        tuned.append((labels, probabilities))
        return tune(recipe, labels, gold, probabilities)

    def spy_cells(self, parts, examples, group):
        held_out.append((parts, list(examples.notes())))
        return cells(self, parts, examples, group)

    monkeypatch.setattr(stacked_trainer.Decision, "tune", spy_tune)
    monkeypatch.setattr(StackedTrainer, "_cells", spy_cells)
    recipe = load_recipe("stacked", [*halves, *QUICK, *settings, "stacking.candidates=1"])
    bundle = train(recipe, [small_corpus], tmp_path / "b")
    labels, matrix = tuned[-1]  # those before are of the parts
    start = 0
    for parts, notes in held_out:
        served = Stacked(parts, bundle.model.stacker, 1)
        columns = [served.labels.column(code) for code in labels.codes]
        versions = note_versions([note.codes for note in notes])[:, None] & label_versions(labels)
        expected = np.where(versions, served.probabilities(notes)[:, columns], 0)
        block = matrix[start : start + len(notes)]
        np.testing.assert_array_equal(block > 0, expected > 0)
        scorer = served.scorer
        others = np.ones(block.shape, dtype=bool)  # cells have probabilities of stackers without the note
        candidates = scorer.cells(scorer.probabilities(notes))
        others[candidates.rows, [labels.column(scorer.labels.codes[label]) for label in candidates.labels]] = False
        assert (block[others] > 0).any()
        lowest = np.where(~others & (versions > 0), block, 1).min(1)
        assert (block <= lowest[:, None])[others].all()
        start += len(notes)
    assert start == len(matrix)


def test_loaded_bundle_is_the_saved_one(stacked, small_corpus):
    bundle = Bundle.load(stacked)
    names = {path.relative_to(stacked).as_posix() for path in stacked.rglob("*") if path.is_file()}
    assert {"bundle.json", "model.json", "parts/diagnoses/bundle.json", "parts/others/model.safetensors"} <= names
    assert {name.rpartition(".")[2] for name in names} <= {"json", "safetensors", "csv"}
    recipe = bundle.recipe["recipes"]["others"]
    assert recipe["kind"] == "linear" and recipe["fit"]["negatives"] == 2000  # complete, not only the changes
    notes = list(small_corpus.notes("test"))
    np.testing.assert_array_equal(bundle.model.probabilities(notes), Bundle.load(stacked).model.probabilities(notes))


def test_damaged_part_is_named(halves, small_corpus, tmp_path):
    train(load_recipe("stacked", [*halves, *QUICK]), [small_corpus], tmp_path / "b")
    path = tmp_path / "b" / "parts" / "others" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match=r"damaged: parts/others/model\.safetensors"):
        Bundle.load(tmp_path / "b")


@pytest.mark.parametrize("name", ["", "..", "../others", "/tmp"])
def test_a_part_is_a_subfolder_of_the_bundle(tmp_path, name, stacked):
    (tmp_path / "model.json").write_text(json.dumps({"parts": [name], "candidates": 3}))
    (tmp_path / "model.safetensors").write_bytes((stacked / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="a part must be a subfolder of the bundle"):
        Stacked.load(tmp_path)


def test_a_part_accepts_codes_by_its_own_thresholds(stacked, small_corpus):
    """The number of parts that accept a code is a feature."""
    model = Bundle.load(stacked).model
    code = model.parts["diagnoses"].model.labels.codes[0]
    decision = replace(model.parts["diagnoses"].decision, threshold=0.9, by_code={code: 0.0})
    scorer = PartScorer([replace(model.parts["diagnoses"], decision=decision), model.parts["others"]], 3)
    [known, unknown] = scorer.thresholds[scorer.labels.column(code)]
    assert (known, unknown) == (0.0, 0.0) and (scorer.thresholds[scorer.label_of[0][1:], 0] == 0.9).all()
    notes = list(small_corpus.notes("test"))
    cells = scorer.cells(scorer.probabilities(notes))
    accepting = cells.features[:, 3 * len(scorer.parts) + 1]
    assert (accepting[cells.labels == scorer.labels.column(code)] == 1).all(), "of the part that knows it only"


def test_training_twice_gives_the_same_coder(stacked, halves, small_corpus, tmp_path):
    first = Bundle.load(stacked)
    settings = [f"stacking.min_notes={first.recipe['stacking']['min_notes']}"]
    second = train(load_recipe("stacked", [*halves, *QUICK, *settings]), [small_corpus], tmp_path / "b")
    notes = list(small_corpus.notes("test"))
    np.testing.assert_array_equal(first.model.probabilities(notes), second.model.probabilities(notes))
    assert first.decision == second.decision


def test_stopped_training_resumes_after_the_finished_parts(stacked, halves, small_corpus, tmp_path, monkeypatch):
    """A part that is damaged, or trained by other settings, is trained again."""
    whole = Bundle.load(stacked)
    settings = [*halves, *QUICK, f"stacking.min_notes={whole.recipe['stacking']['min_notes']}"]
    trained = []
    train_linear = LinearTrainer.train

    def spy(self, *notes):
        trained.append(self.folder.relative_to(tmp_path / "b.run").parts)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train_linear(self, *notes)

    monkeypatch.setattr(LinearTrainer, "train", spy)
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe("stacked", settings), [small_corpus], tmp_path / "b")
    [finished] = (tmp_path / "b.run").rglob("bundle")
    resumed = train(load_recipe("stacked", settings), [small_corpus], tmp_path / "b")
    assert trained.count(finished.parent.relative_to(tmp_path / "b.run").parts) == 1
    notes = list(small_corpus.notes("test"))
    np.testing.assert_array_equal(resumed.model.probabilities(notes), whole.model.probabilities(notes))
    assert not (tmp_path / "b.run").exists()


@pytest.mark.parametrize("change", ["damaged", "other settings"])
def test_part_of_another_run_is_trained_again(halves, small_corpus, tmp_path, monkeypatch, change):
    settings, trained = [*halves, *QUICK, "stacking.min_notes=20"], []
    train_linear, cells = LinearTrainer.train, StackedTrainer._cells
    monkeypatch.setattr(LinearTrainer, "train", lambda self, *notes: trained.append(1) or train_linear(self, *notes))
    monkeypatch.setattr(StackedTrainer, "_cells", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(load_recipe("stacked", settings), [small_corpus], tmp_path / "b")
    monkeypatch.setattr(StackedTrainer, "_cells", cells)
    if change == "damaged":
        file = tmp_path / "b.run" / "part_others" / "bundle" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    else:
        settings.append("recipes.others.fit.negatives=1000")
    train(load_recipe("stacked", settings), [small_corpus], tmp_path / "b")
    assert len(trained) == 3


def test_files_that_settings_name_are_part_of_the_key(tmp_path):
    file, folder = tmp_path / "weights", tmp_path / "corpus"
    settings = {"vectors": {"corpora": ["none", str(folder)]}, "weights": str(file), "cache": str(tmp_path), "size": 3}
    assert _input_files(settings) == []
    folder.mkdir()
    for path in (file, folder / "notes.parquet"):
        path.write_text("first")
        before = _input_files(settings)
        path.write_text("another")
        assert str(path) in [found[0] for found in before] and _input_files(settings) != before
    before = _input_files(settings)
    (folder / "words").mkdir()  # the word cache of a corpus, which a training writes
    (folder / "words" / "ids").touch()
    assert len(before) == 2 and _input_files(settings) == before


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_name_no_files(name, tmp_path, monkeypatch):
    """Some settings that name files elsewhere are numbers; the encoder minilm is not in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "config.json").touch()
    assert _input_files(load_recipe(name).model_dump(mode="json")) == []
    assert _input_files({"encoder": None, "rates": {"encoder": 1.0}, "corpora": [None, 2]}) == []


@pytest.mark.parametrize("settings", SPLITS.values(), ids=SPLITS)
def test_stacker_learns_from_notes_that_no_part_has_seen(halves, tmp_path, monkeypatch, settings):
    """Also notes of a patient stay together. Some patients have two notes."""
    notes = [note for note in small_notes(200) if note.split != "test"]
    twins = [note.__class__(**{**vars_of(note), "id": f"{note.id}b"}) for note in notes[:40]]
    corpus = write_corpus([*notes, *twins], tmp_path / "c", source={}, filters=[], counts={})
    trained_on, stacked_on = [], []
    train_parts, cells = StackedTrainer._train_parts, StackedTrainer._cells

    def spy_train(self, train_notes, dev_notes, refit, stage=""):
        trained_on.append({note.patient for part in (train_notes, dev_notes) for note in part.notes()})
        return train_parts(self, train_notes, dev_notes, refit, stage)

    def spy_cells(self, parts, examples, group):
        stacked_on.append({note.patient for note in examples.notes()})
        return cells(self, parts, examples, group)

    monkeypatch.setattr(StackedTrainer, "_train_parts", spy_train)
    monkeypatch.setattr(StackedTrainer, "_cells", spy_cells)
    train(load_recipe("stacked", [*halves, *QUICK, *settings]), [corpus], tmp_path / "b")
    assert len(stacked_on) == (1 if settings else 2) and all(stacked_on)
    for seen, held_out in zip(trained_on, stacked_on):
        assert not seen & held_out


@pytest.mark.parametrize("same", ["patient", "text"])
def test_stacker_does_not_learn_from_dev_notes_that_repeat_train_notes(halves, tmp_path, monkeypatch, capsys, same):
    """Its parts have seen them, even if the splits of the corpus say otherwise."""
    notes = [note for note in small_notes(300) if note.split != "test"]
    train_notes = [note for note in notes if note.split == "train"]
    words = [f"unique{i} note{i} of{i} these{i} words{i} alone{i}" for i in range(30)]
    coded = [f"{some} {' '.join(PHRASES[code] for code in note.codes)}" for some, note in zip(words, train_notes)]
    new = [replace(train_notes[i], text=coded[i], id=f"new{i}", patient=f"q{i}", split="dev") for i in range(30)]
    fields = {"patient": lambda i: {"text": f"{words[i]} again"}, "text": lambda i: {"patient": f"other{i}"}}[same]
    copies = [replace(train_notes[i], id=f"copy{i}", split="dev", **fields(i)) for i in range(30)]
    corpus = write_corpus([*train_notes, *new, *copies], tmp_path / "c", source={}, filters=[], counts={})
    stacked_on, cells = [], StackedTrainer._cells

    def spy(self, parts, examples, group):
        stacked_on.extend(note.id for note in examples.notes())
        return cells(self, parts, examples, group)

    monkeypatch.setattr(StackedTrainer, "_cells", spy)
    train(load_recipe("stacked", [*halves, *QUICK, "stacking.min_notes=20"]), [corpus], tmp_path / "b")
    assert stacked_on and all(name.startswith("new") for name in stacked_on)
    assert "30 of 60 dev notes are of a patient with train notes, or repeat one" in capsys.readouterr().err


def test_train_notes_of_one_patient_are_divided(halves, tmp_path):
    """The patients of dev notes do not make folds of the train notes."""
    notes = [replace(note, patient="p" if note.split == "train" else note.patient) for note in small_notes(120)]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    bundle = train(load_recipe("stacked", [*halves, *QUICK]), [corpus], tmp_path / "b")
    assert bundle.provenance["found"]["stacked_on"] == "2 held-out folds of the train notes"


def test_dev_notes_of_one_patient_tune_the_parts(halves, tmp_path):
    """None of them would be left for the parts if the stacker learned from this patient."""
    notes = [replace(note, patient="p" if note.split == "dev" else note.patient) for note in small_notes(120)]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    bundle = train(load_recipe("stacked", [*halves, *QUICK, "stacking.min_notes=20"]), [corpus], tmp_path / "b")
    assert all(part["dev_codes"] for part in bundle.provenance["found"]["parts"].values())


def test_refit_trains_the_parts_on_all_notes(halves, small_corpus, tmp_path):
    settings = [*halves, *QUICK, "stacking.min_notes=20"]
    bundle = train(load_recipe("stacked", settings), [small_corpus], tmp_path / "b", refit=True)
    notes = [note for note in small_corpus.notes() if note.split in ("train", "dev")]
    counts = dict(zip(bundle.model.labels.codes, bundle.model.train_counts.tolist()))
    assert counts == {code: sum(code in note.codes for note in notes) for code in counts}


def test_an_error_names_the_part(halves, small_corpus, tmp_path):
    with pytest.raises(DataError, match=r"training the part others.*: no code is left to learn"):
        train(
            load_recipe("stacked", [*halves, *QUICK, "recipes.others.labels.min_notes=1000"]), [small_corpus], tmp_path
        )


def vars_of(note):
    return {name: getattr(note, name) for name in note.__dataclass_fields__}


def test_corpus_without_dev_notes(halves, tmp_path):
    notes = [note.__class__(**{**vars_of(note), "split": "test" if note.split == "test" else "train"})
             for note in small_notes(120)]  # fmt: skip
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    for name, settings in SPLITS.items():
        small = [setting.replace("20", "10") for setting in settings]
        bundle = train(load_recipe("stacked", [*halves, *QUICK, *small]), [corpus], tmp_path / name)
        assert bundle.provenance["refit"] and micro_f1(bundle, corpus) > 0.8


def test_codes_that_no_part_ranks_high_are_below_the_candidates(stacked, small_corpus):
    bundle = Bundle.load(stacked)
    one = bundle.model.__class__(bundle.model.parts, bundle.model.stacker, candidates=1)
    for note, row in zip(notes := list(small_corpus.notes("test")), one.probabilities(notes)):
        cells = one.scorer.cells(one.scorer.probabilities([note]))
        others = np.delete(row, cells.labels)
        assert len(cells.labels) == 2 and len(others) == 4 and others.max() <= row[cells.labels].min()


def test_true_code_that_no_part_knows_is_a_miss(halves, tmp_path):
    new = Code("icd10cm", "Z99.89")
    notes = [
        note.__class__(**{**vars_of(note), "codes": (*note.codes, new)}) if note.split == "dev" else note
        for note in small_notes(160)
    ]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    bundle = train(load_recipe("stacked", [*halves, *QUICK, "stacking.min_notes=20"]), [corpus], tmp_path / "b")
    assert new not in bundle.model.labels and 0 < bundle.decision.threshold < 1


def test_evidence_is_of_a_part_that_knows_the_code(stacked):
    model = Bundle.load(stacked).model
    note = as_notes(["Seen today. Type 2 diabetes. Laparoscopic appendectomy. Continue at home."])[0]
    codes = [Code("icd10pcs", "0DTJ4ZZ"), Code("icd10cm", "E11.9")]
    surgery, diabetes = model.evidence(note, [model.labels.column(code) for code in codes])
    assert "appendectomy" in surgery[0].text and "diabetes" in diabetes[0].text
    assert model.evidence(note, []) == []


def test_notes_without_codes_of_any_part(halves, tmp_path):
    corpus = write_corpus(small_notes(40), tmp_path / "c", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="no code is left to learn"):
        train(load_recipe("stacked", [*halves, *QUICK, "labels.systems=['icd9proc']"]), [corpus], tmp_path / "b")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["parts=['linear']"], r"parts .*at least 2 items.*"),
        (["parts=['linear', 'linear']"], r"parts must have distinct names; got linear, linear"),
        (["parts=['linear', 'liner']"], r"recipe must be a file or one of .*; got 'liner'"),
        (["parts=['linear', 'stacked']"], r"a part must not be stacked itself; got stacked"),
        (["parts=['linear', 3]"], r"parts\.1 should be a valid string; got 3"),
        (["parts=linear"], r"parts should be a valid list; got 'linear'"),
        (["recipes.plant.seed=1"], r"recipes must be of the parts .*; got plant"),
        (["recipes.linear=1"], r"recipes\.linear must be a table; got 1"),
        (["recipes.linear.fit.cc=1"], r"part linear: \[fit\] has no key 'cc'"),
        (["recipes.linear.fit.negatives=0"], r"part linear: fit\.negatives should be greater .*; got 0"),
        (["labels.min_notes=3"], r"of labels only systems can be set"),
        (["stacking.folds=1"], r"stacking\.folds should be greater than or equal to 2; got 1"),
        (["stacking.tuning_share=1"], r"stacking\.tuning_share should be less than 1; got 1"),
    ],
)
def test_wrong_settings_raise_one_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence) as error:
        load_recipe("stacked", settings)
    assert "\n" not in str(error.value)
