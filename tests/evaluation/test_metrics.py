"""Metrics compared with scikit-learn or with their definitions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse
from sklearn import metrics as reference
from sklearn.metrics import f1_score

from nosology.core import Code, ConfigError, DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation import brief, evaluate

NAMES = [
    "micro_f1",
    "macro_f1",
    "macro_f1_all",
    "micro_precision",
    "micro_recall",
    "micro_auc",
    "macro_auc",
    "map",
    "p@5",
    "p@8",
    "p@15",
    "r@15",
    "r_precision",
    "hamming_loss",
    "exact_match",
    "coverage_error",
]
COUNTS = ["threshold", "n_notes", "n_codes", "n_true_codes_outside_label_space"]

SHAPES = [
    {"seed": 0},
    {"seed": 1, "digits": 1},
    {"seed": 2, "digits": 2, "n_notes": 7, "n_labels": 40},
    {"seed": 3, "digits": 1, "n_outside": 3},
    {"seed": 4, "n_outside": 5, "n_notes": 150, "n_labels": 12},
]


@pytest.fixture(params=SHAPES, ids=str)
def case(request, make_case):
    return make_case(**request.param)


@pytest.fixture
def metrics(case):
    return evaluate(case.labels, case.gold, case.scores, 0.4, replicates=20)


def _accepted(case, width: int) -> np.ndarray:
    accepted = np.zeros((len(case.gold), width), dtype=int)
    accepted[:, : len(case.labels)] = case.scores >= np.float32(0.4)
    return accepted


def _below_all(case, width: int) -> np.ndarray:
    """The scores over the extended space, with codes outside the label space below all others."""
    scores = np.full((len(case.gold), width), -1.0)
    scores[:, : len(case.labels)] = case.scores
    return scores


def test_metrics_have_intervals_and_counts(metrics):
    for name in NAMES:
        assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"], name
    assert set(COUNTS) <= metrics.keys()
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_f1_precision_recall(case, metrics, truth):
    true = truth(case)
    accepted = _accepted(case, true.shape[1])
    with_positive = np.flatnonzero(true.any(0))
    for average, labels in (("micro", None), ("macro", with_positive)):
        p, r, f1, _ = reference.precision_recall_fscore_support(
            true, accepted, average=average, labels=labels, zero_division=0
        )
        ours = [metrics[f"{average}_{name}"] for name in ("precision", "recall", "f1")]
        assert ours == pytest.approx([p, r, f1], abs=1e-12)
    assert metrics["macro_f1_all"] == pytest.approx(
        reference.f1_score(true, accepted, average="macro", zero_division=0)
    )
    p, r = metrics["macro_precision"], metrics["macro_recall"]
    assert metrics["caml_macro_f1"] == pytest.approx(2 * p * r / (p + r))


def test_hamming_and_exact_match(case, metrics, truth):
    true = truth(case)
    accepted = _accepted(case, true.shape[1])
    assert metrics["hamming_loss"] == pytest.approx(reference.hamming_loss(true, accepted), abs=1e-12)
    assert metrics["exact_match"] == pytest.approx(reference.accuracy_score(true, accepted), abs=1e-12)


def test_auc(case, metrics, truth):
    true = truth(case)
    scores = _below_all(case, true.shape[1])
    assert metrics["micro_auc"] == pytest.approx(reference.roc_auc_score(true.ravel(), scores.ravel()), abs=1e-12)
    mixed = true.any(0) & ~true.all(0)
    assert metrics["macro_auc"] == pytest.approx(reference.roc_auc_score(true[:, mixed], scores[:, mixed]), abs=1e-12)


def test_map_and_coverage(case, metrics, truth):
    true = truth(case)
    coded = true.any(1)
    named = true[coded, : len(case.labels)]
    # scikit-learn's mean over the true codes of the label space, scaled to all true codes: a code never metrics adds 0.
    known = [reference.average_precision_score(t, s) if t.any() else 0 for t, s in zip(named, case.scores[coded])]
    share = named.sum(1) / true[coded].sum(1)
    assert metrics["map"] == pytest.approx(np.mean(known * share), abs=1e-7)
    coverage = reference.coverage_error(true[coded], _below_all(case, true.shape[1])[coded])
    assert metrics["coverage_error"] == pytest.approx(coverage, abs=1e-12)
    assert metrics["n_notes_without_codes"] == np.sum(~coded) > 0


def test_top_k(case, metrics, truth):
    values: dict[str, list[float]] = {}
    for true, scores in zip(truth(case), case.scores):
        if not true.any():
            continue
        n_true = int(true.sum())
        ranked = [j for j in np.argsort(-scores, kind="stable") if scores[j] > 0]
        hits = true[ranked]
        for k in (5, 8, 15):
            values.setdefault(f"p@{k}", []).append(hits[:k].sum() / k)
        values.setdefault("r@15", []).append(hits[:15].sum() / n_true)
        values.setdefault("r_precision", []).append(hits[:n_true].sum() / n_true)
    for name, per_note in values.items():
        assert metrics[name] == pytest.approx(np.mean(per_note), abs=1e-12), name


def test_sparse_scores_give_the_same_metrics(case, metrics):
    for kind in (sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix):
        assert evaluate(case.labels, case.gold, kind(case.scores), 0.4, replicates=20) == metrics


def test_block_size_does_not_change_metrics(case, metrics, monkeypatch):
    monkeypatch.setattr("nosology.evaluation.scored.BLOCK_CELLS", 64)
    again = evaluate(case.labels, case.gold, case.scores, 0.4, replicates=20)
    assert again == pytest.approx(metrics, abs=1e-12)


def test_systems_equals_evaluation_of_their_codes_only(make_case):
    case = make_case(seed=5)
    mixed = LabelSpace(Code("icd10cm" if j % 3 else "icd10pcs", f"{j:07d}") for j in range(len(case.labels)))
    renamed = dict(zip(case.labels.codes, mixed.codes))
    gold = [[renamed[code] for code in codes] + [Code("icd9cm", "428.0")] for codes in case.gold]
    keep = [j for j, code in enumerate(mixed.codes) if code.system == "icd10cm"]
    cut = [[code for code in codes if code.system == "icd10cm"] for codes in gold]
    thresholds = np.linspace(0.2, 0.6, len(mixed))
    alone = evaluate(mixed, gold, case.scores, thresholds, systems={"icd10cm"}, replicates=5)
    selected = LabelSpace(mixed.codes[j] for j in keep)
    expected = evaluate(selected, cut, case.scores[:, keep], thresholds[keep], replicates=5)
    assert alone == expected
    assert alone["threshold"] is None


def test_true_code_outside_the_label_space_is_a_miss(make_case):
    case = make_case(seed=6, n_notes=40)
    more = [[*codes, Code("icd10cm", "Z99.9")] for codes in case.gold]
    before = evaluate(case.labels, case.gold, case.scores, 0.4, replicates=0)
    after = evaluate(case.labels, more, case.scores, 0.4, replicates=0)
    for name in ("micro_f1", "macro_f1", "micro_recall", "macro_recall", "map", "r@15", "micro_auc"):
        assert after[name] < before[name], name
    assert after["hamming_loss"] > before["hamming_loss"]
    assert after["coverage_error"] == len(case.labels) + 1
    assert (after["exact_match"], after["n_true_codes_outside_label_space"]) == (0, 1)
    assert after["n_true_assignments_outside_label_space"] == len(case.gold)


def test_undefined_is_none(make_case):
    case = make_case(seed=7)
    nothing = evaluate(case.labels, [[] for _ in case.gold], case.scores, 1.0, replicates=5)
    for name in ("micro_f1", "micro_recall", "macro_f1", "macro_auc", "micro_auc", "map", "p@5", "coverage_error"):
        assert nothing[name] is nothing[f"{name}_low"] is nothing[f"{name}_high"] is None, name
    assert (nothing["exact_match"], nothing["hamming_loss"], nothing["n_notes_without_codes"]) == (1, 0, len(case.gold))
    none_accepted = evaluate(case.labels, case.gold, np.zeros_like(case.scores), 0.0, replicates=0)
    assert (none_accepted["micro_precision"], none_accepted["micro_f1"], none_accepted["p@5"]) == (None, 0, 0)


def test_one_note_and_an_empty_label_space():
    one = evaluate(LabelSpace([]), [[Code("icd10cm", "I10")]], np.zeros((1, 0), dtype=np.float32), 0.5, replicates=5)
    assert (one["micro_recall"], one["map"], one["coverage_error"], one["macro_auc"]) == (0, 0, 1, None)


@pytest.mark.parametrize("digits", [None, 1])
def test_intervals_agree_with_resampling_notes(make_case, digits):
    case = make_case(seed=8, n_notes=150, n_labels=8, n_outside=1, rate=0.3, digits=digits)
    metrics = evaluate(case.labels, case.gold, case.scores, 0.4, replicates=2000)
    rng = np.random.default_rng(0)
    names = ("micro_f1", "micro_auc", "macro_auc", "map", "p@5", "hamming_loss", "macro_f1")
    draws = {name: [] for name in names}
    for _ in range(100):
        rows = rng.integers(0, len(case.gold), len(case.gold))
        again = evaluate(case.labels, [case.gold[i] for i in rows], case.scores[rows], 0.4, replicates=0)
        for name in names:
            draws[name].append(again[name])
    for name in names:
        width = metrics[f"{name}_high"] - metrics[f"{name}_low"]
        assert width == pytest.approx(2 * 1.96 * np.std(draws[name]), rel=0.3), name


def test_intervals_of_a_long_tail_match_the_spread_of_new_samples():
    labels = LabelSpace(Code("icd10cm", f"X{j}") for j in range(300))
    rate = np.minimum(3 / np.arange(1, 301), 0.5)
    skill = np.random.default_rng(0).normal(3, 1.2, 300)

    def sample(seed: int, replicates: int) -> dict:
        rng = np.random.default_rng(seed)
        true = rng.random((250, 300)) < rate
        scores = 1 / (1 + np.exp(-(np.log(rate) - 0.5 + rng.normal(size=true.shape) + true * skill)))
        gold = [[labels.codes[j] for j in np.flatnonzero(row)] for row in true]
        return evaluate(labels, gold, scores, 0.3, replicates=replicates)

    samples = [sample(seed, 0) for seed in range(30)]
    intervals = [sample(seed, 200) for seed in range(100, 104)]
    for name in ("micro_f1", "macro_f1", "macro_auc", "micro_auc", "map"):
        spread = np.std([metrics[name] for metrics in samples])
        width = np.mean([metrics[f"{name}_high"] - metrics[f"{name}_low"] for metrics in intervals])
        assert 0.75 < width / (2 * 1.96 * spread) < 1.3, name


def test_same_seed_gives_the_same_intervals(make_case):
    case = make_case(seed=9)
    first, second, other = (
        evaluate(case.labels, case.gold, case.scores, 0.4, replicates=50, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert first["micro_f1_low"] != other["micro_f1_low"]


def test_bad_input_raises(make_case):
    case = make_case(seed=10)
    bad = case.scores.copy()
    bad[3, 4] = np.nan
    calls = [
        (ValueError, "got NaN", {"scores": bad}),
        (ValueError, "not logits; got -3 to -3", {"scores": np.full_like(case.scores, -3)}),
        (ValueError, r"shape \(notes, labels\) = \(60, 20\); got \(60, 19\)", {"scores": case.scores[:, 1:]}),
        (ValueError, "numpy array or a scipy sparse matrix; got list", {"scores": case.scores.tolist()}),
        (ValueError, r"threshold must lie in \[0, 1\]; got 1.3", {"threshold": 1.3}),
        (ValueError, r"one per label \(20\); got the shape \(3,\)", {"threshold": np.ones(3)}),
        (ConfigError, "systems must be some of icd9cm, .*; got icd11", {"systems": {"icd11"}}),
        (DataError, "got no notes", {"gold": [], "scores": case.scores[:0]}),
    ]
    good = {"labels": case.labels, "gold": case.gold, "scores": case.scores, "threshold": 0.5}
    for error, message, change in calls:
        with pytest.raises(error, match=message):
            evaluate(**good | change)


def test_system_without_codes_raises(make_case):
    case = make_case(seed=0)
    with pytest.raises(DataError, match="neither the model nor the notes have a code of icd9proc"):
        evaluate(case.labels, case.gold, case.scores, 0.5, systems={"icd9proc"})


LABELS_12 = LabelSpace([Code("icd10cm", f"A{i:02}") for i in range(12)])


def test_brief_equals_evaluate():
    rng = np.random.default_rng(0)
    scores, true = rng.random((40, 12)).astype(np.float32), rng.random((40, 12)) < 0.2
    gold = [[LABELS_12.codes[j] for j in np.flatnonzero(row)] for row in true]
    metrics = brief(LABELS_12, gold, scores)
    whole = evaluate(LABELS_12, gold, scores, 0.5)
    assert {name: metrics[name] for name in ("map", "p@15")} == pytest.approx({n: whole[n] for n in ("map", "p@15")})
    best = max(f1_score(true, scores >= value, average="micro") for value in np.unique(scores[true]))
    assert metrics["micro_f1"] == pytest.approx(best)


def test_brief_map_of_equal_scores():
    assert brief(LABELS_12, [LABELS_12.codes[:2]], np.ones((1, 12)))["map"] == pytest.approx(2 / 12)


def test_brief_without_a_scored_true_code_is_0():
    unknown = [[Code("icd9cm", "428.0")]]
    assert brief(LABELS_12, unknown, np.ones((1, 12))) == {"map": 0.0, "p@15": 0.0, "micro_f1": 0.0}
    assert brief(LABELS_12, [LABELS_12.codes[:1]], np.zeros((1, 12))) == {"map": 0.0, "p@15": 0.0, "micro_f1": 0.0}
