import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nosology.core import Code, ConfigError, Evidence, Note
from nosology.corpora.audit import Audit, audit, count_leaked_patients
from nosology.corpora.corpus import write_corpus

CODES = [Code("icd10cm", code) for code in ("I10", "E11.9", "J18.9", "I50.9", "N17.9")]


def clean(count: int = 90) -> list[Note]:
    """Notes with a shared template and no leak: three of each patient, all in one split."""
    rng = np.random.default_rng(0)
    head = " ".join(f"template{number}" for number in range(60))
    return [
        Note(
            f"n{number:03d}",
            f"{head} {' '.join(map(str, rng.integers(0, 5000, 120)))}",
            patient=f"p{number // 3}",
            split=("train", "train", "train", "dev", "test")[number // 3 % 5],
            codes=(CODES[number % len(CODES)],),
        )
        for number in range(count)
    ]


def audited(tmp_path: Path, notes: list[Note]) -> Audit:
    write_corpus(notes, tmp_path / "corpus", source={}, filters=[], counts={})
    return audit(tmp_path / "corpus")


def of(result: Audit, check: str):
    return next(finding for finding in result.results if finding.check == check)


def test_clean_corpus_passes_all_checks(tmp_path):
    result = audited(tmp_path, clean())
    assert [finding.check for finding in result.results if finding.status != "ok"] == []
    assert result.splits == {"train": 54, "dev": 18, "test": 18}
    assert len(result.results) == 13


def test_a_patient_in_two_splits_is_a_leak(tmp_path):
    notes = clean()
    notes[0] = replace(notes[0], split="test")
    result = audited(tmp_path, notes)
    assert [finding.check for finding in result.leaks] == ["patients in two splits"]
    assert result.leaks[0].examples == ("p0",)


def test_count_leaked_patients_across_corpora(tmp_path):
    def corpus(name: str, *notes: tuple[str | None, str | None]):
        corpus_notes = [
            Note(f"{name}{i}", "text", patient=patient, split=split) for i, (patient, split) in enumerate(notes)
        ]
        return write_corpus(corpus_notes, tmp_path / name, source={}, filters=[], counts={})

    learned = [("a", "train"), ("b", "train"), ("c", "train"), ("d", None), (None, "train")]
    first = corpus("first", *learned, ("e", "train"), ("e", "test"), ("f", "dev"))
    second = corpus("second", ("a", "test"), ("b", "dev"), ("c", "train"), ("d", "test"), (None, "test"))
    third = corpus("third", ("f", "train"), ("b", "test"))
    assert count_leaked_patients([first]) == 0, "one corpus is for its own audit"
    assert count_leaked_patients([first, second]) == count_leaked_patients([second, first]) == 2
    assert count_leaked_patients([first, second, third]) == 3


def test_duplicate_in_another_split_is_a_leak(tmp_path):
    notes = clean()
    notes[9] = replace(notes[9], text=notes[0].text.upper().replace(" ", "\n"))
    assert (notes[0].split, notes[9].split) == ("train", "dev")
    result = audited(tmp_path, notes)
    assert [(finding.check, finding.count) for finding in result.leaks] == [("duplicate notes across splits", 1)]
    assert set(result.leaks[0].examples[0].split(" ~ ")) == {"n000", "n009"}


def test_a_near_copy_with_a_few_words_changed_is_a_leak(tmp_path):
    notes = clean()
    words = notes[0].text.split()
    for position in (5, 90, 150):
        words[position] = "changed"
    notes[9] = replace(notes[9], text=" ".join(words))
    result = audited(tmp_path, notes)
    assert [(finding.check, finding.count) for finding in result.leaks] == [("near-duplicate notes across splits", 1)]
    assert result.leaks[0].examples == ("n000 ~ n009 (0.84)",)
    assert audit(tmp_path / "corpus", threshold=0.9).leaks == ()


def test_a_near_copy_of_a_text_whose_copy_is_in_another_split_is_a_leak(tmp_path):
    notes = clean()
    notes[3] = replace(notes[3], text=notes[0].text + " and more")
    notes[9] = replace(notes[9], text=notes[0].text)
    result = audited(tmp_path, notes)
    assert of(result, "near-duplicate notes across splits").examples[0].startswith("n009 ~ n003 (")
    assert of(result, "near-duplicate notes within a split").count == 0


def test_copies_in_one_split_and_of_one_patient_are_warnings(tmp_path):
    notes = clean()
    notes[1] = replace(notes[1], text=notes[0].text)
    notes[3] = replace(notes[3], text=notes[4].text + " addendum")
    result = audited(tmp_path, notes)
    assert result.leaks == ()
    assert of(result, "duplicate notes within a split").examples == ("n000 ~ n001",)
    assert of(result, "near-duplicate notes within a split").count == 1
    assert of(result, "(near-)duplicates of one patient").count == 2


def test_notes_without_a_split_are_no_leak(tmp_path):
    notes = clean()
    notes[0] = replace(notes[0], split=None)
    notes.append(replace(notes[20], id="unsplit", split=None))
    result = audited(tmp_path, notes)
    assert result.leaks == ()
    assert of(result, "notes without a split").count == 2


def test_warnings_are_counted(tmp_path):
    unseen = Code("icd10cm", "Z99.81")
    notes = clean()
    notes[9] = replace(notes[9], codes=(CODES[0], unseen))
    notes[12] = replace(notes[12], codes=(unseen,))
    notes[13] = replace(notes[13], codes=())
    notes[14] = replace(notes[14], text=" .. ")
    notes[15] = replace(notes[15], evidence=(Evidence(CODES[0], 5, 10**6),))
    notes[16] = replace(notes[16], evidence=(Evidence(CODES[0], 0, len(notes[16].text)),))
    notes[17] = replace(notes[17], codes=(Code("icd10cm", "X99.ZZZ"),))
    result = audited(tmp_path, notes)
    assert result.leaks == ()
    assert of(result, "codes never seen in train").examples == ("icd10cm:Z99.81",)
    occurrences = of(result, "occurrences of such codes")
    assert (occurrences.count, occurrences.of) == (2, 36)
    assert of(result, "notes without codes").examples == ("n013",)
    assert of(result, "notes without words").examples == ("n014",)
    assert of(result, "evidence outside its text").examples == ("n015",)
    assert of(result, "codes no release has").examples == ("icd10cm:X99.ZZZ",)


def test_result_contains_no_note_text(tmp_path):
    notes = clean()
    notes[9] = replace(notes[9], text=notes[0].text)
    assert "template" not in json.dumps(audited(tmp_path, notes).to_json())


def test_invalid_settings_raise_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"similarity of near-duplicates must lie in \[0.5, 1\]; got 85"):
        audit(tmp_path, threshold=85)
    with pytest.raises(ConfigError, match="shingle must be 1 to 50 words; got 0"):
        audit(tmp_path, shingle=0)
