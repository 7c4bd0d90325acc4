import json
from dataclasses import replace

import pytest

from nosology.core import Code, ConfigError, DataError
from nosology.corpora.corpus import write_corpus
from nosology.models.bundle import Bundle
from nosology.models.measure import measure
from tests.conftest import small_notes

NAMES = {
    *("micro_f1", "macro_f1", "macro_f1_all", "micro_precision", "micro_recall", "micro_auc", "macro_auc", "map"),
    *("p@5", "p@8", "p@15", "r@15", "r_precision", "hamming_loss", "exact_match", "coverage_error", "threshold"),
    *("n_notes", "n_codes", "n_true_codes_outside_label_space"),
}


def test_the_report_has_every_name_of_the_contract(small_corpus, small_bundle, tmp_path):
    measured = measure(Bundle.load(small_bundle), small_corpus, "test", tmp_path / "r")
    written = json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert written.keys() >= NAMES
    assert written["micro_f1_low"] <= written["micro_f1"] <= written["micro_f1_high"]
    assert written["micro_f1"] > 0.9
    assert measured.cautions == []
    assert "feels. well" not in (tmp_path / "r" / "index.html").read_text()


def test_training_and_tuning_notes_are_called_out(small_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle)
    assert "trained on these notes" in measure(bundle, small_corpus, "train", tmp_path / "a").cautions[0]
    assert "tuned on these notes" in measure(bundle, small_corpus, "dev", tmp_path / "b").cautions[0]


def test_codes_of_other_systems_are_misses_unless_left_out(small_bundle, tmp_path):
    extra = Code("icd9proc", "39.95")
    notes = [replace(note, codes=(*note.codes, extra), split="test") for note in small_notes(20)]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    bundle = Bundle.load(small_bundle)
    whole = measure(bundle, corpus, "test", tmp_path / "a")
    assert whole.evaluation.metrics["n_true_codes_outside_label_space"] == 1
    assert "names no code of icd9proc" in whole.cautions[0]
    narrow = measure(bundle, corpus, "test", tmp_path / "b", systems=["icd10cm"])
    assert narrow.evaluation.metrics["micro_recall"] > whole.evaluation.metrics["micro_recall"]


def test_wrong_split_or_system(small_corpus, small_bundle, tmp_path):
    bundle = Bundle.load(small_bundle)
    with pytest.raises(ConfigError, match="split must be one of train, dev, test, all; got 'tset'"):
        measure(bundle, small_corpus, "tset", tmp_path / "r")
    with pytest.raises(ConfigError, match=r"system must be one of .* got icd11"):
        measure(bundle, small_corpus, "test", tmp_path / "r", systems=["icd11"])
    alone = write_corpus(small_notes(1), tmp_path / "c", source={}, filters=[], counts={})
    with pytest.raises(DataError, match="has no test notes; it has train"):
        measure(bundle, alone, "test", tmp_path / "r")
