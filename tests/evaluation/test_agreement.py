"""Agreement of two people: hand-computed values, Krippendorff's published tables, scikit-learn's kappa."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from nosology.evaluation.agreement import (
    DoubleCodedNote,
    agreement_by_group,
    cohen_kappa,
    krippendorff_alpha,
    masi_distance,
    measure_agreement,
)


def note(first: str, second: str, others: str = "", principals=None) -> DoubleCodedNote[str]:
    """A note whose codes are letters; the first letter of each person is the principal diagnosis."""
    principals = principals or (first[:1] or None, second[:1] or None)
    return DoubleCodedNote(frozenset(first), frozenset(second), frozenset(first + second + others), principals)


def random_notes(seed: int, size: int = 40) -> list[DoubleCodedNote[str]]:
    rng = np.random.default_rng(seed)
    texts = [["".join(rng.permutation(list("abcdefgh"))[: rng.integers(0, 5)]) for _ in range(3)] for _ in range(size)]
    return [note(*parts) for parts in texts]


def rows_as_units(*rows: str) -> list[list[str]]:
    """The values of each unit, of one row of values per observer; a dot is a missing value."""
    return [[value for value in column if value != "."] for column in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    ("rows", "expected", "rounded"),
    [
        # Krippendorff (2011). Four observers, missing values: the diagonal of the coincidence matrix sums to 32, its
        # margins are 9, 13, 10, 5, 3, and the sum of n (n - 1) over them is 344.
        (("123321412...", "1233224125.3", ".3332342251.", "12332441251."), (39 * 32 - 344) / (40 * 39 - 344), 0.743),
        # Two observers, two values: 4 of 10 units disagree; 14 values are 0 and 6 are 1.
        (("0100000010", "1110010000"), 1 - 19 * 4 / (14 * 6), 0.095),
        # Two observers, five values: 9 of 12 units agree; margins 4, 6, 6, 6, 2 with a sum of n (n - 1) of 104.
        (("aabbdcccedda", "babbbccceddd"), (23 * 18 - 104) / (24 * 23 - 104), 0.692),
    ],
)
def test_alpha_of_krippendorffs_tables(rows, expected, rounded):
    alpha = krippendorff_alpha(rows_as_units(*rows))
    assert alpha == pytest.approx(expected) and round(alpha, 3) == rounded


def test_alpha_without_variation_is_undefined():
    assert krippendorff_alpha([["x", "x"], ["x", "x"]]) is None
    assert krippendorff_alpha([["x"], ["y"]]) is None  # no unit has two values


def test_kappa_by_hand_and_by_scikit_learn():
    # 20 agree on yes, 15 on no, 5 and 10 disagree: po = 0.7, pe = (25 x 30 + 25 x 20) / 50^2 = 0.5
    assert cohen_kappa(np.array([[20.0, 5.0, 10.0, 15.0]]))[0] == pytest.approx(0.4)
    notes = random_notes(1)
    units = [(code in item.first, code in item.second) for item in notes for code in item.candidates]
    result = measure_agreement(notes)
    assert result.units == len(units) and result.notes == len(notes)
    assert result.kappa.value == pytest.approx(cohen_kappa_score(*zip(*units)))
    assert result.percent.value == pytest.approx(np.mean([a == b for a, b in units]))


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("ab", "ab", 0),
        ("", "", 0),
        ("ab", "cd", 1),
        ("", "a", 1),
        ("ab", "abcd", 1 - 2 / 3 * 2 / 4),
        ("abc", "bcd", 1 - 1 / 3 * 2 / 4),
    ],
)
def test_masi_distance(first, second, distance):
    assert masi_distance(first, second) == pytest.approx(distance) == masi_distance(second, first)


@pytest.mark.parametrize("seed", range(4))
def test_both_alphas_are_those_of_the_definition(seed):
    notes = random_notes(seed)
    result = measure_agreement(notes, replicates=10)
    units = [(code in item.first, code in item.second) for item in notes for code in item.candidates]
    assert result.alpha.value == pytest.approx(krippendorff_alpha(units))
    sets = [(item.first, item.second) for item in notes]
    assert result.alpha_sets.value == pytest.approx(krippendorff_alpha(sets, masi_distance))


def test_the_alpha_of_sets_of_a_drawn_sample_counts_a_note_as_often_as_it_is_drawn():
    notes = random_notes(5, 6)
    repeated = [notes[0], notes[0], *notes[2:5], notes[4]]
    sets = [(item.first, item.second) for item in repeated]
    assert measure_agreement(repeated).alpha_sets.value == pytest.approx(krippendorff_alpha(sets, masi_distance))


def test_equal_and_opposite_coders():
    same = measure_agreement([note("ab", "ab", "c"), note("c", "c", "a")])
    assert (same.kappa.value, same.alpha.value, same.alpha_sets.value, same.principal.value) == (1, 1, 1, 1)
    other = measure_agreement([note("a", "b"), note("b", "a")])
    assert other.kappa.value == -1 and other.percent.value == 0 and other.principal.value == 0


def test_undefined_values_are_none():
    empty = measure_agreement([])
    assert empty.notes == 0 and empty.kappa.value is None and empty.principal.value is None
    one = measure_agreement([note("ab", "ab")])  # every unit has the value 1: nothing to compare with chance
    assert (one.percent.value, one.percent.low, one.kappa.value, one.alpha.value) == (1, None, None, None)
    with pytest.raises(ValueError, match="candidates must contain"):
        DoubleCodedNote(frozenset("a"), frozenset(), frozenset())


def test_principal_agreement_counts_notes_with_a_principal_diagnosis():
    notes = [note("ab", "ab"), note("ab", "ba"), note("c", "c", principals=(None, None))]
    assert measure_agreement(notes).principal.value == 0.5


def test_intervals_contain_the_value_narrow_with_notes_and_depend_on_the_seed_only():
    notes = random_notes(2, 30)
    few, many = measure_agreement(notes, seed=3), measure_agreement(notes * 10, seed=3)
    for name in ("percent", "kappa", "alpha", "alpha_sets", "principal"):
        a, b = getattr(few, name), getattr(many, name)
        assert a.low <= a.value <= a.high and b.high - b.low < a.high - a.low
    assert measure_agreement(notes, seed=3) == few != measure_agreement(notes, seed=4)


def test_the_interval_of_percent_agreement_is_that_of_a_mean_over_notes():
    rng = np.random.default_rng(0)
    notes = [note("a", "a" if agree else "", "b") for agree in rng.random(400) < 0.8]  # two units a note
    value = measure_agreement(notes).percent
    share = np.array([1.0 if item.second else 0.5 for item in notes])
    half = 1.96 * share.std() / 20
    assert value.low == pytest.approx(share.mean() - half, abs=0.01)
    assert value.high == pytest.approx(share.mean() + half, abs=0.01)


def simulated(rng: np.random.Generator) -> DoubleCodedNote[int]:
    """Two people who find four of five true codes each, and name one of twenty wrong ones."""
    true, wrong = rng.choice(60, rng.integers(4, 12), replace=False), rng.choice(60, 10, replace=False)
    sides = [
        [code for code in true if rng.random() < 0.8] + [code for code in wrong if rng.random() < 0.05] for _ in "ab"
    ]
    sets = [frozenset(map(int, side)) for side in sides]
    principals = tuple(min(side, default=None) for side in sets)
    return DoubleCodedNote(*sets, sets[0] | sets[1] | frozenset(map(int, [*true, *wrong])), principals)


def test_intervals_cover_the_value_of_all_notes():
    rng, names = np.random.default_rng(0), ("percent", "kappa", "alpha", "alpha_sets", "principal")
    everything = measure_agreement([simulated(rng) for _ in range(1000)], replicates=1)
    samples = [measure_agreement([simulated(rng) for _ in range(40)], replicates=150) for _ in range(100)]
    for name in names:
        value = getattr(everything, name).value
        intervals = [getattr(sample, name) for sample in samples]
        assert np.mean([item.low <= value <= item.high for item in intervals]) >= 0.87, name


def test_groups_have_their_codes_and_the_principal_of_either_person():
    notes = [note("ax", "ay", "z"), note("x", "b")]
    groups = agreement_by_group(notes, lambda code: "letters a, b" if code in "ab" else "rest")
    assert groups["letters a, b"].units == 2 and groups["rest"].units == 4
    assert groups["letters a, b"].percent.value == 0.5  # a agreed, b by one person
    assert groups["letters a, b"].principal.value == 0.5 and groups["rest"].principal.value == 0
    everything = agreement_by_group(notes, lambda code: "all")["all"]
    assert everything == measure_agreement(notes)


def test_the_interval_of_a_share_has_no_negative_end():
    notes = [note("a", "a", principals=("a", "a")), note("b", "c", principals=("b", "c"))]
    measured = measure_agreement(notes)
    for share in (measured.percent, measured.principal):
        assert 0 <= share.low <= share.value <= share.high <= 1
