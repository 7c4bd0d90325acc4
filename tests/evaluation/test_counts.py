from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation import Counts, evaluate, examine

CODES = [Code("icd10cm", name) for name in ("I10", "I50.9", "E11.9", "N17.9", "J18.9", "Z99.2")]
LABELS = LabelSpace(CODES[:4])

notes = st.lists(
    st.tuples(st.sets(st.sampled_from(CODES)), st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.9]), min_size=4, max_size=4)),
    min_size=2,
    max_size=12,
)


def _counts(some: list) -> Counts:
    gold, scores = [sorted(codes) for codes, _ in some], np.array([values for _, values in some], dtype=np.float32)
    return examine(LABELS, gold, scores, 0.5, replicates=0).counts


@settings(max_examples=60, deadline=None)
@given(notes, st.data())
def test_merged_counts_equal_pooled_counts(some, data):
    cut = data.draw(st.integers(1, len(some) - 1))
    merged, pooled = _counts(some[:cut]) + _counts(some[cut:]), _counts(some)
    assert merged == pooled
    assert merged.metrics() == pooled.metrics()


def test_metrics_of_counts_equal_evaluate(make_case):
    case = make_case(seed=1, n_outside=2)
    pooled = evaluate(case.labels, case.gold, case.scores, 0.4, replicates=0)
    counts = examine(case.labels, case.gold, case.scores, 0.4, replicates=0).counts
    for name, value in counts.metrics().items():
        assert value == pytest.approx(pooled[name], abs=1e-12), name


def test_different_label_spaces_do_not_add(make_case):
    first, second = make_case(seed=1, n_labels=5), make_case(seed=1, n_labels=6)
    left, right = (examine(c.labels, c.gold, c.scores, 0.4, replicates=0).counts for c in (first, second))
    with pytest.raises(ValueError, match="same label space"):
        left + right
