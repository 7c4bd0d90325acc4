"""Summed counts give the scores of `nosology evaluate`, whatever codes the notes have."""

from __future__ import annotations

import numpy as np
import pytest

from nosology.core import Code
from nosology.core.label_space import LabelSpace, label_versions, mask_other_versions, note_versions
from nosology.evaluation import evaluate
from nosology.federated.rounds.site_counts import SiteCounts
from nosology.training.calibration import PlattScaling

NINE, TEN = ([Code(system, str(400 + i)) for i in range(6)] for system in ("icd9cm", "icd10cm"))
LABELS = LabelSpace(NINE[:4] + TEN[:4])  # the others are learned by nobody
EXACT = ("micro_f1", "micro_precision", "micro_recall", "exact_match", "map")


@pytest.mark.parametrize("seed", range(5))
def test_a_note_is_held_against_codes_of_its_own_version_alone(seed):
    rng = np.random.default_rng(seed)
    codes = []
    for _ in range(60):
        offered = NINE if rng.random() < 0.4 else TEN
        codes.append((offered[rng.integers(6)], *(code for code in offered if rng.random() < 0.2)))
    logits = rng.normal(-0.5, 1, (60, 8)).astype(np.float32) + 2 * LABELS.encode(codes).toarray()
    logits = logits.astype(np.float32)
    scores, known = PlattScaling(1.1, 0.2)(logits), np.ones(8, bool)
    found = SiteCounts.of(LABELS, logits[:25], scores[:25], codes[:25], known, 0.6)
    found += SiteCounts.of(LABELS, logits[25:], scores[25:], codes[25:], known, 0.6)
    own = mask_other_versions(scores, note_versions(codes), label_versions(LABELS))
    pooled = evaluate(LABELS, codes, own, 0.6, replicates=0)
    assert pooled["exact_match"] > 0 and found.outside[0] > 0
    assert {name: found.metrics(LABELS)[name] for name in EXACT} == pytest.approx(
        {name: pooled[name] for name in EXACT}, abs=1e-12
    )
    assert found.cells.sum() == (own > 0).sum() and found.true.sum() == LABELS.encode(codes).nnz


def test_notes_without_any_code_count_in_full():
    logits = np.full((3, 8), 2, np.float32)
    found = SiteCounts.of(LABELS, logits, PlattScaling()(logits), [()] * 3, np.ones(8, bool), 0.5)
    assert found.hits[1].tolist() == [3] * 8 and found.cells.sum() == 24 and found.exact[0] == 0
