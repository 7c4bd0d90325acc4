import numpy as np
import pytest

from nosology.core import Code, Note
from nosology.corpora.corpus import write_corpus
from nosology.corpora.corpus_stats import corpus_stats


def corpus(folder, notes):
    return write_corpus(notes, folder, source={}, filters=[], counts={})


def test_statistics_in_total_per_split_and_per_system(tmp_path):
    common, rare = Code("icd10cm", "I10"), Code("icd9proc", "39.95")
    notes = [Note(f"n{i}", "word " * i, patient="p", split="train", codes=(common,)) for i in range(11)]
    notes.append(Note("last", "a\nb\tc", codes=(common, rare, Code("icd10cm", "Z99.77"))))
    stats = corpus_stats(corpus(tmp_path / "c", notes))
    words = [*range(11), 3]
    assert stats["notes"] == 12
    assert list(stats["words_per_note"].values()) == pytest.approx(np.percentile(words, [25, 50, 75]))
    assert stats["codes_per_note"]["mean"] == pytest.approx(14 / 12)
    assert stats["codes_per_note"]["std"] == pytest.approx(np.std([1] * 11 + [3]))
    assert stats["share_of_codes_seen_under_10_times"] == pytest.approx(2 / 3)
    assert list(stats["splits"]) == ["train", "none"]
    assert stats["splits"]["train"]["distinct_codes"] == 1
    assert stats["systems"]["icd9proc"]["occurrences"] == 1
    top = stats["chapters"][0]
    assert (top["system"], top["occurrences"]) == ("icd10cm", 12)
    assert "circulatory" in top["chapter"].lower()
    assert {"system": "icd10cm", "chapter": "unknown", "occurrences": 1} in stats["chapters"]


def test_an_empty_corpus_has_no_means(tmp_path):
    stats = corpus_stats(corpus(tmp_path / "c", []))
    assert stats["notes"] == 0
    assert stats["words_per_note"] is stats["codes_per_note"] is stats["share_of_codes_seen_under_10_times"] is None
