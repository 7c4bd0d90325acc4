from dataclasses import replace

import pytest

from nosology.core import DataError, Note
from nosology.corpora.corpus import write_corpus
from nosology.training.examples import train_and_dev, union
from tests.conftest import small_notes


def corpus(notes, folder):
    return write_corpus(notes, folder, source={}, filters=[], counts={})


def test_splits_are_taken_as_they_are(small_corpus):
    train, dev, carved = train_and_dev([small_corpus], 0.15, 0)
    assert (len(train), len(dev), carved) == (80, 40, False)
    notes = [note for note in small_notes(160) if note.split == "dev"]
    assert list(dev.texts()) == [note.text for note in notes]
    assert dev.codes == [note.codes for note in notes]
    assert len(union(train, dev)) == 120


def test_a_carved_dev_keeps_patients_together_and_does_not_depend_on_order(tmp_path):
    notes = [replace(note, split="train", patient=f"p{i // 4}") for i, note in enumerate(small_notes(200))]
    parts = []
    for name, ordered in (("a", notes), ("b", notes[::-1])):
        train, dev, carved = train_and_dev([corpus(ordered, tmp_path / name)], 0.3, 0)
        assert carved
        patients = [{note.patient for note in part.corpora[0].notes() if part.keep(note)} for part in (train, dev)]
        assert not patients[0] & patients[1]
        assert 0.1 < len(dev) / len(notes) < 0.5
        parts.append(sorted(dev.texts()))
    assert parts[0] == parts[1]


def test_a_carved_dev_shares_no_repeated_note_with_train(tmp_path):
    notes = [replace(note, split="train", patient=f"p{i}") for i, note in enumerate(small_notes(60))]
    notes += [replace(note, id=f"again-{i}", patient=f"q{i}") for i, note in enumerate(notes[:40])]
    notes += [Note(f"normal-{i}", "No acute disease. " * 5, f"r{i}", codes=notes[0].codes) for i in range(60)]
    notes = [replace(note, split="train") for note in notes]
    train, dev, carved = train_and_dev([corpus(notes, tmp_path / "c")], 0.15, 0)
    assert carved and not set(train.texts()) & set(dev.texts())
    assert 20 <= len(dev) <= 24, "60 notes alike are too many for 15% of 160"


def test_where_all_notes_repeat_one_a_carved_dev_is_of_other_patients(tmp_path):
    notes = [Note(f"n{i}", "Pneumonia.", f"p{i // 2}", codes=small_notes(1)[0].codes) for i in range(8)]
    train, dev, _ = train_and_dev([corpus(notes, tmp_path / "c")], 0.25, 0)
    assert (len(train), len(dev)) == (6, 2)
    assert len({note.patient for note in dev.notes()}) == 1


def test_a_dev_carved_of_notes_without_codes_keeps_patients_together(tmp_path):
    notes = [replace(note, split=None, codes=(), patient=f"p{i // 4}") for i, note in enumerate(small_notes(40))]
    train, dev, carved = train_and_dev([corpus(notes, tmp_path / "c")], 0.3, 0)
    assert carved and len(dev) == 12
    assert not {note.patient for note in train.notes()} & {note.patient for note in dev.notes()}


def test_notes_without_a_split_are_not_used_where_others_have_one(tmp_path):
    notes = [replace(note, split=note.split if note.split != "test" else None) for note in small_notes(40)]
    train, dev, _ = train_and_dev([corpus(notes, tmp_path / "c")], 0.15, 0)
    assert len(train) + len(dev) == 30


def test_no_train_notes(tmp_path):
    notes = [replace(note, split="test") for note in small_notes(8)]
    with pytest.raises(DataError, match="a corpus must have train notes; got the splits test"):
        train_and_dev([corpus(notes, tmp_path / "c")], 0.15, 0)
