"""Which codes of a note are explained, and what their pictures are called."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nosology.core import Code, Note
from nosology.core.label_space import LabelSpace
from nosology.evaluation.decision import Decision
from nosology.explanation.explanation_report import accepted_labels, write_explanations
from nosology.models.bundle import Bundle

CODES = [Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ"), Code("icd9cm", "428.0")]  # in the order of a LabelSpace


@pytest.mark.parametrize(
    ("within_versions", "systems", "expected"),
    [
        (True, (), ["I50.9", "0DTJ4ZZ"]),  # the newest version, as a Coder suggests
        (True, ("icd9cm",), ["428.0"]),
        (True, ("icd9cm", "icd10cm"), ["428.0", "I50.9"]),
        (False, (), ["428.0", "I50.9", "0DTJ4ZZ"]),
    ],
)
def test_of_several_versions_the_one_that_is_suggested_is_explained(within_versions, systems, expected):
    model = SimpleNamespace(
        labels=LabelSpace(CODES),
        within_versions=within_versions,
        probabilities=lambda notes: np.tile([0.8, 0.7, 0.9], (len(notes), 1)),
    )
    columns = accepted_labels(Bundle(model, Decision(0.5), {}, {}), Note("", "heart failure"), systems)
    assert [model.labels.codes[column].code for column in columns] == expected


@pytest.mark.parametrize(
    ("systems", "names"),
    [
        (["icd10cm", "icd9cm"], {"000-n-icd10cm-V45.8-occlusion.png", "000-n-icd9cm-V45.8-occlusion.png"}),
        (["icd10cm"], {"000-n-V45.8-occlusion.png"}),
    ],
)
def test_the_same_code_of_two_systems_has_two_pictures(tmp_path, systems, names):
    model = SimpleNamespace(
        kind="test",
        labels=LabelSpace([Code(system, "V45.8") for system in systems]),
        probabilities=lambda notes: np.full((len(notes), len(systems)), 0.7),
    )
    bundle = Bundle(model, Decision(0.5), {}, {})
    columns = range(len(systems))
    rows = write_explanations(bundle, [Note("n", "seen today")], columns, ["occlusion"], tmp_path / "out")
    assert {row["picture"] for row in rows} == names == {path.name for path in (tmp_path / "out").glob("*.png")}
