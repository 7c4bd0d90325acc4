"""The tables of HMHAN, with a transformer small enough for a test."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.config import load_recipe
from nosology.core import Code, DataError
from nosology.corpora.corpus import write_corpus
from nosology.models.hmhan.report_batches import Batches
from nosology.reproduce.hmhan_tables import leakage
from tests.conftest import small_notes
from tests.encoders.tiny import tiny_bert


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    encoder = tiny_bert(tmp_path_factory.mktemp("hmhan") / "encoder")
    return [
        f"model.encoder='{encoder}'",
        "model.heads=2",
        "model.hidden=[16, 8]",
        "model.ensemble_size=1",
        "training.epochs=3",
        "training.learning_rate=5e-3",
        "words.features=500",
        "words.c=[3.0]",
    ]


def test_leakage_shows_the_protocols_side_by_side(tiny, tmp_path):
    notes = [replace(note, split=None, patient=f"p{i // 4}") for i, note in enumerate(small_notes(80))]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    asked = ["leakage", "hmhan", "--corpus", str(corpus.folder), "--out", str(tmp_path / "out"), "--seeds", "1"]
    settings = [*tiny, "training.epochs=1", "model.frozen=true", "smote.share=2.0"]
    found = CliRunner().invoke(app, [*asked, *(part for setting in settings for part in ("--set", setting))])
    assert found.exit_code == 0, found.output + repr(found.exception)
    rows = json.loads((tmp_path / "out" / "leakage.json").read_text())
    assert list(rows) == ["honest", "reports", "resampled", "resampled, its real test rows"]
    assert rows["honest"]["shared"] == 0 < rows["reports"]["shared"]
    assert not list((tmp_path / "out").rglob("checkpoint.safetensors")), "a later study starts from nothing"


def test_leakage_of_both_icd_versions_holds_a_report_against_its_own(tiny, tmp_path):
    notes = [replace(note, split=None) for note in small_notes(80)]  # coded in either version, or in both
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    settings = [*tiny, "training.epochs=1", "model.frozen=true", "smote.share=2.0"]
    batches = []
    make = Batches.make

    def watched(self, chosen, given):
        batches.append(np.unique(self.train.versions[self.rows[chosen]]))
        return make(self, chosen, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "make", watched)
        leakage(load_recipe("hmhan", settings), corpus, tmp_path / "out", seeds=1)
    assert {len(found) for found in batches} == {1}, "a batch is of one version"


def test_leakage_needs_a_note_for_every_part(tiny, tmp_path):
    notes = [replace(note, split=None) for note in small_notes(4)]
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    with pytest.raises(DataError, match="too few coded notes"):
        leakage(load_recipe("hmhan", tiny), corpus, tmp_path / "out", seeds=1)


def test_resampling_that_makes_no_row_is_said(tiny, tmp_path):
    codes = [Code("icd10cm", code) for code in ("J18.9", "I50.9", "J90", "N17.9")]
    single = [replace(n, codes=(codes[0],) if i > 2 else (codes[i + 1],)) for i, n in enumerate(small_notes(40))]
    corpus = write_corpus(single, tmp_path / "notes", source={"kind": "test"}, filters=[], counts={})
    with pytest.raises(DataError, match="MLSMOTE makes no row"):
        leakage(load_recipe("hmhan", [*tiny, "training.epochs=1"]), corpus, tmp_path / "out", seeds=1)
