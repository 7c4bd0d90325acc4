"""Active learning: which notes are chosen first, and that the greedy choice is the exact one."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from nosology.core import Code, ConfigError, DataError, Note
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.models.note_selection import (
    SelectedNote,
    SelectionWeights,
    entropy,
    select_notes,
    write_selected_corpus,
    write_selection,
)


class TableModel:
    """A model with a table of probabilities by note id."""

    kind, within_versions = "table", False

    def __init__(self, table, counts):
        self.labels = LabelSpace([Code("icd10cm", f"A0{j}") for j in range(len(counts))])
        self.train_counts, self._table = np.array(counts), table

    def probabilities(self, notes):
        return np.array([self._table[note.id] for note in notes], dtype=np.float32)


ONLY = {
    name: SelectionWeights(**{"uncertainty": 0, "rare_codes": 0, "diversity": 0} | {name: 1})
    for name in ("uncertainty", "rare_codes", "diversity")
}


def ids(model, notes, count, **options):
    return [item.id for item in select_notes(model, notes, count, **options)]


def test_each_score_prefers_what_it_names():
    table = {"sure": [0.99, 0.0], "torn": [0.5, 0.0], "rare": [0.0, 0.9], "frequent": [0.9, 0.0]}
    model = TableModel(table, [50, 1])
    notes = [Note(name, "the same words") for name in table]
    assert ids(model, notes, 1, weights=ONLY["uncertainty"]) == ["torn"]
    assert ids(model, notes, 1, weights=ONLY["rare_codes"]) == ["rare"]
    notes.append(Note("new", "other findings"))
    table["new"] = [0.0, 0.0]
    seen = [Note("x", "the same words")]
    assert ids(model, notes, 2, weights=ONLY["diversity"], reviewed=seen)[0] == "new"


def test_the_second_of_two_equal_notes_waits():
    table = {"a": [0.9, 0.0], "again": [0.9, 0.0], "b": [0.0, 0.5]}
    notes = [Note("a", "fever and cough"), Note("again", "fever and cough"), Note("b", "broken wrist today")]
    model = TableModel(table, [0, 0])
    assert ids(model, notes, 3, weights=ONLY["rare_codes"]) == ["a", "b", "again"]
    assert ids(model, notes, 3, weights=ONLY["diversity"]) == ["a", "b", "again"]


def test_where_words_cost_the_shorter_of_two_notes_is_first():
    notes = [Note("long", "fever " * 100), Note("short", "fever " * 10)]
    model = TableModel({"long": [0.5], "short": [0.48]}, [1])
    assert ids(model, notes, 1) == ["long"]
    assert ids(model, notes, 1, weights=SelectionWeights(words=0.5)) == ["short"]


def test_entropy_in_bits():
    assert entropy(np.array([0.5, 0.5, 0.0, 1.0])) == pytest.approx(2.0)


def test_lazy_selection_equals_scoring_all_notes_at_each_step():
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(60)])
    notes = [Note(str(i), " ".join(rng.choice(words, rng.integers(3, 25)))) for i in range(80)]
    table = {note.id: np.where(rng.random(12) < 0.4, rng.random(12), 0) for note in notes}
    counts = rng.integers(0, 30, 12)
    model, reviewed = TableModel(table, counts), [Note("r", "w1 w2 w3")]
    found = ids(model, notes, 40, reviewed=reviewed)
    assert found == slow_selection(model, notes, 40, reviewed) and len(set(found)) == 40
    assert ids(model, notes, 40, reviewed=reviewed) == found
    assert ids(model, notes, 1000, reviewed=reviewed)[:40] == found


def slow_selection(model, notes, count, reviewed):
    """The same selection, from its definition."""
    weights, left = SelectionWeights(), {note.id: note for note in notes}
    trained = model.train_counts.astype(float)
    seen = {word: 1.0 for note in reviewed for word in note.text.split()}
    p = {note.id: model.probabilities([note])[0].astype(float) for note in notes}

    def scores(note):
        row = np.where(p[note.id] >= 0.01, p[note.id], 0)
        distinct = set(note.text.split())
        return np.array(
            [entropy(p[note.id]), (row / (1 + trained)).sum(), sum(1 / (1 + seen.get(word, 0)) for word in distinct)]
        )

    scale = np.mean([scores(note) for note in notes], axis=0)
    factors = np.array([weights.uncertainty, weights.rare_codes, weights.diversity])
    chosen = []
    for _ in range(count):
        best = max(left.values(), key=lambda note: (scores(note) / scale) @ factors)
        chosen.append(best.id)
        trained += np.where(p[best.id] >= 0.01, p[best.id], 0)
        for word in set(best.text.split()):
            seen[word] = seen.get(word, 0) + 1
        del left[best.id]
    return chosen


def test_files_have_the_order_and_the_reasons(tmp_path):
    table = {"a": [0.1], "b": [0.5], "c": [0.2]}
    notes = [Note(name, f"text of {name}", extra={"ward": "7"}) for name in table]
    source = write_corpus(notes, tmp_path / "c", source={"kind": "x"}, filters=[], counts={})
    chosen = select_notes(TableModel(table, [3]), source.notes(), 2)
    write_selection(chosen, tmp_path / "chosen.csv")
    with (tmp_path / "chosen.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["order"], row["id"]) for row in rows] == [("1", chosen[0].id), ("2", chosen[1].id)]
    assert list(rows[0]) == ["order", "id", "score", "uncertainty", "rare_codes", "diversity"]
    assert float(rows[0]["uncertainty"]) == pytest.approx(chosen[0].uncertainty, abs=1e-4)
    write_selected_corpus(chosen, source, tmp_path / "s")
    again = list(Corpus.open(tmp_path / "s").notes())
    assert [note.id for note in again] == [item.id for item in chosen]
    assert again[0].text == f"text of {chosen[0].id}" and again[0].extra["ward"] == "7"
    # The notes file of a corpus can be imported into the workbench, in this order.
    assert [note.id for note in read_notes(tmp_path / "s" / "notes.parquet")] == [item.id for item in chosen]


def test_an_id_is_no_formula_in_the_table(tmp_path):
    chosen = [SelectedNote(name, 1.0, 1.0, 1.0, 1.0) for name in ("=2+1", "@sum", "n1")]
    write_selection(chosen, tmp_path / "chosen.csv")
    lines = (tmp_path / "chosen.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["'=2+1", "'@sum", "n1"]


def test_nothing_to_select_is_an_error():
    model = TableModel({"a": [0.5]}, [1])
    with pytest.raises(DataError, match="no note to select"):
        select_notes(model, [], 3)
    with pytest.raises(ConfigError, match="at least 1; got 0"):
        select_notes(model, [Note("a", "x")], 0)
