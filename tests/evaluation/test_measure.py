import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.core import Code, ConfigError, DataError
from nosology.core.label_space import ICD9, ICD10, LabelSpace, label_versions, mask_other_versions, note_versions
from nosology.corpora.corpus import write_corpus
from nosology.evaluation import examine, tune_threshold
from nosology.evaluation import measure as module
from nosology.evaluation.decision import Decision
from nosology.evaluation.measure import CodeSet, measure
from nosology.models.bundle import Bundle
from tests.conftest import small_notes

NAMES = {
    *("micro_f1", "macro_f1", "macro_f1_all", "micro_precision", "micro_recall", "micro_auc", "macro_auc", "map"),
    *("p@5", "p@8", "p@15", "r@15", "r_precision", "hamming_loss", "exact_match", "coverage_error", "threshold"),
    *("n_notes", "n_codes", "n_true_codes_outside_label_space"),
}


def test_report_has_all_metrics(small_corpus, small_bundle, tmp_path):
    measured = measure(Bundle.load(small_bundle), small_corpus, "test", tmp_path / "r")
    written = json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert written.keys() >= NAMES
    assert written["micro_f1_low"] <= written["micro_f1"] <= written["micro_f1_high"]
    assert written["micro_f1"] > 0.9
    [caution] = measured.cautions  # the corpus has codes of ICD-9 and ICD-10
    assert "scored on the ICD version of its true codes" in caution
    [left_out] = measure(Bundle.load(small_bundle), small_corpus, "test", None, systems=["icd10cm"]).cautions
    assert "left out" in left_out
    assert "feels. well" not in (tmp_path / "r" / "index.html").read_text()


@pytest.mark.parametrize("split", ["test", "all"])
def test_each_note_is_scored_for_the_codes_of_its_icd_version(small_corpus, small_bundle, split):
    bundle = Bundle.load(small_bundle).with_threshold(1e-3)  # at which it accepts codes of the other version
    notes = list(small_corpus.notes(None if split == "all" else split))
    gold, model = [note.codes for note in notes], bundle.model
    versions = note_versions(gold)
    assert set(versions) == {ICD9, ICD10, ICD9 | ICD10} and (np.diff(versions) != 0).sum() > 3
    every = model.probabilities(notes)
    own = mask_other_versions(every.copy(), versions, label_versions(model.labels))
    expected = examine(model.labels, gold, own, 1e-3).metrics
    assert measure(bundle, small_corpus, split, None).evaluation.metrics == pytest.approx(expected)
    assert examine(model.labels, gold, every, 1e-3).metrics["hamming_loss"] > 1.1 * expected["hamming_loss"]


def test_training_and_tuning_notes_give_cautions(small_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle)
    assert "trained on these notes" in measure(bundle, small_corpus, "train", tmp_path / "a").cautions[0]
    assert "tuned on these notes" in measure(bundle, small_corpus, "dev", tmp_path / "b").cautions[0]


def test_notes_that_the_coder_was_trained_on_give_a_caution_also_in_another_split(small_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle)
    notes = [replace(note, split={"train": "test", "test": "train"}.get(note.split, note.split), patient="")
             for note in small_corpus.notes()]  # fmt: skip
    other = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    trained_on = sum(note.split == "test" for note in notes)
    cautions = measure(bundle, other, "test", None).cautions
    assert f"the coder was trained on the texts of {trained_on} notes of test: new notes have lower scores" in cautions
    assert not any("trained on" in caution for caution in measure(bundle, other, "train", None).cautions)


def test_a_corpus_that_is_replaced_while_it_is_scored_is_an_error(small_corpus, small_bundle, tmp_path, monkeypatch):
    notes = list(small_corpus.notes())
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    read = module.probability_blocks

    def replace_and_read(*arguments):
        write_corpus(notes[::-1], tmp_path / "c", source={}, filters=[], counts={})
        return read(*arguments)

    monkeypatch.setattr(module, "probability_blocks", replace_and_read)
    with pytest.raises(DataError, match="c was replaced by another corpus while its notes were read"):
        measure(Bundle.load(small_bundle), corpus, "test", None)


@pytest.mark.parametrize("system", ["icd10cm", "icd9cm"])
def test_notes_without_codes_count_for_every_version(small_bundle, tmp_path, system):
    """Wrong codes of such notes are errors, whichever version most notes have."""
    codes = {"icd10cm": Code("icd10cm", "I50.9"), "icd9cm": Code("icd9cm", "428.0")}
    notes = [replace(note, codes=(codes["icd10cm"],), split="test") for note in small_notes(9)]
    notes += [replace(notes[0], id="nine", codes=(codes["icd9cm"],)), replace(notes[0], id="none", codes=())]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    measured = measure(Bundle.load(small_bundle), corpus, "test", None, systems=[system])
    assert measured.evaluation.metrics["n_notes"] == (10 if system == "icd10cm" else 2)


def test_codes_of_other_systems_are_misses_unless_left_out(small_bundle, tmp_path):
    extra = Code("icd9proc", "39.95")
    notes = [replace(note, codes=(*note.codes, extra), split="test") for note in small_notes(20)]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    bundle = Bundle.load(small_bundle)
    all_systems = measure(bundle, corpus, "test", tmp_path / "a")
    assert all_systems.evaluation.metrics["n_true_codes_outside_label_space"] == 1
    assert any("has no code of icd9proc" in caution for caution in all_systems.cautions)
    narrow = measure(bundle, corpus, "test", tmp_path / "b", systems=["icd10cm"])
    assert narrow.evaluation.metrics["micro_recall"] > all_systems.evaluation.metrics["micro_recall"]


def test_wrong_split_or_system_raises(small_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle)
    with pytest.raises(ConfigError, match="split must be one of train, dev, test, all; got 'tset'"):
        measure(bundle, small_corpus, "tset", tmp_path / "r")
    with pytest.raises(ConfigError, match=r"system must be one of .* got icd11"):
        measure(bundle, small_corpus, "test", tmp_path / "r", systems=["icd11"])
    alone = write_corpus(small_notes(1), tmp_path / "c", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="has no test notes; it has train"):
        measure(bundle, alone, "test", tmp_path / "r")
    whole = [replace(note, split=None) for note in small_notes(3)]
    unsplit = write_corpus(whole, tmp_path / "u", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="has no test notes; its notes have no split: `nosology corpus split`"):
        measure(bundle, unsplit, "test", tmp_path / "r")


@pytest.fixture(scope="module")
def mixed_corpus(tmp_path_factory):
    """Test and dev notes in ICD-10 only; the code E11.9 is rare."""
    rare = Code("icd10cm", "E11.9")
    notes = []
    for i, note in enumerate(small_notes(160, seed=5)):
        codes = [code for code in note.codes if code.system == "icd10cm" and (code != rare or i % 40 < 5)]
        notes.append(replace(note, codes=tuple(codes), split=("dev", "test")[i % 2]))
    folder = tmp_path_factory.mktemp("mixed") / "c"
    return write_corpus(notes, folder, source={}, filters=[], counts={})


def provenance(folder):
    return json.loads((folder / "provenance.json").read_text())


def test_systems_that_no_note_has_are_not_counted(mixed_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle)
    measured = measure(bundle, mixed_corpus, "test", tmp_path / "a")
    assert measured.cautions == ["codes of icd10pcs, icd9cm are not counted: no note of test has one (see --system)"]
    assert measured.evaluation.metrics["n_codes"] == 4
    assert provenance(tmp_path / "a")["systems"] == "icd10cm"
    selected = measure(bundle, mixed_corpus, "test", tmp_path / "b", systems=["icd10cm", "icd9cm", "icd10pcs"])
    assert selected.cautions == []
    assert selected.evaluation.metrics["n_codes"] == 6
    assert selected.evaluation.metrics["micro_precision"] < measured.evaluation.metrics["micro_precision"]


def test_code_sets_select_codes_and_notes(mixed_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle)
    evaluations = {
        name: measure(bundle, mixed_corpus, "test", tmp_path / name, codes=name).evaluation
        for name in ("full", "frequent", "rare")
    }
    n_codes = {name: evaluation.metrics["n_codes"] for name, evaluation in evaluations.items()}
    assert n_codes == {"full": 4, "frequent": 3, "rare": 1}
    gold = [note.codes for note in mixed_corpus.notes("test", text=False)]
    rare = Code("icd10cm", "E11.9")
    assert evaluations["rare"].metrics["n_notes"] == sum(rare in codes for codes in gold) > 0
    assert evaluations["full"].metrics["n_notes"] == evaluations["frequent"].metrics["n_notes"] == len(gold)
    assert evaluations["rare"].metrics["n_true_assignments"] == evaluations["rare"].metrics["n_notes"]
    # Frequent and rare cells together are the full ones, except for the notes that rare leaves out.
    parts = [int(evaluations[name].counts.tp.sum()) for name in ("frequent", "rare")]
    assert sum(parts) == int(evaluations["full"].counts.tp.sum())
    assert provenance(tmp_path / "rare")["codes"] == "rare (under 10): 1 codes"
    assert provenance(tmp_path / "rare")["threshold"] == "of the bundle"


def test_given_codes_and_true_codes_outside_them(mixed_corpus, small_bundle, tmp_path):
    wanted = [Code("icd10cm", "I50.9"), Code("icd10cm", "A00.0")]
    metrics = measure(Bundle.load(small_bundle), mixed_corpus, "test", tmp_path / "r", codes=wanted).evaluation.metrics
    assert metrics["n_codes"] == 1
    assert metrics["n_true_codes_outside_label_space"] == 0


def test_tune_uses_the_dev_notes_and_the_code_set(mixed_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle).with_threshold(1.0)
    fixed = measure(bundle, mixed_corpus, "test", tmp_path / "a", codes="frequent")
    tuned = measure(bundle, mixed_corpus, "test", tmp_path / "b", codes="frequent", tune=True)
    assert fixed.evaluation.metrics["micro_f1"] < 0.5 < tuned.evaluation.metrics["micro_f1"]
    # The same threshold, tuned directly on the dev notes and these codes.
    model = bundle.model
    columns = [j for j, code in enumerate(model.labels.codes) if code.system == "icd10cm" and code.code != "E11.9"]
    labels = LabelSpace(model.labels.codes[j] for j in columns)
    dev = list(mixed_corpus.notes("dev"))
    gold = [[code for code in note.codes if code in labels] for note in dev]
    expected = tune_threshold(labels, gold, model.probabilities(list(dev))[:, columns])
    assert tuned.evaluation.metrics["threshold"] == pytest.approx(expected)
    assert provenance(tmp_path / "b")["threshold"].startswith("tuned on the dev notes")
    assert "tuned on these notes" in measure(bundle, mixed_corpus, "dev", tmp_path / "c", tune=True).cautions[0]


def test_tuning_needs_dev_notes(small_bundle, tmp_path):
    notes = [replace(note, split="test") for note in small_notes(20)]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="has no dev notes"):
        measure(Bundle.load(small_bundle), corpus, "test", tmp_path / "r", tune=True)


class ByDescription:
    """An open-vocabulary coder: a code is probable if the note has the first word of its description."""

    kind, within_versions = "fake", False

    def __init__(self, codes):
        self.labels = LabelSpace(code for code, _ in codes)
        self.descriptions = [text for _, text in codes]
        self.words = [text.lower().split()[0] for text in self.descriptions]
        self.train_counts = np.zeros(len(codes), dtype=np.int64)

    def probabilities(self, notes):
        texts = [note.text for note in notes]
        return np.array([[0.1 + 0.8 * (word in text.lower()) for word in self.words] for text in texts])

    def with_codes(self, codes):
        return ByDescription(codes)

    def unreadable_codes(self):
        return []


def test_open_vocabulary_coder_scores_codes_without_training(mixed_corpus, tmp_path):
    heart = Code("icd10cm", "I50.9")
    bundle = Bundle(ByDescription([(heart, "heart")]), Decision(0.5), {}, {})
    plain = measure(bundle, mixed_corpus, "test", tmp_path / "a").evaluation.metrics
    assert (plain["n_codes"], plain["n_true_codes_outside_label_space"]) == (1, 3)
    full = measure(bundle, mixed_corpus, "test", tmp_path / "b", codes="full").evaluation.metrics
    assert (full["n_codes"], full["n_true_codes_outside_label_space"]) == (4, 0)
    assert full["micro_recall"] > plain["micro_recall"]
    assert provenance(tmp_path / "b")["codes without training"] == 3


SET_CODES = [Code("icd10cm", f"A0{i}") for i in range(3)] + [Code("icd9cm", "001")]
SET_NOTES = [[SET_CODES[0], SET_CODES[1]]] * 9 + [[SET_CODES[1]], [SET_CODES[3]], []]  # 9, 10, 0 and 1 notes


def test_code_set_of_10_notes_is_frequent_and_of_9_is_rare():
    assert CodeSet.of("frequent", SET_NOTES).codes == {SET_CODES[1]}
    assert CodeSet.of("rare", SET_NOTES).codes == {SET_CODES[0], SET_CODES[3]}
    assert CodeSet.of("full", SET_NOTES).codes == {SET_CODES[0], SET_CODES[1], SET_CODES[3]}


def test_code_set_counts_a_repeated_code_once():
    assert CodeSet.of("rare", [[SET_CODES[0]] * 2] * 5).codes == {SET_CODES[0]}


@given(st.lists(st.lists(st.sampled_from(SET_CODES), max_size=4), max_size=40).filter(any))
def test_frequent_and_rare_partition_the_full_set(notes):
    sets = {}
    for name in ("full", "frequent", "rare"):
        try:
            sets[name] = CodeSet.of(name, notes).codes
        except DataError:
            sets[name] = frozenset()
    assert sets["frequent"] | sets["rare"] == sets["full"] == {code for codes in notes for code in codes}
    assert not sets["frequent"] & sets["rare"]


def test_only_rare_leaves_notes_out():
    rare = CodeSet.of("rare", SET_NOTES)
    rows, gold = rare.narrow(SET_NOTES)
    assert rows == [*range(9), 10]
    assert gold == [[SET_CODES[0]]] * 9 + [[SET_CODES[3]]]
    rows, gold = CodeSet.of("frequent", SET_NOTES).narrow(SET_NOTES)
    assert rows == list(range(12))
    assert gold[-2:] == [[], []]


def test_of_systems_selects_codes():
    rare = CodeSet.of("rare", SET_NOTES).of_systems({"icd9cm"})
    assert rare.codes == {SET_CODES[3]}
    assert rare.narrow(SET_NOTES)[0] == [10]


def test_code_set_of_codes_and_of_wrong_names():
    assert CodeSet.of([("icd10cm", "A00")], SET_NOTES).codes == {SET_CODES[0]}
    with pytest.raises(ConfigError, match="codes must be one of full, frequent, rare, known; got 'seldom'"):
        CodeSet.of("seldom", SET_NOTES)
    with pytest.raises(DataError, match="no frequent codes"):
        CodeSet.of("frequent", [[SET_CODES[0]]])


def test_code_set_as_text():
    assert str(CodeSet.of("rare", SET_NOTES)) == "rare (under 10): 2 codes"


def test_notes_without_codes_cannot_be_measured(small_corpus, small_bundle, tmp_path):
    notes = [replace(note, codes=()) for note in small_corpus.notes("test")]
    corpus = write_corpus(notes, tmp_path / "uncoded", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="no test note has a code to compare with"):
        measure(Bundle.load(small_bundle), corpus, "test", None)
