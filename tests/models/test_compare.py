"""The evaluation of a bundle in a comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nosology.core import Code, Note
from nosology.core.label_space import LabelSpace
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle
from nosology.models.compare import evaluate_bundle

OLD, NEW = Code("icd9cm", "428.0"), Code("icd10cm", "I50.9")


class BothCodes:
    """A model that gives heart failure to every note, in both ICD versions."""

    kind, labels, train_counts, within_versions = "linear", LabelSpace([OLD, NEW]), np.ones(2), True

    def probabilities(self, notes):
        return np.full((len(notes), 2), 0.9, np.float32)


def test_codes_of_another_version_are_excluded_by_the_date_of_a_note_and_never_by_its_true_codes():
    bundle = Bundle(BothCodes(), Decision(0.5), {"labels": {}}, {})
    notes = [Note("a", "heart failure", codes=(OLD,)), Note("b", "heart failure", codes=(NEW,))]
    assert evaluate_bundle(bundle, notes).metrics["micro_precision"] == pytest.approx(0.5), "nothing tells the version"
    dated = [replace(note, extra={"date": day}) for note, day in zip(notes, ("2014-01-01", "2017-01-01"))]
    assert evaluate_bundle(bundle, dated).metrics["micro_precision"] == 1.0
    misdated = [replace(note, extra={"date": "2014-01-01"}) for note in notes]
    assert evaluate_bundle(bundle, misdated).metrics["micro_f1"] == pytest.approx(0.5), "the date decides"
